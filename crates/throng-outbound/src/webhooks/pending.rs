//! Channels that are vacated and members that have left, for as long as they may come back.

use std::collections::{BTreeMap, HashMap};

use super::happened::{Happened, What};

/// For how long the application is not told of a departure. Who comes back within this time, such
/// as a page that is loaded again, was not away.
const RETURN_MS: u64 = 3_000;

/// Who or what has left: a channel its last subscriber, or a channel's member.
type Absent = (Box<str>, Option<Box<str>>);

/// Departures that wait, in their order.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// By the time when they are due.
    due: BTreeMap<(u64, u64), Happened>,
    places: HashMap<Absent, (u64, u64)>,
    next: u64,
}

impl Pending {
    /// Takes what has happened, after all that had happened before. Puts what the application can
    /// be told now into `ready`, in its order and behind the first ones, which are being sent.
    /// Returns a departure and the return that takes it back, of neither of which it is told.
    pub(super) fn take(
        &mut self,
        happened: Happened,
        most: usize,
        (ready, sending): (&mut Vec<Happened>, usize),
    ) -> Option<[Happened; 2]> {
        self.until(happened.at_ms, ready);
        match &happened.what {
            What::Vacated | What::MemberRemoved(_) => {
                if self.due.len() >= most {
                    // The oldest has waited for the longest.
                    self.first(ready);
                }
                let place = (happened.at_ms + RETURN_MS, self.next);
                self.next += 1;
                self.places.insert(absent(&happened), place);
                self.due.insert(place, happened);
            }
            What::Occupied | What::MemberAdded(_) => {
                let back = self.places.remove(&absent(&happened));
                let was_away = back.and_then(|place| self.due.remove(&place));
                if let Some(departure) = was_away {
                    return Some([departure, happened]);
                }
                let at = place_of(&happened, &ready[sending..]);
                ready.insert(sending + at, happened);
            }
            What::ClientEvent(_) | What::CacheMiss | What::Count(_) => ready.push(happened),
        }
        None
    }

    /// Puts those into `ready` that are due at this time, in milliseconds since 1970.
    pub(super) fn until(&mut self, now_ms: u64, ready: &mut Vec<Happened>) {
        while self.due.first_key_value().is_some_and(|((due_ms, _), _)| *due_ms <= now_ms) {
            self.first(ready);
        }
    }

    /// When the next one is due, in milliseconds since 1970.
    pub(super) fn next_ms(&self) -> Option<u64> {
        self.due.first_key_value().map(|((due_ms, _), _)| *due_ms)
    }

    /// Drops those that are meant, and returns them.
    pub(super) fn forget(&mut self, mut is_meant: impl FnMut(&Happened) -> bool) -> Vec<Happened> {
        let meant = self.due.iter().filter(|(_, happened)| is_meant(happened));
        let meant: Vec<_> = meant.map(|(place, _)| *place).collect();
        let gone: Vec<_> = meant.iter().filter_map(|place| self.due.remove(place)).collect();
        self.places.retain(|_, place| !meant.contains(place));
        gone
    }

    fn first(&mut self, ready: &mut Vec<Happened>) {
        if let Some((_, happened)) = self.due.pop_first() {
            self.places.remove(&absent(&happened));
            ready.push(happened);
        }
    }
}

/// Where it belongs among what is ready: a member joins a moment before its subscription begins,
/// but a channel is occupied before it has members.
fn place_of(happened: &Happened, ready: &[Happened]) -> usize {
    let is_own = |other: &&Happened| other.channel == happened.channel;
    let joined = ready.iter().rev().filter(is_own);
    let joined = joined.take_while(|other| matches!(other.what, What::MemberAdded(_))).count();
    let is_occupied = matches!(happened.what, What::Occupied);
    let first = ready.iter().enumerate().rev().filter(|(_, other)| is_own(other));
    let first = first.take(joined).last().map(|(at, _)| at);
    first.filter(|_| is_occupied).unwrap_or(ready.len())
}

fn absent(happened: &Happened) -> Absent {
    let user = match &happened.what {
        What::MemberAdded(user) | What::MemberRemoved(user) => Some(user.clone()),
        _ => None,
    };
    (happened.channel.clone(), user)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn at(at_ms: u64, channel: &str, what: What) -> Happened {
        Happened { at_ms, channel: channel.into(), what }
    }

    fn words(ready: &mut Vec<Happened>) -> Vec<String> {
        let word = |one: Happened| format!("{} {}", one.what.webhook().word(), one.channel);
        ready.drain(..).map(word).collect()
    }

    #[test]
    fn who_comes_back_in_time_was_not_away() {
        let (mut pending, mut ready) = (Pending::default(), Vec::new());
        for (at_ms, what) in [(0, What::Occupied), (5, What::Vacated), (3_004, What::Occupied)] {
            pending.take(at(at_ms, "a", what), 9, (&mut ready, 0));
        }
        assert_eq!(words(&mut ready), ["channel_occupied a"]);
        assert_eq!(pending.next_ms(), None);
        for (at_ms, what) in [(4_000, What::Vacated), (7_000, What::Occupied)] {
            pending.take(at(at_ms, "a", what), 9, (&mut ready, 0));
        }
        assert_eq!(words(&mut ready), ["channel_vacated a", "channel_occupied a"]);
    }

    #[test]
    fn a_channel_is_occupied_before_it_has_members() {
        let (mut pending, mut ready) = (Pending::default(), Vec::new());
        for (channel, what) in [
            ("a", What::MemberAdded("ann".into())),
            ("a", What::Count(Arc::default())),
            ("b", What::MemberAdded("ann".into())),
            ("c", What::CacheMiss),
            ("b", What::Occupied),
        ] {
            pending.take(at(0, channel, what), 9, (&mut ready, 0));
        }
        let words = words(&mut ready);
        assert_eq!(words[2..4], ["channel_occupied b", "member_added b"]);
        assert_eq!(words.len(), 5);
    }

    #[test]
    fn members_of_a_channel_come_back_each_for_itself() {
        let (mut pending, mut ready) = (Pending::default(), Vec::new());
        for user in ["ann", "bob"] {
            pending.take(at(0, "a", What::MemberRemoved(user.into())), 9, (&mut ready, 0));
        }
        pending.take(at(1, "a", What::Vacated), 9, (&mut ready, 0));
        pending.take(at(2, "b", What::MemberAdded("ann".into())), 9, (&mut ready, 0));
        assert_eq!(words(&mut ready), ["member_added b"]);
        pending.take(at(3, "a", What::Occupied), 9, (&mut ready, 0));
        pending.take(at(3, "a", What::MemberAdded("ann".into())), 9, (&mut ready, 0));
        pending.until(2_999, &mut ready);
        assert_eq!(words(&mut ready), [""; 0]);
        pending.until(u64::MAX, &mut ready);
        assert_eq!(words(&mut ready), ["member_removed a"]);
    }

    #[test]
    fn departures_that_do_not_fit_are_told_at_once() {
        let (mut pending, mut ready) = (Pending::default(), Vec::new());
        for channel in ["a", "b", "c"] {
            pending.take(at(0, channel, What::Vacated), 2, (&mut ready, 0));
        }
        assert_eq!(words(&mut ready), ["channel_vacated a"]);
        assert_eq!(pending.next_ms(), Some(RETURN_MS));
    }
}
