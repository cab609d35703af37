//! The names of followed channels, which are known by number, in a few large buffers.
//!
//! A name costs one byte more than its text here. With an allocation of its own it would cost 32
//! and more; and these would lie between those that last only until a channel is followed, so that
//! none of the pages of those could go back to the kernel.

use throng_core::ChannelName;
use throng_core::names::{NameRef, Names};

/// Channels are spread over this many buffers by their numbers: one has less than 4 GiB, and it is
/// packed while nothing else goes on.
const PARTS: u32 = 16;

#[derive(Debug, Default)]
pub(crate) struct NamesByNumber {
    parts: [Names; PARTS as usize],
}

impl NamesByNumber {
    fn part(&self, number: u32) -> &Names {
        &self.parts[(number % PARTS) as usize]
    }

    fn part_mut(&mut self, number: u32) -> &mut Names {
        &mut self.parts[(number % PARTS) as usize]
    }

    /// Adds the name of the channel with this number.
    pub(crate) fn add(&mut self, number: u32, name: &ChannelName) -> NameRef {
        self.part_mut(number).add(name)
    }

    /// The name of the channel with this number.
    pub(crate) fn name(&self, (number, at): (u32, NameRef)) -> ChannelName {
        self.part(number).name(at)
    }

    pub(crate) fn key(&self, (number, at): (u32, NameRef)) -> &str {
        self.part(number).get(at)
    }

    pub(crate) fn is(&self, (number, at): (u32, NameRef), key: &str) -> bool {
        self.part(number).is(at, key)
    }

    /// Removes the name of a channel. `all` are the channels that stay, whose names may move.
    pub(crate) fn forget<'a>(
        &mut self,
        (number, at): (u32, NameRef),
        all: impl Iterator<Item = (u32, &'a mut NameRef)>,
    ) {
        let names = self.part_mut(number);
        names.forget(at);
        if names.should_pack() {
            let own = all.filter(|(other, _)| other % PARTS == number % PARTS);
            names.pack(own.map(|(_, at)| at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_while_others_go() {
        let mut names = NamesByNumber::default();
        let name = |number: u32| ChannelName::user(&format!("customer-{number}"));
        let mut all: Vec<_> =
            (0..20_000).map(|number| (number, names.add(number, &name(number)))).collect();
        let (mut packed, first) = (0, all[0].1);
        while all.len() > 100 {
            let gone = all.swap_remove(all.len() / 3);
            let before = all.last().map(|(_, at)| *at);
            names.forget(gone, all.iter_mut().map(|(number, at)| (*number, at)));
            packed += usize::from(before != all.last().map(|(_, at)| *at));
        }
        assert!(packed > 0, "the first name was at {first:?}");
        for (number, at) in all {
            assert_eq!(names.name((number, at)), name(number));
            assert!(names.is((number, at), name(number).key()));
            assert_eq!(names.key((number, at)), name(number).key());
        }
    }
}
