//! The names of the channels in the stream, for lists.

use std::collections::BTreeSet;

use throng_core::Kind;
use throng_nats::journal::{JournalEvent, LastOfLog, NamedLog, Naming};

use super::weather::Weather;
use super::{CHANNELS, STREAM, World, channel, subject};

/// What a node knows of the names in the stream.
#[derive(Default)]
pub(super) struct KnownNames {
    /// Channels that were named since all of them were.
    names: BTreeSet<String>,
    is_known: bool,
    asked: Option<AskedNames>,
}

/// The stream when a node asked for the names in it.
struct AskedNames {
    token: u64,
    era: usize,
    /// Channels with messages.
    there: Vec<usize>,
    /// How often consumers have been on a replica that lagged.
    hidden: usize,
}

impl KnownNames {
    pub(super) fn finish(&self) {
        assert!(self.asked.is_none(), "names were asked for, and nothing was said");
    }
}

impl World {
    /// A world in which nodes learn which channels there are, and follow none.
    pub(crate) fn of_names(seed: u64) -> World {
        World { weather: Weather::of_names(), ..World::new(seed) }
    }

    fn channels_there(&self) -> Vec<usize> {
        let is_there = |index: &usize| !self.broker.kept(STREAM, &subject(*index)).is_empty();
        (0..CHANNELS).filter(is_there).collect()
    }

    pub(super) fn ask_names(&mut self, node: usize) {
        if self.nodes[node].names.asked.is_some() {
            return;
        }
        self.next_token += 1;
        let (token, there, hidden) = (self.next_token, self.channels_there(), self.broker.hidden);
        let of = &mut self.nodes[node];
        of.names.asked = Some(AskedNames { token, era: of.era, there, hidden });
        let is_anew = !of.names.is_known;
        if is_anew {
            of.names.names.clear();
        }
        self.step(node, JournalEvent::Name { token, kind: Kind::Channel, is_anew });
    }

    pub(super) fn named(&mut self, node: usize, token: u64, logs: Vec<NamedLog>, naming: Naming) {
        let still_there = self.channels_there();
        let (era, hidden) = (self.oracle.era(), self.broker.hidden);
        let known = &mut self.nodes[node].names;
        let has_messages = |log: &NamedLog| log.last == LastOfLog::Message;
        let named = logs.into_iter().filter(has_messages);
        known.names.extend(named.map(|log| log.channel.name().to_owned()));
        if naming == Naming::More {
            return;
        }
        let asked = known.asked.take().expect("it is asked");
        assert_eq!(asked.token, token, "it is answered once");
        known.is_known = matches!(naming, Naming::End { .. });
        if !known.is_known || asked.era != era || asked.hidden != hidden {
            return;
        }
        self.tally.named += 1;
        for index in asked.there.into_iter().filter(|index| still_there.contains(index)) {
            let name = channel(index);
            assert!(known.names.contains(name.name()), "{name:?} was there and is not named");
        }
    }
}
