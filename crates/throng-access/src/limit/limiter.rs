//! The limits of all clients of a server, shared by its threads.
//!
//! Holdings and rates of clients are kept in shards, each under a lock of its own, held for some
//! tens of nanoseconds. A limit that is not set costs neither memory nor time.
//!
//! # Invariants
//!
//! * What was acquired is released with the same [`ClientKeys`], exactly once.
//! * A refusal acquires and charges nothing: a client that waits as long as it is told to gets in,
//!   whatever it tried meanwhile.

mod publishing;
mod shard;
mod sharing;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;

use super::elsewhere::Elsewhere;
use super::frozen::{UsedRate, UsedRates};
use super::key::{LimitKey, LimitKeys};
use super::rate::TryLater;
use super::refusal::{Quantity, Refusal, Subject};
use super::settings::{ClientLimits, LimitSettings};
use crate::grants::Grants;
use shard::{SHARDS, Shard, part};

/// A request that reads counts as this many bytes at least, because finding out costs something.
pub const READ_BYTES_MIN: usize = 1 << 10;

/// The keys by which limits know a client. Parts without a limit are `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientKeys {
    address: Option<LimitKey>,
    user: Option<LimitKey>,
    key: Option<LimitKey>,
    app: Option<LimitKey>,
}

impl ClientKeys {
    /// The parts of a client.
    fn parts(self) -> impl Iterator<Item = (Subject, LimitKey)> {
        let parts = [self.address, self.user, self.key, self.app];
        Subject::ALL.into_iter().zip(parts).filter_map(|(subject, key)| Some((subject, key?)))
    }

    /// True if nothing limits this client.
    pub fn is_empty(&self) -> bool {
        *self == ClientKeys::default()
    }

    /// These and others, which name other parts of the client.
    pub fn and(self, others: ClientKeys) -> ClientKeys {
        ClientKeys {
            address: self.address.or(others.address),
            user: self.user.or(others.user),
            key: self.key.or(others.key),
            app: self.app.or(others.app),
        }
    }

    /// These without the application's, which counts the client already.
    #[must_use]
    pub fn without_app(self) -> ClientKeys {
        ClientKeys { app: None, ..self }
    }
}

/// The limits of a server's clients.
#[derive(Debug, Default)]
pub struct Limiter {
    keys: LimitKeys,
    settings: ArcSwap<LimitSettings>,
    /// The limits of each application that has some, by its [`part`] of a key.
    apps: ArcSwap<HashMap<u64, ClientLimits>>,
    /// The tags of applications by their prefixes.
    prefixes: HashMap<Box<str>, u64>,
    /// Empty without limits.
    shards: Box<[Mutex<Shard>]>,
    refused: [[AtomicU64; Quantity::ALL.len()]; Subject::ALL.len()],
    /// Of these, refusals of clients that would have been admitted without other nodes.
    refused_elsewhere: [[AtomicU64; Quantity::ALL.len()]; Subject::ALL.len()],
    elsewhere: Elsewhere,
}

/// Other quantities are limited than before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OtherQuantities;

/// All limits of a rate that there may be.
fn rates() -> impl Iterator<Item = (Subject, Quantity)> {
    let of = |subject| Quantity::of(subject).map(move |quantity| (subject, quantity));
    Subject::ALL.into_iter().flat_map(of)
}

fn saturated(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

fn shards_for(settings: &LimitSettings) -> Box<[Mutex<Shard>]> {
    let shard = |_| {
        let mut shard = Shard::default();
        shard.set_rates(settings);
        Mutex::new(shard)
    };
    (0..SHARDS).map(shard).collect()
}

impl Limiter {
    /// Limits as the settings say.
    pub fn new(settings: LimitSettings) -> Limiter {
        let is_limited = settings != LimitSettings::default();
        let shards = if is_limited { shards_for(&settings) } else { Box::default() };
        Limiter { settings: ArcSwap::from_pointee(settings), shards, ..Limiter::default() }
    }

    /// The same limiter with the keys of a server that is taken over, by which it recognizes its
    /// clients.
    #[must_use]
    pub fn with_keys(self, keys: LimitKeys) -> Limiter {
        Limiter { keys, ..self }
    }

    /// The same limiter with the keys that it has, and limits of applications, which are known by
    /// their tags.
    #[must_use]
    pub fn with_apps(mut self, apps: impl IntoIterator<Item = (u64, ClientLimits)>) -> Limiter {
        let limited: Vec<_> = apps.into_iter().filter(|(_, limits)| !limits.is_none()).collect();
        if !limited.is_empty() && self.shards.is_empty() {
            self.shards = shards_for(&self.settings());
        }
        self.set_apps(limited);
        self
    }

    /// The same limiter, which knows the clients of applications by the prefixes of their names,
    /// too: with the tags.
    #[must_use]
    pub fn with_prefixes(self, apps: impl IntoIterator<Item = (Box<str>, u64)>) -> Limiter {
        Limiter { prefixes: apps.into_iter().collect(), ..self }
    }

    /// Changes the limits of applications. Those that are left out keep theirs: their clients still
    /// have to give up what they hold. The others limit the same quantities as before.
    pub fn change_apps(&self, apps: impl IntoIterator<Item = (u64, ClientLimits)>) {
        let known = self.apps.load();
        let is_known =
            |(tag, _): &(u64, ClientLimits)| known.contains_key(&part(self.keys.tag(*tag)));
        self.set_apps(apps.into_iter().filter(is_known));
    }

    fn set_apps(&self, apps: impl IntoIterator<Item = (u64, ClientLimits)>) {
        let mut all = HashMap::clone(&self.apps.load());
        for (tag, limits) in apps {
            let key = self.keys.tag(tag);
            all.insert(part(key), limits);
            self.shard(key).apps.entry(part(key)).or_default().set_rates(&limits, 1);
        }
        self.apps.store(Arc::new(all));
    }

    /// Used rates of clients, for a process that takes over: in parts, one per shard.
    pub fn used_rates(&self, now_ms: u64, mut each: impl FnMut(&UsedRates)) {
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for (subject, quantity) in rates() {
                for rate in shard.rates_mut(subject, quantity) {
                    let used = UsedRates::of(rate, (subject, quantity), now_ms);
                    if !used.clients.is_empty() {
                        each(&used);
                    }
                }
            }
        }
    }

    /// Goes on with what clients have used of a rate in the process before. Without such a limit
    /// here, it is passed over.
    pub fn resume_rates(&self, used: &UsedRates, now_ms: u64) {
        if self.shards.is_empty() {
            return;
        }
        for &UsedRate { key, missing_ns } in &used.clients {
            let mut shard = self.shard(key);
            if let Some(rate) = shard.rate_mut((used.subject, used.quantity), key) {
                rate.miss(key, used.missing_at(rate.unit_ns(), missing_ns), now_ms);
            }
        }
    }

    /// Changes the limits to these, which limit the same quantities.
    ///
    /// # Errors
    ///
    /// [`OtherQuantities`] if not. Holdings are counted only where there is a limit, so a limit
    /// cannot begin while clients hold something. Nothing has changed then.
    pub fn change(&self, settings: LimitSettings) -> Result<(), OtherQuantities> {
        if !settings.limits_same(&self.settings()) {
            return Err(OtherQuantities);
        }
        self.settings.store(Arc::new(settings));
        for shard in &self.shards {
            shard.lock().unwrap_or_else(PoisonError::into_inner).set_rates(&settings);
        }
        Ok(())
    }

    fn settings(&self) -> LimitSettings {
        **self.settings.load()
    }

    /// True if an address has limits.
    pub fn limits_addresses(&self) -> bool {
        !self.settings().address.is_none()
    }

    /// True if a user has limits.
    pub(crate) fn limits_users(&self) -> bool {
        !self.settings().user.is_none()
    }

    /// True if an application has limits.
    pub(crate) fn limits_apps(&self) -> bool {
        !self.apps.load().is_empty()
    }

    /// True if a server key has limits.
    pub(crate) fn limits_keys(&self) -> bool {
        !self.settings().key.is_none()
    }

    fn limits_bad_tokens(&self) -> bool {
        self.settings().bad_tokens_per_s > 0
    }

    /// True if questions of an address are limited.
    pub fn limits_questions(&self) -> bool {
        self.settings().questions > 0
    }

    /// True if something is limited of an address until it is known who is there.
    pub(crate) fn limits_strangers(&self) -> bool {
        self.limits_bad_tokens() || self.limits_questions()
    }

    /// The limited parts of a client at an address.
    pub fn address(&self, address: Option<IpAddr>) -> ClientKeys {
        let limited = address.filter(|_| !self.settings().address.is_none());
        let address = limited.map(|address| self.keys.address(address));
        ClientKeys { address, ..ClientKeys::default() }
    }

    /// The limited parts of a client with a token of a user, by the user's tag.
    pub fn user(&self, tag: Option<u64>) -> ClientKeys {
        let limited = tag.filter(|_| !self.settings().user.is_none());
        ClientKeys { user: limited.map(|tag| self.keys.tag(tag)), ..ClientKeys::default() }
    }

    /// The limited parts of a client with a server key, by the key's tag.
    pub fn server_key(&self, tag: Option<u64>) -> ClientKeys {
        let limited = tag.filter(|_| !self.settings().key.is_none());
        ClientKeys { key: limited.map(|tag| self.keys.tag(tag)), ..ClientKeys::default() }
    }

    /// The limited parts of a client with these grants, which may be for the names of one
    /// application.
    pub(crate) fn confined(&self, grants: &Grants) -> ClientKeys {
        let tag = grants.within().and_then(|prefix| self.prefixes.get(prefix).copied());
        tag.map_or_else(ClientKeys::default, |tag| self.app(Some(tag)))
    }

    /// The limited parts of a client of an application, by the application's tag.
    pub fn app(&self, tag: Option<u64>) -> ClientKeys {
        let key = tag.map(|tag| self.keys.tag(tag));
        let app = key.filter(|key| self.apps.load().contains_key(&part(*key)));
        ClientKeys { app, ..ClientKeys::default() }
    }

    /// A new connection of the client, until [`Limiter::disconnect`].
    ///
    /// # Errors
    ///
    /// [`Refusal`] if it has too many, or connects too often.
    pub fn connect(&self, client: ClientKeys, now_ms: u64) -> Result<(), Refusal> {
        self.check(client, Quantity::Connects, 1, now_ms)?;
        self.acquire(client, Quantity::Connections, 1)?;
        self.charge(client, Quantity::Connects, 1, now_ms);
        Ok(())
    }

    /// Whether the client may have one more connection, for those that count only later, by
    /// [`Limiter::hold_connection`]. One that `is_new` counts in the rate at once.
    ///
    /// # Errors
    ///
    /// [`Refusal`] if it has too many, or connects too often.
    pub fn admit_connection(
        &self,
        client: ClientKeys,
        is_new: bool,
        now_ms: u64,
    ) -> Result<(), Refusal> {
        if is_new {
            self.check(client, Quantity::Connects, 1, now_ms)?;
        }
        for (subject, key, max) in self.limited(client, Quantity::Connections) {
            let held = self.shard(key).counts_mut(subject, Quantity::Connections).count(key);
            let elsewhere = self.elsewhere.amount(subject, Quantity::Connections, key);
            if held.saturating_add(elsewhere) >= max {
                return Err(self.refusal((subject, Quantity::Connections), None, held < max));
            }
        }
        if is_new {
            self.charge(client, Quantity::Connects, 1, now_ms);
        }
        Ok(())
    }

    /// As [`Limiter::connect`], for what is no new connection and counts as one.
    ///
    /// # Errors
    ///
    /// [`Refusal`] if the client has too many.
    pub fn hold_connection(&self, client: ClientKeys) -> Result<(), Refusal> {
        self.acquire(client, Quantity::Connections, 1)
    }

    /// A connection of the client from before, which another worker or process had: it counts
    /// whether there is room or not.
    pub fn resume_connection(&self, client: ClientKeys) {
        self.resume(client, Quantity::Connections, 1);
    }

    /// A connection that [`Limiter::connect`] let in has ended.
    pub fn disconnect(&self, client: ClientKeys) {
        self.release(client, Quantity::Connections, 1);
    }

    /// Further subscriptions of the client, until [`Limiter::unsubscribe`].
    ///
    /// # Errors
    ///
    /// [`Refusal`] if it would have too many.
    pub fn subscribe(&self, client: ClientKeys, count: u32) -> Result<(), Refusal> {
        self.acquire(client, Quantity::Subscriptions, count)
    }

    /// Subscriptions from before, which another worker or process had.
    pub fn resume_subscriptions(&self, client: ClientKeys, count: u32) {
        self.resume(client, Quantity::Subscriptions, count);
    }

    /// Subscriptions have ended.
    pub fn unsubscribe(&self, client: ClientKeys, count: u32) {
        self.release(client, Quantity::Subscriptions, count);
    }

    /// The client reads something, of which [`READ_BYTES_MIN`] are charged.
    ///
    /// # Errors
    ///
    /// [`Refusal`] if it reads too much.
    pub fn begin_reading(&self, client: ClientKeys, now_ms: u64) -> Result<(), Refusal> {
        if client.is_empty() {
            return Ok(());
        }
        let least = saturated(READ_BYTES_MIN);
        self.check(client, Quantity::ReadBytes, least, now_ms)?;
        self.charge(client, Quantity::ReadBytes, least, now_ms);
        Ok(())
    }

    /// The client reads `bytes`, of which the least is charged already.
    pub fn charge_read(&self, client: ClientKeys, bytes: usize, now_ms: u64) {
        let rest = saturated(bytes.saturating_sub(READ_BYTES_MIN));
        self.charge(client, Quantity::ReadBytes, rest, now_ms);
    }

    /// Whether a token of this address is worth verifying. Not so after too many with a bad
    /// signature.
    ///
    /// # Errors
    ///
    /// [`Refusal`] if not.
    pub(crate) fn may_verify(&self, address: Option<IpAddr>, now_ms: u64) -> Result<(), Refusal> {
        let Some(key) = self.bad_tokens_key(address) else { return Ok(()) };
        self.check_rate(Subject::Address, Quantity::BadTokens, key, (1, now_ms))
    }

    /// A token of this address had a bad signature.
    pub(crate) fn charge_bad_token(&self, address: Option<IpAddr>, now_ms: u64) {
        let Some(key) = self.bad_tokens_key(address) else { return };
        self.charge_rate((Subject::Address, Quantity::BadTokens), key, (1, now_ms));
    }

    /// A question about a client at this address is asked elsewhere, until
    /// [`Limiter::end_question`].
    ///
    /// # Errors
    ///
    /// [`Refusal`] if too many are open.
    pub(crate) fn begin_question(&self, address: Option<IpAddr>) -> Result<(), Refusal> {
        self.acquire(self.questioner(address), Quantity::Questions, 1)
    }

    /// A question is answered, or nobody waits for its answer any more.
    pub(crate) fn end_question(&self, address: Option<IpAddr>) {
        self.release(self.questioner(address), Quantity::Questions, 1);
    }

    fn questioner(&self, address: Option<IpAddr>) -> ClientKeys {
        let limited = address.filter(|_| self.limits_questions());
        let address = limited.map(|address| self.keys.address(address));
        ClientKeys { address, ..ClientKeys::default() }
    }

    /// How often clients were refused for this limit.
    pub fn refused(&self, subject: Subject, quantity: Quantity) -> u64 {
        self.refused[subject as usize][quantity as usize].load(Ordering::Relaxed)
    }

    /// How many clients hold connections, subscriptions or questions that are limited. For tests:
    /// it takes all locks, one after another.
    pub fn holders(&self) -> usize {
        let of_shard = |shard: &Mutex<Shard>| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let held = shard.clients.iter();
            held.map(|clients| clients.connections.len() + clients.subscriptions.len())
                .sum::<usize>()
                + shard.questions.len()
        };
        self.shards.iter().map(of_shard).sum()
    }

    /// How many connections or subscriptions the client with this one part holds. For tests.
    pub fn held(&self, client: ClientKeys, quantity: Quantity) -> u32 {
        let Some((subject, key)) = client.parts().next() else { return 0 };
        self.shard(key).counts_mut(subject, quantity).count(key)
    }

    fn bad_tokens_key(&self, address: Option<IpAddr>) -> Option<LimitKey> {
        let address = address.filter(|_| self.limits_bad_tokens())?;
        Some(self.keys.address(address))
    }

    /// The parts of a client of which `quantity` is limited, with their limits.
    fn limited(
        &self,
        client: ClientKeys,
        quantity: Quantity,
    ) -> impl Iterator<Item = (Subject, LimitKey, u32)> {
        let limit = move |(subject, key)| (subject, key, self.limit(subject, quantity, key));
        client.parts().map(limit).filter(|&(_, _, limit)| limit > 0)
    }

    /// The limit of a client; 0 for none.
    fn limit(&self, subject: Subject, quantity: Quantity, key: LimitKey) -> u32 {
        match subject {
            Subject::App => {
                self.apps.load().get(&part(key)).map_or(0, |limits| limits.limit(quantity))
            }
            _ => self.settings.load().limit(subject, quantity),
        }
    }

    fn acquire(&self, client: ClientKeys, quantity: Quantity, count: u32) -> Result<(), Refusal> {
        for (nth, (subject, key, max)) in self.limited(client, quantity).enumerate() {
            let left = max.saturating_sub(self.elsewhere.amount(subject, quantity, key));
            // One lock at a time, so that clients that share parts cannot wait for each other.
            let (acquired, held) = {
                let mut shard = self.shard(key);
                let counts = shard.counts_mut(subject, quantity);
                (counts.acquire(key, count, left), counts.count(key))
            };
            if acquired.is_err() {
                // The parts before have counted what nobody will release.
                for (subject, key, _) in self.limited(client, quantity).take(nth) {
                    self.shard(key).counts_mut(subject, quantity).release(key, count);
                }
                let is_for_others = held.saturating_add(count) <= max;
                return Err(self.refusal((subject, quantity), None, is_for_others));
            }
        }
        Ok(())
    }

    fn resume(&self, client: ClientKeys, quantity: Quantity, count: u32) {
        for (subject, key, _) in self.limited(client, quantity) {
            let mut shard = self.shard(key);
            let resumed = shard.counts_mut(subject, quantity).acquire(key, count, u32::MAX);
            debug_assert!(resumed.is_ok(), "more than a process can hold");
        }
    }

    fn release(&self, client: ClientKeys, quantity: Quantity, count: u32) {
        for (subject, key, max) in self.limited(client, quantity) {
            let mut shard = self.shard(key);
            let counts = shard.counts_mut(subject, quantity);
            self.elsewhere.frees(counts.count(key), max);
            counts.release(key, count);
        }
    }

    fn check(
        &self,
        client: ClientKeys,
        quantity: Quantity,
        units: u32,
        now_ms: u64,
    ) -> Result<(), Refusal> {
        self.limited(client, quantity).try_for_each(|(subject, key, _)| {
            self.check_rate(subject, quantity, key, (units, now_ms))
        })
    }

    /// Checks one rate, for a number of units at a time.
    fn check_rate(
        &self,
        subject: Subject,
        quantity: Quantity,
        key: LimitKey,
        (units, now_ms): (u32, u64),
    ) -> Result<(), Refusal> {
        let mut shard = self.shard(key);
        let Some(rate) = shard.rate_mut((subject, quantity), key) else { return Ok(()) };
        rate.check(key, units, now_ms).map_err(|TryLater { after_ms }| {
            let is_for_others = self.elsewhere.amount(subject, quantity, key) > 0;
            self.refusal((subject, quantity), Some(after_ms), is_for_others)
        })
    }

    fn charge(&self, client: ClientKeys, quantity: Quantity, units: u32, now_ms: u64) {
        for (subject, key, _) in self.limited(client, quantity) {
            self.charge_rate((subject, quantity), key, (units, now_ms));
        }
    }

    /// Counts a refusal. It `is_for_others` if the client would be admitted without its use on
    /// other nodes; of rates, if there was such use lately.
    fn refusal(
        &self,
        (subject, quantity): (Subject, Quantity),
        after_ms: Option<u64>,
        is_for_others: bool,
    ) -> Refusal {
        let count = |counts: &[[AtomicU64; Quantity::ALL.len()]; Subject::ALL.len()]| {
            counts[subject as usize][quantity as usize].fetch_add(1, Ordering::Relaxed)
        };
        count(&self.refused);
        if is_for_others {
            count(&self.refused_elsewhere);
        }
        Refusal { subject, quantity, after_ms }
    }

    /// The shard of a key. There is one, because a key is made only where there is a limit.
    fn shard(&self, key: LimitKey) -> MutexGuard<'_, Shard> {
        let shard = &self.shards[(key.0 >> (u64::BITS - SHARDS.ilog2())) as usize];
        // A panic within one of these short methods leaves counts that are wrong by one at most.
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
