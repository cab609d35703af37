//! Memory that many requests share, with a limit. When it is used up, the largest reservations are
//! evicted.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// A smaller reservation is never evicted.
const EVICTABLE_BYTES_MIN: u64 = 64 << 10;

/// A limit in bytes, and what is reserved of it.
#[derive(Debug)]
pub(crate) struct MemoryQuota {
    max_bytes: u64,
    state: Mutex<QuotaState>,
}

#[derive(Debug, Default)]
struct QuotaState {
    bytes: u64,
    /// The part of `bytes` that has been evicted and not released yet.
    evicted_bytes: u64,
    /// The number of the newest reservation.
    newest: u64,
    /// Reservations that may be evicted; the last entry goes first.
    evictable: BTreeMap<EvictionRank, Evictable>,
}

#[derive(Debug)]
struct Evictable {
    bytes: u64,
    signal: Arc<EvictionSignal>,
}

/// Orders reservations for eviction: larger ones, by powers of two, rank higher, and among equals
/// the older.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct EvictionRank {
    size_class: u32,
    number: Reverse<u64>,
}

/// Tells the owner of a reservation that it has been evicted.
#[derive(Debug, Default)]
pub(crate) struct EvictionSignal {
    is_evicted: AtomicBool,
    notify: Notify,
}

impl EvictionSignal {
    fn set(&self) {
        self.is_evicted.store(true, Ordering::SeqCst);
        self.notify.notify_waiters();
    }

    /// Waits for the eviction; ready at once if there was one.
    pub(crate) async fn wait(&self) {
        // Created before the check, so that it does not miss an eviction after the check.
        let notified = self.notify.notified();
        if !self.is_evicted.load(Ordering::SeqCst) {
            notified.await;
        }
    }
}

impl MemoryQuota {
    pub(crate) fn new(max_bytes: u64) -> MemoryQuota {
        MemoryQuota { max_bytes, state: Mutex::default() }
    }

    /// Reserved bytes. May exceed the limit while evicted reservations are released.
    pub(crate) fn bytes(&self) -> u64 {
        self.state().bytes
    }

    fn state(&self) -> MutexGuard<'_, QuotaState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The share of one request in a quota; released when dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    quota: Arc<MemoryQuota>,
    /// Tells reservations of one size apart: they are numbered by age.
    number: u64,
    bytes: u64,
    /// Signals the eviction; `None` if the reservation is pinned.
    signal: Option<Arc<EvictionSignal>>,
    /// The key in `State::evictable`. The entry is removed on eviction, the key stays here.
    rank: Option<EvictionRank>,
}

impl Reservation {
    /// An empty reservation. It is pinned: it is not evicted.
    pub(crate) fn new(quota: &Arc<MemoryQuota>) -> Reservation {
        let mut state = quota.state();
        state.newest += 1;
        let number = state.newest;
        drop(state);
        Reservation { quota: Arc::clone(quota), number, bytes: 0, signal: None, rank: None }
    }

    /// Allows the reservation to be evicted, which `signal` announces.
    pub(crate) fn set_evictable(&mut self, signal: &Arc<EvictionSignal>) {
        self.signal = Some(Arc::clone(signal));
        let quota = Arc::clone(&self.quota);
        self.set_bytes(&mut quota.state(), self.bytes);
    }

    /// Excludes the reservation from further evictions. Has no effect after an eviction.
    pub(crate) fn pin(&mut self) {
        let quota = Arc::clone(&self.quota);
        let mut state = quota.state();
        if self.is_evicted(&state) {
            return;
        }
        self.signal = None;
        if let Some(rank) = self.rank.take() {
            state.evictable.remove(&rank);
        }
    }

    /// True if it was evicted. Its bytes count as evicted until it is dropped.
    fn is_evicted(&self, state: &QuotaState) -> bool {
        self.rank.is_some_and(|rank| !state.evictable.contains_key(&rank))
    }

    /// Reserves `bytes` more, and evicts others if the limit requires it. Fails if this reservation
    /// was evicted, or if all others that may be evicted are smaller than it.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        self.grow_within(bytes, self.quota.max_bytes)
    }

    /// Like [`grow`](Reservation::grow), but `bytes` alone may exceed the limit.
    pub(crate) fn grow_oversized(&mut self, bytes: usize) -> bool {
        self.grow_within(bytes, self.quota.max_bytes.max(bytes as u64))
    }

    fn grow_within(&mut self, bytes: usize, max_bytes: u64) -> bool {
        let quota = Arc::clone(&self.quota);
        let mut state = quota.state();
        if self.is_evicted(&state) {
            return false;
        }
        let bytes = self.bytes + bytes as u64;
        while state.bytes - state.evicted_bytes - self.bytes + bytes > max_bytes {
            if !state.evict(size_class(bytes), self.number) {
                return false;
            }
        }
        self.set_bytes(&mut state, bytes);
        true
    }

    /// Sets the size, without regard to the limit.
    pub(crate) fn resize(&mut self, bytes: usize) {
        let quota = Arc::clone(&self.quota);
        self.set_bytes(&mut quota.state(), bytes as u64);
    }

    fn set_bytes(&mut self, state: &mut QuotaState, bytes: u64) {
        let is_evicted = self.is_evicted(state);
        if is_evicted {
            state.evicted_bytes = state.evicted_bytes - self.bytes + bytes;
        } else if let Some(rank) = self.rank.take() {
            state.evictable.remove(&rank);
        }
        state.bytes = state.bytes - self.bytes + bytes;
        self.bytes = bytes;
        debug_assert!(state.evicted_bytes <= state.bytes, "{state:?}");
        let is_evictable = !is_evicted && bytes >= EVICTABLE_BYTES_MIN;
        if let Some(signal) = self.signal.as_ref().filter(|_| is_evictable) {
            let rank = EvictionRank { size_class: size_class(bytes), number: Reverse(self.number) };
            state.evictable.insert(rank, Evictable { bytes, signal: Arc::clone(signal) });
            self.rank = Some(rank);
        }
    }
}

/// The number of bits of `bytes`.
fn size_class(bytes: u64) -> u32 {
    u64::BITS - bytes.leading_zeros()
}

impl QuotaState {
    /// Evicts the reservation of the highest rank other than `own`, if its size class is at least
    /// `size_class_min`. Returns whether there was one.
    fn evict(&mut self, size_class_min: u32, own: u64) -> bool {
        let highest = self.evictable.keys().rev().find(|rank| rank.number.0 != own).copied();
        let Some(rank) = highest.filter(|rank| rank.size_class >= size_class_min) else {
            return false;
        };
        let Some(Evictable { bytes, signal }) = self.evictable.remove(&rank) else { return false };
        signal.set();
        self.evicted_bytes += bytes;
        true
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.resize(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: usize = 64 << 10;

    fn quota(units: usize) -> Arc<MemoryQuota> {
        Arc::new(MemoryQuota::new((units * UNIT) as u64))
    }

    fn reserve(quota: &Arc<MemoryQuota>, units: usize) -> (Reservation, Arc<EvictionSignal>) {
        let (mut reservation, signal) = (Reservation::new(quota), Arc::default());
        assert!(reservation.grow(units * UNIT), "{units}");
        reservation.set_evictable(&signal);
        (reservation, signal)
    }

    fn is_evicted(signal: &EvictionSignal) -> bool {
        signal.is_evicted.load(Ordering::SeqCst)
    }

    fn expect_unused(quota: &MemoryQuota) {
        let state = quota.state();
        assert_eq!((state.bytes, state.evicted_bytes, state.evictable.len()), (0, 0, 0));
    }

    #[test]
    fn reservations_share_the_limit_and_are_released_when_dropped() {
        let quota = Arc::new(MemoryQuota::new(10));
        let mut first = Reservation::new(&quota);
        let mut second = Reservation::new(&quota);
        assert!(first.grow(6));
        assert!(!second.grow(5));
        assert!(second.grow(4));
        assert!(!first.grow(1));
        first.resize(2);
        assert_eq!(quota.bytes(), 6);
        first.resize(20);
        assert_eq!(quota.bytes(), 24);
        drop(first);
        assert_eq!(quota.bytes(), 4);
        drop(second);
        assert_eq!(quota.bytes(), 0);
    }

    #[test]
    fn only_a_reservation_of_its_own_may_exceed_the_limit() {
        let quota = Arc::new(MemoryQuota::new(10));
        let (mut first, mut second) = (Reservation::new(&quota), Reservation::new(&quota));
        assert!(!first.grow(11));
        assert!(first.grow_oversized(11));
        assert!(!second.grow_oversized(1));
    }

    #[test]
    fn the_largest_is_evicted_first_and_of_equals_the_oldest() {
        let quota = quota(10);
        let (small, small_signal) = reserve(&quota, 1);
        let (first, first_signal) = reserve(&quota, 4);
        let (second, second_signal) = reserve(&quota, 5);
        let (third, third_signal) = reserve(&quota, 1);
        let evicted =
            [&first_signal, &second_signal, &small_signal].map(|signal| is_evicted(signal));
        assert_eq!(evicted, [true, false, false]);
        assert_eq!(quota.bytes(), 11 * UNIT as u64, "the evicted one is not released yet");
        let (fourth, fourth_signal) = reserve(&quota, 3);
        let evicted = [&second_signal, &third_signal].map(|signal| is_evicted(signal));
        assert_eq!(evicted, [false, false], "evicted bytes do not count against the limit");
        let mut large = Reservation::new(&quota);
        assert!(!large.grow(8 * UNIT), "all others are smaller");
        let (fifth, _) = reserve(&quota, 4);
        let evicted =
            [&second_signal, &fourth_signal, &small_signal].map(|signal| is_evicted(signal));
        assert_eq!(evicted, [true, false, false]);
        drop((small, first, second, third, fourth, fifth, large));
        expect_unused(&quota);
    }

    #[test]
    fn pinned_and_small_reservations_are_not_evicted() {
        let quota = quota(10);
        let (mut pinned, pinned_signal) = reserve(&quota, 6);
        pinned.pin();
        let mut small = Reservation::new(&quota);
        assert!(small.grow(UNIT - 1));
        small.set_evictable(&pinned_signal);
        let mut other = Reservation::new(&quota);
        assert!(!other.grow(4 * UNIT));
        assert!(other.grow(3 * UNIT));
        assert!(!is_evicted(&pinned_signal));
        drop((pinned, small, other));
        expect_unused(&quota);
    }

    #[test]
    fn an_evicted_reservation_that_is_pinned_is_released() {
        let quota = quota(10);
        let (mut evicted, signal) = reserve(&quota, 9);
        let (other, _) = reserve(&quota, 9);
        assert!(is_evicted(&signal));
        assert!(!evicted.grow(UNIT), "an evicted reservation cannot grow");
        evicted.pin();
        drop((evicted, other));
        expect_unused(&quota);
    }

    #[tokio::test]
    async fn the_signal_wakes_waiters_and_stays_set() {
        let signal = Arc::new(EvictionSignal::default());
        let waiting = tokio::spawn({
            let signal = Arc::clone(&signal);
            async move { signal.wait().await }
        });
        tokio::task::yield_now().await;
        signal.set();
        waiting.await.expect("the wait ends");
        signal.wait().await;
    }
}
