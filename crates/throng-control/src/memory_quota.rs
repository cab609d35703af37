//! Memory that many requests share, with a limit. When it is used up, what holds most gives way.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// What holds less than this never gives way.
const FLOOR_BYTES: u64 = 64 << 10;

/// A level in bytes, and who makes it up.
#[derive(Debug, Default)]
pub(crate) struct Pot(Mutex<Level>);

#[derive(Debug, Default)]
struct Level {
    bytes: u64,
    /// Of these, what has been told to give way and has not done so yet.
    leaving_bytes: u64,
    next_number: u64,
    /// What may be told to give way; the last one first.
    movable: BTreeMap<Place, Movable>,
}

/// What holds `bytes` until it is told not to.
#[derive(Debug)]
struct Movable {
    bytes: u64,
    cut: Arc<Cut>,
}

/// The larger, to a power of two, comes later, and among equals the older.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    size: u32,
    number: Reverse<u64>,
}

/// Tells somebody to give way.
#[derive(Debug, Default)]
pub(crate) struct Cut {
    is_cut: AtomicBool,
    notify: Notify,
}

impl Cut {
    fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
        self.notify.notify_waiters();
    }

    /// Ready once it is told.
    pub(crate) async fn wait(&self) {
        let notified = self.notify.notified();
        if !self.is_cut.load(Ordering::SeqCst) {
            notified.await;
        }
    }
}

impl Pot {
    /// Bytes in all.
    pub(crate) fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    fn lock(&self) -> MutexGuard<'_, Level> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one request takes of a pot; given back when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    pot: Arc<Pot>,
    number: u64,
    bytes: u64,
    /// Whom to tell, if it may have to give way.
    cut: Option<Arc<Cut>>,
    /// Its place among those that have not been told.
    place: Option<Place>,
}

impl Share {
    /// Nothing yet. It stays for as long as it likes.
    pub(crate) fn of(pot: &Arc<Pot>) -> Share {
        let mut level = pot.lock();
        level.next_number += 1;
        let number = level.next_number;
        drop(level);
        Share { pot: Arc::clone(pot), number, bytes: 0, cut: None, place: None }
    }

    /// From now on it may have to give way: `cut` tells.
    pub(crate) fn set_movable(&mut self, cut: &Arc<Cut>) {
        self.cut = Some(Arc::clone(cut));
        let pot = Arc::clone(&self.pot);
        self.put(&mut pot.lock(), self.bytes);
    }

    /// From now on it stays, unless it was told before.
    pub(crate) fn set_fixed(&mut self) {
        let pot = Arc::clone(&self.pot);
        let mut level = pot.lock();
        if self.was_told(&level) {
            return;
        }
        self.cut = None;
        if let Some(place) = self.place.take() {
            level.movable.remove(&place);
        }
    }

    /// Whether it has been told to give way. What it holds counts as leaving, until it is dropped.
    fn was_told(&self, level: &Level) -> bool {
        self.place.is_some_and(|place| !level.movable.contains_key(&place))
    }

    /// Takes more, unless it was told to give way, or the pot would hold more than `max` and
    /// nothing larger can give way.
    pub(crate) fn grow_within(&mut self, bytes: usize, max: u64) -> bool {
        let pot = Arc::clone(&self.pot);
        let mut level = pot.lock();
        if self.was_told(&level) {
            return false;
        }
        let bytes = self.bytes + bytes as u64;
        while level.bytes - level.leaving_bytes - self.bytes + bytes > max {
            if !level.make_room(size_of_place(bytes), self.number) {
                return false;
            }
        }
        self.put(&mut level, bytes);
        true
    }

    /// Corrects what was taken for less or more.
    pub(crate) fn settle(&mut self, bytes: usize) {
        let pot = Arc::clone(&self.pot);
        self.put(&mut pot.lock(), bytes as u64);
    }

    /// Holds `bytes` from now on.
    fn put(&mut self, level: &mut Level, bytes: u64) {
        let was_told = self.was_told(level);
        if was_told {
            level.leaving_bytes = level.leaving_bytes - self.bytes + bytes;
        } else if let Some(place) = self.place.take() {
            level.movable.remove(&place);
        }
        level.bytes = level.bytes - self.bytes + bytes;
        self.bytes = bytes;
        if let Some(cut) = self.cut.as_ref().filter(|_| !was_told && bytes >= FLOOR_BYTES) {
            let place = Place { size: size_of_place(bytes), number: Reverse(self.number) };
            level.movable.insert(place, Movable { bytes, cut: Arc::clone(cut) });
            self.place = Some(place);
        }
    }
}

/// How many bits so many bytes have.
fn size_of_place(bytes: u64) -> u32 {
    u64::BITS - bytes.leading_zeros()
}

impl Level {
    /// Tells the largest to give way, but for `own`, if it is no smaller than `size`. Returns
    /// whether there was one.
    fn make_room(&mut self, size: u32, own: u64) -> bool {
        let largest = self.movable.keys().rev().find(|place| place.number.0 != own).copied();
        let Some(place) = largest.filter(|place| place.size >= size) else { return false };
        let Some(Movable { bytes, cut }) = self.movable.remove(&place) else { return false };
        cut.cut();
        self.leaving_bytes += bytes;
        true
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.settle(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: usize = 64 << 10;
    const MAX: u64 = 10 * UNIT as u64;

    fn share(pot: &Arc<Pot>, units: usize) -> (Share, Arc<Cut>) {
        let (mut share, cut) = (Share::of(pot), Arc::new(Cut::default()));
        assert!(share.grow_within(units * UNIT, MAX), "{units}");
        share.set_movable(&cut);
        (share, cut)
    }

    fn is_cut(cut: &Cut) -> bool {
        cut.is_cut.load(Ordering::SeqCst)
    }

    #[test]
    fn shares_are_given_back() {
        let pot = Arc::new(Pot::default());
        let mut first = Share::of(&pot);
        let mut second = Share::of(&pot);
        assert!(first.grow_within(6, 10));
        assert!(!second.grow_within(5, 10));
        assert!(second.grow_within(4, 10));
        assert!(!first.grow_within(1, 10));
        first.settle(2);
        assert_eq!(pot.bytes(), 6);
        first.settle(20);
        assert_eq!(pot.bytes(), 24);
        drop(first);
        assert_eq!(pot.bytes(), 4);
        drop(second);
        assert_eq!(pot.bytes(), 0);
    }

    #[test]
    fn the_largest_gives_way_and_among_equals_the_oldest() {
        let pot = Arc::new(Pot::default());
        let (small, small_cut) = share(&pot, 1);
        let (first, first_cut) = share(&pot, 4);
        let (second, second_cut) = share(&pot, 5);
        let (third, third_cut) = share(&pot, 1);
        assert!(is_cut(&first_cut) && !is_cut(&second_cut) && !is_cut(&small_cut));
        assert_eq!(pot.bytes(), 11 * UNIT as u64, "it has not gone yet");
        let (fourth, fourth_cut) = share(&pot, 3);
        assert!(!is_cut(&second_cut) && !is_cut(&third_cut), "its room is taken already");
        let mut large = Share::of(&pot);
        assert!(!large.grow_within(8 * UNIT, MAX), "nothing is as large");
        let (fifth, _) = share(&pot, 4);
        assert!(is_cut(&second_cut) && !is_cut(&fourth_cut) && !is_cut(&small_cut));
        drop((small, first, second, third, fourth, fifth, large));
        let level = pot.lock();
        assert_eq!((level.bytes, level.leaving_bytes, level.movable.len()), (0, 0, 0));
    }

    #[test]
    fn what_is_fixed_or_small_stays() {
        let pot = Arc::new(Pot::default());
        let (mut fixed, fixed_cut) = share(&pot, 6);
        fixed.set_fixed();
        let mut small = Share::of(&pot);
        assert!(small.grow_within(UNIT - 1, MAX));
        small.set_movable(&fixed_cut);
        let mut other = Share::of(&pot);
        assert!(!other.grow_within(4 * UNIT, MAX));
        assert!(other.grow_within(3 * UNIT, MAX));
        assert!(!is_cut(&fixed_cut));
        drop((fixed, small, other));
        assert_eq!(pot.bytes(), 0);
    }

    #[test]
    fn what_was_told_too_late_is_given_back_all_the_same() {
        let pot = Arc::new(Pot::default());
        let (mut told, told_cut) = share(&pot, 9);
        let (other, _) = share(&pot, 9);
        assert!(is_cut(&told_cut));
        assert!(!told.grow_within(UNIT, MAX), "it is to leave");
        told.set_fixed();
        drop((told, other));
        let level = pot.lock();
        assert_eq!((level.bytes, level.leaving_bytes, level.movable.len()), (0, 0, 0));
    }

    #[tokio::test]
    async fn all_who_wait_hear_it_before_and_after() {
        let cut = Arc::new(Cut::default());
        let waiting = tokio::spawn({
            let cut = Arc::clone(&cut);
            async move { cut.wait().await }
        });
        tokio::task::yield_now().await;
        cut.cut();
        waiting.await.expect("it ends");
        cut.wait().await;
    }
}
