//! When a key set at a URL is read again.
//!
//! The set is read at the start, whenever its lifetime is over, and when a token names a key that
//! it lacks, because issuers begin to sign with a new key at any time. Tokens come from anybody, so
//! whatever they name, they cause at most one request in [`REFETCH_MS_MIN`]. While the URL is down
//! the last good set stays in use.
//!
//! No I/O and no clock: the owner asks when a fetch is due, fetches, and reports what came of it.

/// The shortest time between two fetches that tokens with unknown keys cause.
pub(crate) const REFETCH_MS_MIN: u64 = 30_000;

/// The first pause after a failure; it doubles with each further one, up to the lifetime of a set.
const RETRY_MS_MIN: u64 = 1_000;

/// How long a set is used before it is read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefreshSettings {
    /// The lifetime of a set whose response names none.
    pub lifetime_ms: u64,
    /// The bounds of lifetimes that responses name (`Cache-Control: max-age`).
    pub min_lifetime_ms: u64,
    /// The longest lifetime that a response may name.
    pub max_lifetime_ms: u64,
}

impl Default for RefreshSettings {
    fn default() -> RefreshSettings {
        RefreshSettings {
            lifetime_ms: 10 * 60_000,
            min_lifetime_ms: 60_000,
            max_lifetime_ms: 24 * 60 * 60_000,
        }
    }
}

/// The next step for a token whose key is not in the set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    /// A newer set is on its way: decide when it is here.
    Wait,
    /// The set was read just now, and lacks the key: refuse the token.
    Refuse,
    /// The set could not be read: refuse for now (503), and let the client come back after this
    /// time.
    Unavailable {
        /// Until the next attempt, in milliseconds.
        retry_ms: u64,
    },
}

/// Decides when to fetch one key set.
#[derive(Debug)]
pub struct Refresh {
    settings: RefreshSettings,
    /// When the next fetch is due.
    due_ms: u64,
    /// When the newest fetch began; `None` before the first.
    began_ms: Option<u64>,
    is_fetching: bool,
    /// Failed fetches since the last good one.
    failures: u32,
    /// When the set in use was fetched.
    good_ms: Option<u64>,
}

impl Refresh {
    /// Begins with a fetch that is due at once.
    pub fn new(settings: RefreshSettings, now_ms: u64) -> Refresh {
        Refresh {
            settings,
            due_ms: now_ms,
            began_ms: None,
            is_fetching: false,
            failures: 0,
            good_ms: None,
        }
    }

    /// When to call [`Refresh::begin`]; `None` while a fetch is under way.
    pub fn due_ms(&self) -> Option<u64> {
        (!self.is_fetching).then_some(self.due_ms)
    }

    /// True if it is time to fetch. If so, the owner reports with [`Refresh::succeeded`] or
    /// [`Refresh::failed`], and gives each fetch a deadline.
    pub fn begin(&mut self, now_ms: u64) -> bool {
        if self.is_fetching || now_ms < self.due_ms {
            return false;
        }
        self.is_fetching = true;
        self.began_ms = Some(now_ms);
        true
    }

    /// A token names a key that the set lacks. Makes a fetch due if there was none for
    /// [`REFETCH_MS_MIN`].
    pub(crate) fn unknown_key(&mut self, now_ms: u64) -> Unknown {
        if self.is_fetching || self.due_ms <= now_ms {
            return Unknown::Wait;
        }
        let is_recent = self.began_ms.is_some_and(|began| now_ms < began + REFETCH_MS_MIN);
        if !is_recent {
            self.due_ms = now_ms;
            return Unknown::Wait;
        }
        if self.failures == 0 {
            return Unknown::Refuse;
        }
        Unknown::Unavailable { retry_ms: self.due_ms - now_ms }
    }

    /// The set was fetched and is in use. `lifetime_ms` is what the response names.
    pub fn succeeded(&mut self, now_ms: u64, lifetime_ms: Option<u64>) {
        debug_assert!(self.is_fetching, "a result without a fetch");
        let RefreshSettings { lifetime_ms: usual_ms, min_lifetime_ms, max_lifetime_ms } =
            self.settings;
        let bounded = |named_ms: u64| named_ms.clamp(min_lifetime_ms, max_lifetime_ms);
        self.is_fetching = false;
        self.failures = 0;
        self.good_ms = Some(now_ms);
        self.due_ms = now_ms + lifetime_ms.map_or(usual_ms, bounded);
    }

    /// The set could not be fetched, or is no key set. The last good one stays in use.
    pub fn failed(&mut self, now_ms: u64) {
        debug_assert!(self.is_fetching, "a result without a fetch");
        self.is_fetching = false;
        let doubled = RETRY_MS_MIN << self.failures.min(20);
        self.failures = self.failures.saturating_add(1);
        self.due_ms = now_ms + doubled.min(self.settings.lifetime_ms);
    }

    /// How old the set in use is; `None` if there never was one. For the status page: a growing age
    /// says that the URL is down.
    pub(crate) fn age_ms(&self, now_ms: u64) -> Option<u64> {
        self.good_ms.map(|good| now_ms.saturating_sub(good))
    }

    /// Failed fetches since the last good one.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIFETIME_MS: u64 = 600_000;

    fn fetched(now_ms: u64) -> Refresh {
        let mut refresh = Refresh::new(RefreshSettings::default(), now_ms);
        assert!(refresh.begin(now_ms));
        refresh.succeeded(now_ms, None);
        refresh
    }

    #[test]
    fn a_set_is_read_at_the_start_and_after_its_lifetime() {
        let mut refresh = Refresh::new(RefreshSettings::default(), 5);
        assert_eq!((refresh.due_ms(), refresh.age_ms(5)), (Some(5), None));
        assert!(refresh.begin(5));
        assert_eq!(refresh.due_ms(), None);
        assert!(!refresh.begin(6), "one at a time");
        refresh.succeeded(10, None);
        assert_eq!(refresh.due_ms(), Some(10 + LIFETIME_MS));
        assert_eq!(refresh.age_ms(15), Some(5));
        assert!(!refresh.begin(9 + LIFETIME_MS));
        assert!(refresh.begin(10 + LIFETIME_MS));
        refresh.succeeded(LIFETIME_MS, Some(90_000));
        assert_eq!(refresh.due_ms(), Some(LIFETIME_MS + 90_000));
    }

    #[test]
    fn a_named_lifetime_has_bounds() {
        for (named_ms, expected_ms) in [(0, 60_000), (u64::MAX, 24 * 60 * 60_000)] {
            let mut refresh = Refresh::new(RefreshSettings::default(), 0);
            assert!(refresh.begin(0));
            refresh.succeeded(0, Some(named_ms));
            assert_eq!(refresh.due_ms(), Some(expected_ms));
        }
    }

    #[test]
    fn an_unknown_key_makes_one_fetch_due() {
        let mut refresh = fetched(0);
        assert_eq!(refresh.unknown_key(1), Unknown::Refuse, "the set is new");
        assert_eq!(refresh.unknown_key(REFETCH_MS_MIN - 1), Unknown::Refuse);
        assert_eq!(refresh.unknown_key(REFETCH_MS_MIN), Unknown::Wait);
        assert!(refresh.begin(REFETCH_MS_MIN));
        assert_eq!(refresh.unknown_key(REFETCH_MS_MIN + 1), Unknown::Wait);
        refresh.succeeded(REFETCH_MS_MIN + 2, None);
        assert_eq!(refresh.unknown_key(REFETCH_MS_MIN + 3), Unknown::Refuse);
    }

    #[test]
    fn failures_are_retried_ever_later() {
        let mut refresh = Refresh::new(RefreshSettings::default(), 0);
        let mut now_ms = 0;
        let mut pauses = Vec::new();
        for _ in 0..12 {
            assert!(refresh.begin(now_ms));
            refresh.failed(now_ms);
            let due_ms = refresh.due_ms().unwrap();
            pauses.push((due_ms - now_ms) / 1000);
            now_ms = due_ms;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]);
        assert_eq!(
            refresh.unknown_key(now_ms - 600_000 + 1),
            Unknown::Unavailable { retry_ms: 599_999 }
        );
        assert_eq!(refresh.failures(), 12);
        assert!(refresh.begin(now_ms));
        refresh.succeeded(now_ms, None);
        assert_eq!(refresh.unknown_key(now_ms), Unknown::Refuse);
    }

    proptest! {
        /// With any named keys and any results: two fetches that are not retries are at least the
        /// refetch time apart.
        #[test]
        fn tokens_cause_one_fetch_in_thirty_seconds(
            steps in prop::collection::vec((0..20_000_u64, any::<bool>()), 0..300),
        ) {
            let mut now_ms = 1_000_000;
            let mut refresh = fetched(now_ms);
            let mut began = vec![now_ms];
            for (pause_ms, asks) in steps {
                now_ms += pause_ms;
                if asks {
                    refresh.unknown_key(now_ms);
                }
                if refresh.begin(now_ms) {
                    began.push(now_ms);
                    refresh.succeeded(now_ms, None);
                }
            }
            prop_assert!(began.windows(2).all(|pair| pair[1] - pair[0] >= REFETCH_MS_MIN));
        }
    }
}
