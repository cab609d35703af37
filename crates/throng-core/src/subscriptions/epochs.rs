//! The epochs of the channels that a worker follows.

use crate::id::Epoch;

/// An entry of [`Epochs`]: two bytes for each channel instead of nine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EpochRef(u16);

#[derive(Debug)]
struct Entry {
    epoch: Epoch,
    are_offsets_consecutive: bool,
    /// Followed channels that refer to the entry. An entry without any is reused.
    channels: u32,
}

/// The epochs of all followed channels, each once.
///
/// An engine has one epoch for each journal that it keeps, so there are few, and a linear search
/// finds one. More than 65,536 at a time would be a bug of the engine.
#[derive(Debug, Default)]
pub(super) struct Epochs(Vec<Entry>);

impl Epochs {
    /// Counts one more channel of `epoch`. `are_offsets_consecutive`: see
    /// [`Followed`](crate::Followed).
    pub(super) fn add(&mut self, epoch: Epoch, are_offsets_consecutive: bool) -> EpochRef {
        let added = self.try_add(epoch, are_offsets_consecutive);
        let Some(added) = added else { unreachable!("an engine has few epochs at a time") };
        added
    }

    /// As [`Epochs::add`]; `None` if there are 65,536 others.
    pub(super) fn try_add(
        &mut self,
        epoch: Epoch,
        are_offsets_consecutive: bool,
    ) -> Option<EpochRef> {
        let is_known = |entry: &Entry| {
            (entry.epoch, entry.are_offsets_consecutive) == (epoch, are_offsets_consecutive)
        };
        let known = self.0.iter().position(|entry| entry.channels > 0 && is_known(entry));
        let free = || self.0.iter().position(|entry| entry.channels == 0);
        let at = known.or_else(free).unwrap_or(self.0.len());
        let added = EpochRef(u16::try_from(at).ok()?);
        let channels = known.map_or(0, |at| self.0[at].channels);
        let entry = Entry { epoch, are_offsets_consecutive, channels: channels + 1 };
        match self.0.get_mut(at) {
            Some(old) => *old = entry,
            None => self.0.push(entry),
        }
        Some(added)
    }

    /// Counts one channel less.
    pub(super) fn remove(&mut self, at: EpochRef) {
        self.0[usize::from(at.0)].channels -= 1;
    }

    pub(super) fn get(&self, at: EpochRef) -> Epoch {
        self.0[usize::from(at.0)].epoch
    }

    /// True if the difference of two offsets is a number of messages.
    pub(super) fn are_offsets_consecutive(&self, at: EpochRef) -> bool {
        self.0[usize::from(at.0)].are_offsets_consecutive
    }

    /// The number of channels of all epochs.
    #[cfg(test)]
    pub(super) fn channels(&self) -> usize {
        self.0.iter().map(|entry| entry.channels as usize).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_shared_by_its_channels_and_reused_after_the_last() {
        let mut epochs = Epochs::default();
        let [one, two, three] = [1, 2, 3].map(Epoch::numbered);
        let (first, second) = (epochs.add(one, true), epochs.add(two, false));
        assert_eq!(epochs.add(one, true), first);
        epochs.remove(first);
        assert_eq!((epochs.get(first), epochs.get(second)), (one, two));
        assert!(epochs.are_offsets_consecutive(first) && !epochs.are_offsets_consecutive(second));
        epochs.remove(first);
        assert_eq!(epochs.add(three, true), first);
        assert_eq!((epochs.get(first), epochs.0.len(), epochs.channels()), (three, 2, 2));
    }
}
