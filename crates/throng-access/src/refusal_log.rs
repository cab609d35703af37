//! Tells the operator about refused clients: one warning for each cause and minute.
//!
//! A page of the wrong origin, an application with the wrong secret and a proxy behind which all
//! clients share an address look alike from outside: nothing works, and a browser hides the reason.
//! The log has the sentence that the client got.
//!
//! Both planes use the same table. It is looked at for refusals only, has a fixed size and no text
//! of clients.

use std::hash::{BuildHasher as _, Hash as _, Hasher as _};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};

use foldhash::fast::RandomState;
use throng_wire::{ErrorCode, ErrorResponse};

/// How long further refusals of a cause are only counted.
const QUIET_MS: u64 = 60_000;

/// Causes that have a warning of their own within a minute. Those beyond it share one: whoever
/// makes up origins does not fill the disk.
const CAUSES_MAX: usize = 64;

/// Characters of a sentence that are logged. It may repeat a header of the client.
const SENTENCE_CHARS_MAX: usize = 300;

/// The key by which causes of one code differ.
enum Distinction {
    /// Nothing does: the sentence names a channel or a path.
    None,
    /// The origin, the host or the flaw that the sentence names.
    Sentence,
    /// The sentence, and the address of the client.
    Address,
}

/// How refusals with this code are told apart. `None` for codes that are no news for an operator:
/// mistakes in a single request, and what belongs to a shutdown.
fn distinction(code: ErrorCode) -> Option<Distinction> {
    match code {
        ErrorCode::OriginRefused
        | ErrorCode::HostRefused
        | ErrorCode::InvalidToken
        | ErrorCode::TokenExpired
        | ErrorCode::TokenRevoked => Some(Distinction::Sentence),
        ErrorCode::TooManyRequests => Some(Distinction::Address),
        ErrorCode::ForwardedRefused
        | ErrorCode::Unauthorized
        | ErrorCode::Forbidden
        | ErrorCode::UpgradeRequired
        | ErrorCode::Full
        | ErrorCode::Busy => Some(Distinction::None),
        _ => None,
    }
}

/// The client of a refusal, as far as it is known.
#[derive(Debug, Default)]
pub struct RefusedClient {
    pub address: Option<IpAddr>,
    /// The id of the application that it names, if the server has it.
    pub app: Option<Box<str>>,
}

/// The refusals of one process that have been logged lately.
#[derive(Debug, Default)]
pub struct RefusalLog {
    state: Mutex<State>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct State {
    causes: Vec<Cause>,
    /// The causes that found no room.
    others: Cause,
}

#[derive(Debug, Default, Clone, Copy)]
struct Cause {
    hash: u64,
    /// When it was logged last, in milliseconds; `None`: not yet.
    logged_ms: Option<u64>,
    /// Refusals that were not logged since.
    suppressed: u64,
}

impl Cause {
    fn is_quiet(&self, now_ms: u64) -> bool {
        self.logged_ms.is_some_and(|logged_ms| now_ms.saturating_sub(logged_ms) < QUIET_MS)
    }

    /// Counts a refusal. Returns the number of those before it that were not logged, if this one is
    /// to be.
    fn count(&mut self, now_ms: u64) -> Option<u64> {
        if self.is_quiet(now_ms) {
            self.suppressed += 1;
            return None;
        }
        self.logged_ms = Some(now_ms);
        Some(std::mem::take(&mut self.suppressed))
    }
}

/// A line for the log.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    /// A refusal, and how many of the same cause were not logged before it.
    Cause(u64),
    /// Refusals of causes that found no room.
    Others(u64),
}

impl RefusalLog {
    /// Logs that a client was refused with `error`, unless the same cause was logged within a
    /// minute. `client` is called only for what may be logged. `now_ms` must not go back.
    pub fn note(&self, error: &ErrorResponse, client: impl FnOnce() -> RefusedClient, now_ms: u64) {
        let Some(distinction) = distinction(error.code) else { return };
        self.tell((error.code.name(), &error.message), &distinction, client(), now_ms);
    }

    /// As [`RefusalLog::note`], for a TLS handshake that has failed, as `sentence` says.
    pub fn note_handshake(
        &self,
        sentence: &'static str,
        address: impl FnOnce() -> Option<IpAddr>,
        now_ms: u64,
    ) {
        let client = RefusedClient { address: address(), app: None };
        self.tell(("tls", sentence), &Distinction::Sentence, client, now_ms);
    }

    fn tell(
        &self,
        (code, sentence): (&'static str, &str),
        distinction: &Distinction,
        RefusedClient { address, app }: RefusedClient,
        now_ms: u64,
    ) {
        let address = address.map(prefix);
        let mut hasher = self.hasher.build_hasher();
        (code, &app).hash(&mut hasher);
        if !matches!(distinction, Distinction::None) {
            sentence.hash(&mut hasher);
        }
        if matches!(distinction, Distinction::Address) {
            address.hash(&mut hasher);
        }
        let Some(told) = self.count(hasher.finish(), now_ms) else { return };
        let sentence = printable(sentence);
        let address = address.map(|(address, bits)| match bits {
            None => address.to_string(),
            Some(bits) => format!("{address}/{bits}"),
        });
        let [address, app] =
            [address, app.map(String::from)].map(|it| it.map(tracing::field::display));
        match told {
            Told::Cause(suppressed) => {
                let suppressed = (suppressed > 0).then_some(suppressed);
                tracing::warn!(code, app, address, suppressed, "refused: {sentence}");
            }
            Told::Others(suppressed) => tracing::warn!(
                code,
                app,
                address,
                suppressed,
                "refused, for more than {CAUSES_MAX} causes within a minute: {sentence}"
            ),
        }
    }

    fn count(&self, hash: u64, now_ms: u64) -> Option<Told> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { causes, others } = &mut *state;
        if let Some(cause) = causes.iter_mut().find(|cause| cause.hash == hash) {
            return cause.count(now_ms).map(Told::Cause);
        }
        let new = Cause { hash, logged_ms: Some(now_ms), suppressed: 0 };
        if causes.len() < CAUSES_MAX {
            causes.push(new);
        } else if let Some(old) = causes.iter_mut().find(|cause| !cause.is_quiet(now_ms)) {
            *old = new;
        } else {
            return others.count(now_ms).map(Told::Others);
        }
        Some(Told::Cause(0))
    }
}

/// The address as limits know it, which of IPv6 is the first 64 bits.
fn prefix(address: IpAddr) -> (IpAddr, Option<u8>) {
    match address.to_canonical() {
        IpAddr::V4(address) => (address.into(), None),
        IpAddr::V6(address) if address.is_loopback() => (address.into(), None),
        IpAddr::V6(address) => {
            (Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(), Some(64))
        }
    }
}

fn printable(sentence: &str) -> String {
    let chars = sentence.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c });
    chars.take(SENTENCE_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once_a_minute_with_the_number_since() {
        let log = RefusalLog::default();
        assert_eq!(log.count(7, 0), Some(Told::Cause(0)));
        assert_eq!(log.count(8, 1), Some(Told::Cause(0)));
        for now_ms in [1, 2, QUIET_MS - 1] {
            assert_eq!(log.count(7, now_ms), None);
        }
        assert_eq!(log.count(7, QUIET_MS), Some(Told::Cause(3)));
        assert_eq!(log.count(7, QUIET_MS + 1), None);
    }

    #[test]
    fn the_table_is_bounded_and_the_rest_shares_a_warning() {
        let log = RefusalLog::default();
        for hash in 0..CAUSES_MAX as u64 {
            assert_eq!(log.count(hash, 0), Some(Told::Cause(0)));
        }
        assert_eq!(log.count(1000, 5), Some(Told::Others(0)));
        for hash in 1001..1010 {
            assert_eq!(log.count(hash, 6), None);
        }
        assert_eq!(log.state.lock().unwrap().causes.len(), CAUSES_MAX);
        // The place of a cause that has been quiet for a minute is free.
        assert_eq!(log.count(2000, QUIET_MS), Some(Told::Cause(0)));
        for hash in 1..CAUSES_MAX as u64 {
            log.count(hash, QUIET_MS);
        }
        assert_eq!(log.count(3000, QUIET_MS + 5), Some(Told::Others(9)));
    }

    #[test]
    fn addresses_are_told_as_limits_know_them() {
        let told = |text: &str| prefix(text.parse().unwrap());
        assert_eq!(told("192.0.2.7"), ("192.0.2.7".parse().unwrap(), None));
        assert_eq!(told("::ffff:192.0.2.7"), ("192.0.2.7".parse().unwrap(), None));
        assert_eq!(told("2001:db8::1:2:3:4"), ("2001:db8::".parse().unwrap(), Some(64)));
        assert_eq!(printable("a\nb"), "a\u{fffd}b");
    }
}
