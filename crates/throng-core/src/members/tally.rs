//! The subscriptions of a channel, of this process and of others.

use super::exchange::PeerId;

/// A channel's subscriptions.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) own: u64,
    /// The number that others know.
    pub(super) told: u64,
    pub(super) others: Vec<Share>,
}

#[derive(Debug)]
pub(super) struct Share {
    pub(super) peer: PeerId,
    /// Of the change that says so.
    pub(super) number: u64,
    pub(super) count: u64,
}

impl Tally {
    pub(super) fn total(&self) -> u64 {
        self.others.iter().fold(self.own, |sum, share| sum.saturating_add(share.count))
    }

    pub(super) fn is_unused(&self) -> bool {
        self.own == 0 && self.told == 0 && self.others.is_empty()
    }

    /// Takes a number of another process. Returns false if a newer one is known.
    pub(super) fn set(&mut self, peer: PeerId, number: u64, count: u64) -> bool {
        let at = self.others.iter().position(|share| share.peer == peer);
        match at.map(|at| (at, &mut self.others[at])) {
            Some((_, share)) if share.number > number => return false,
            Some((_, share)) if share.number == number && count > 0 => return false,
            Some((at, _)) if count == 0 => drop(self.others.swap_remove(at)),
            Some((_, share)) => (share.number, share.count) = (number, count),
            None if count == 0 => return false,
            None => self.others.push(Share { peer, number, count }),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_number_of_a_process_changes_nothing() {
        let mut tally = Tally { own: 2, ..Tally::default() };
        let [one, other] = [1, 2].map(PeerId::numbered);
        assert!(tally.set(one, 5, 3) && tally.set(other, 1, 1));
        assert!(!tally.set(one, 5, 9) && !tally.set(one, 4, 0));
        assert_eq!(tally.total(), 6);
        assert!(tally.set(one, 5, 0), "a part as of the number knows better");
        assert!(!tally.set(one, 6, 0) && tally.set(other, u64::MAX, 0));
        assert_eq!((tally.total(), tally.is_unused()), (2, false));
    }
}
