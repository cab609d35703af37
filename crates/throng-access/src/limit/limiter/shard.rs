//! The holdings and rates of some clients, which are under one lock.

use std::collections::HashMap;

use super::super::elsewhere::UsedHere;
use super::super::key::LimitKey;
use super::super::live::{KEY_BITS, LiveCounts};
use super::super::rate::RateLimiter;
use super::super::refusal::{Quantity, Subject};
use super::super::settings::{ClientLimits, LimitSettings, rate};

/// Threads that limit different clients meet in one of these with a probability of 1 in 64.
pub(super) const SHARDS: usize = 64;

/// The clients whose rate a server remembers, for each limit of a rate: a mebibyte. With more
/// clients that are active in the same second, those that have used least are forgotten.
const RATES_MIN: usize = 1 << 16;

/// The clients whose keys have the same upper bits.
#[derive(Debug, Default)]
pub(super) struct Shard {
    pub(super) clients: [Clients; Subject::ALL.len()],
    /// The rates of applications, which differ, by the [`part`]s of their keys.
    pub(super) apps: HashMap<u64, Clients>,
    bad_tokens: Option<RateLimiter>,
    /// The questions that are open of addresses.
    pub(super) questions: LiveCounts,
    pub(super) used: UsedHere,
}

/// The clients of one kind.
#[derive(Debug, Default)]
pub(super) struct Clients {
    pub(super) connections: LiveCounts,
    pub(super) subscriptions: LiveCounts,
    connects: Option<RateLimiter>,
    publishes: Option<RateLimiter>,
    published_bytes: Option<RateLimiter>,
    read_bytes: Option<RateLimiter>,
}

impl Clients {
    /// Begins with rates of these limits, for `count` clients at a time.
    pub(super) fn set_rates(&mut self, limits: &ClientLimits, count: usize) {
        self.connects = rate_limiter(limits.connects_per_s, count);
        self.publishes = rate_limiter(limits.publishes_per_s, count);
        self.published_bytes = rate_limiter(limits.published_bytes_per_s, count);
        self.read_bytes = rate_limiter(limits.read_bytes_per_s, count);
    }

    /// How often they do this; `None` without a limit.
    fn rate_mut(&mut self, quantity: Quantity) -> Option<&mut RateLimiter> {
        match quantity {
            Quantity::Connects => self.connects.as_mut(),
            Quantity::Publishes => self.publishes.as_mut(),
            Quantity::PublishedBytes => self.published_bytes.as_mut(),
            Quantity::ReadBytes => self.read_bytes.as_mut(),
            Quantity::Connections
            | Quantity::Subscriptions
            | Quantity::BadTokens
            | Quantity::Questions => None,
        }
    }
}

impl Shard {
    /// Begins with rates of these settings, and forgets the used ones, at most a second's worth.
    pub(super) fn set_rates(&mut self, settings: &LimitSettings) {
        for (clients, subject) in self.clients.iter_mut().zip(Subject::ALL) {
            clients.set_rates(settings.of(subject), RATES_MIN / SHARDS);
        }
        self.bad_tokens = rate_limiter(settings.bad_tokens_per_s, RATES_MIN / SHARDS);
    }

    /// The holdings of clients of one kind, by `quantity`.
    pub(super) fn counts_mut(&mut self, subject: Subject, quantity: Quantity) -> &mut LiveCounts {
        let clients = &mut self.clients[subject as usize];
        match quantity {
            Quantity::Subscriptions => &mut clients.subscriptions,
            Quantity::Questions => &mut self.questions,
            _ => &mut clients.connections,
        }
    }

    /// How often clients of one kind do this, the one with this key among them; `None` without a
    /// limit.
    pub(super) fn rate_mut(
        &mut self,
        (subject, quantity): (Subject, Quantity),
        key: LimitKey,
    ) -> Option<&mut RateLimiter> {
        match (subject, quantity) {
            (_, Quantity::BadTokens) => self.bad_tokens.as_mut(),
            (Subject::App, _) => self.apps.get_mut(&part(key))?.rate_mut(quantity),
            _ => self.clients[subject as usize].rate_mut(quantity),
        }
    }

    /// All rates of a quantity of clients of one kind.
    pub(super) fn rates_mut(
        &mut self,
        subject: Subject,
        quantity: Quantity,
    ) -> Vec<&mut RateLimiter> {
        match (subject, quantity) {
            (_, Quantity::BadTokens) => self.bad_tokens.as_mut().into_iter().collect(),
            (Subject::App, _) => {
                self.apps.values_mut().filter_map(|app| app.rate_mut(quantity)).collect()
            }
            _ => self.clients[subject as usize].rate_mut(quantity).into_iter().collect(),
        }
    }
}

/// The bits of a key by which an application is known: those that [`LiveCounts`] keep.
pub(super) fn part(key: LimitKey) -> u64 {
    key.0 & KEY_BITS
}

fn rate_limiter(per_second: u32, count: usize) -> Option<RateLimiter> {
    rate(per_second).map(|rate| RateLimiter::new(rate, count))
}
