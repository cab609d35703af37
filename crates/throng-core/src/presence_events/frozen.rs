//! Presence events already sent to subscribers, as frozen state: so that another process sends only
//! later changes.
//!
//! Each channel is looked at again once it is thawed: what has changed in between is found then.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Channel, IDLE_MS, PresenceEventSettings, PresenceEvents};
use crate::clock;
use crate::frozen::{Decoder, Encoder, RecordKind, ThawError, decode_name, encode_name};
use crate::name::{ChannelName, Kind};
use crate::watched_presence::{PresenceState, WatchedPresence};

const NAMES_USERS: u8 = 1;
const IS_UNTOLD: u8 = 1 << 1;
const HAS_FEWER: u8 = 1 << 2;
const HAS_STATE: u8 = 1 << 3;

impl PresenceEvents {
    /// Writes what is known of all channels, one record with each call of `write`. `watched` is
    /// what new subscribers are told, of the same engine. Nothing may be told meanwhile.
    pub fn freeze<E>(
        &self,
        watched: &WatchedPresence,
        mut write: impl FnMut(Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut first = Encoder::first(RecordKind::PresenceEvents);
        first.u64(watched.events());
        write(first.finish())?;
        for (name, channel) in &self.channels {
            write(channel.freeze(name, watched.state(name).as_deref()))?;
        }
        Ok(())
    }
}

impl Channel {
    fn freeze(&self, name: &ChannelName, state: Option<&PresenceState>) -> Vec<u8> {
        let mut encoder = Encoder::new(RecordKind::WatchedChannel);
        encode_name(&mut encoder, name);
        encoder.u64(self.told_ms);
        encoder.u64(clock::wall_ms(self.watched_ms));
        encoder.u64(clock::wall_ms(self.next_ms));
        encoder.u64(self.connections as u64);
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        encoder.u8(flag(self.users.is_some(), NAMES_USERS)
            | flag(self.is_untold, IS_UNTOLD)
            | flag(self.fewer.is_some(), HAS_FEWER)
            | flag(state.is_some(), HAS_STATE));
        if let Some(users) = &self.users {
            encoder.u32(users.len() as u32);
            for (user, since_ms) in users {
                encoder.bytes(user.as_bytes());
                encoder.u64(since_ms.map_or(0, clock::wall_ms));
            }
        }
        if let Some((since_ms, most)) = self.fewer {
            encoder.u64(clock::wall_ms(since_ms));
            encoder.u64(most as u64);
        }
        if let Some(PresenceState { json, .. }) = state {
            encoder.bytes(json.as_bytes());
        }
        encoder.u32(self.joined.len() as u32);
        self.joined.iter().for_each(|user| encoder.bytes(user.as_bytes()));
        encoder.u32(self.left.len() as u32);
        for (user, since_ms) in &self.left {
            encoder.bytes(user.as_bytes());
            encoder.u64(clock::wall_ms(*since_ms));
        }
        encoder.finish()
    }
}

/// The end of a state that is partial.
const PARTIAL: &str = r#","partial":true}"#;

/// Reads what [`PresenceEvents::freeze`] has written, record by record.
#[derive(Debug)]
pub struct PresenceThaw {
    events: PresenceEvents,
    has_begun: bool,
    now_ms: u64,
}

impl PresenceThaw {
    /// One that has read nothing.
    pub fn new(settings: PresenceEventSettings, now_ms: u64) -> PresenceThaw {
        PresenceThaw { events: PresenceEvents::new(settings), has_begun: false, now_ms }
    }

    /// Reads the next record, and notes in `watched` what new subscribers are told. Call it before
    /// workers are thawed: what changes from then on is noted there.
    pub fn record(&mut self, record: &[u8], watched: &WatchedPresence) -> Result<(), ThawError> {
        let (kind, mut decoder) = Decoder::new(record)?;
        match kind {
            RecordKind::PresenceEvents if !self.has_begun => {
                decoder.version()?;
                // Leaves room to count on.
                watched.resume_events(decoder.u64()?.min(u64::MAX / 2));
                self.has_begun = true;
                decoder.finish()
            }
            RecordKind::WatchedChannel if self.has_begun => self.channel(decoder, watched),
            _ => Err(ThawError::Invalid("the order of presence events")),
        }
    }

    /// The events, which go on where the others have stopped. Without any record there were none.
    pub fn finish(self) -> PresenceEvents {
        self.events
    }

    fn channel(
        &mut self,
        mut decoder: Decoder<'_>,
        watched: &WatchedPresence,
    ) -> Result<(), ThawError> {
        let name = decode_name(&mut decoder)?;
        if name.kind() != Kind::Channel || self.events.channels.contains_key(&name) {
            return Err(ThawError::Invalid("a watched channel"));
        }
        let (mut channel, json) = thaw(&mut decoder, self.now_ms)?;
        // The last event told subscribers so; no name can contain this text.
        channel.is_partial = json.as_deref().is_some_and(|json| json.ends_with(PARTIAL));
        decoder.finish()?;
        let state = json.map(|json| Arc::new(PresenceState { time_ms: channel.told_ms, json }));
        watched.resume(&name, state);
        self.events.due.insert((channel.next_ms, name.clone()));
        self.events.channels.insert(name, channel);
        Ok(())
    }
}

/// A channel that is to be looked at soon, and the state that new subscribers are told.
fn thaw(decoder: &mut Decoder<'_>, now_ms: u64) -> Result<(Channel, Option<Box<str>>), ThawError> {
    let (told_ms, watched_ms) = (decoder.u64()?, clock::from_wall_ms(decoder.u64()?));
    // Not later than ever without an upgrade, however the clocks were set.
    let next_ms = clock::from_wall_ms(decoder.u64()?).clamp(now_ms, now_ms + IDLE_MS);
    let connections = decoder.u64()? as usize;
    let flags = decoder.u8()?;
    if flags & !(NAMES_USERS | IS_UNTOLD | HAS_FEWER | HAS_STATE) != 0 || told_ms == u64::MAX {
        return Err(ThawError::Invalid("a watched channel"));
    }
    let users = if flags & NAMES_USERS == 0 {
        None
    } else {
        let mut users = BTreeMap::new();
        for _ in 0..decoder.u32()? {
            let (user, since_ms) = (decoder.text()?.into(), decoder.u64()?);
            users.insert(user, (since_ms > 0).then(|| clock::from_wall_ms(since_ms)));
        }
        Some(users)
    };
    let fewer = if flags & HAS_FEWER == 0 {
        None
    } else {
        Some((clock::from_wall_ms(decoder.u64()?), decoder.u64()? as usize))
    };
    let json = if flags & HAS_STATE == 0 { None } else { Some(decoder.text()?.into()) };
    let (mut joined, mut left) = (BTreeSet::new(), BTreeMap::new());
    for _ in 0..decoder.u32()? {
        joined.insert(decoder.text()?.into());
    }
    for _ in 0..decoder.u32()? {
        left.insert(decoder.text()?.into(), clock::from_wall_ms(decoder.u64()?));
    }
    let channel = Channel {
        due_ms: Some(next_ms),
        is_changed: true,
        looked_ms: 0,
        next_ms,
        watched_ms: watched_ms.min(now_ms),
        users,
        connections,
        fewer,
        partial_since_ms: None,
        is_partial: false,
        silent_since_ms: None,
        joined,
        left,
        is_untold: flags & IS_UNTOLD != 0,
        told_ms,
    };
    Ok((channel, json))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Epoch;
    use crate::memory::MemoryEngine;
    use crate::rules::Rules;

    const SETTINGS: PresenceEventSettings =
        PresenceEventSettings { grace_ms: 1000, max_named: 100 };

    const NOW_MS: u64 = 1_800_000_000_000;

    fn channel() -> Channel {
        let user = |name: &str| Arc::<str>::from(name);
        Channel {
            due_ms: None,
            is_changed: false,
            looked_ms: 5,
            next_ms: NOW_MS + 400,
            watched_ms: NOW_MS,
            users: Some([(user("ann"), None), (user("bob"), Some(NOW_MS))].into()),
            connections: 3,
            fewer: Some((NOW_MS, 2)),
            partial_since_ms: None,
            is_partial: false,
            silent_since_ms: None,
            joined: [user("ann")].into(),
            left: [(user("cy"), NOW_MS)].into(),
            is_untold: true,
            told_ms: 17,
        }
    }

    fn records(events: &PresenceEvents, watched: &WatchedPresence) -> Vec<Vec<u8>> {
        let mut records = Vec::new();
        let write = |record| -> Result<(), ThawError> {
            records.push(record);
            Ok(())
        };
        events.freeze(watched, write).unwrap();
        records
    }

    #[test]
    fn sent_events_survive_a_freeze_and_cut_ones_are_refused() {
        let name = ChannelName::channel("room");
        let state = Arc::new(PresenceState { time_ms: 17, json: "{}".into() });
        let watched = WatchedPresence::default();
        watched.resume(&name, Some(Arc::clone(&state)));
        watched.resume_events(7);
        let mut events = PresenceEvents::new(SETTINGS);
        events.channels.insert(name.clone(), channel());
        let frozen = records(&events, &watched);

        let (mut thaw, other) = (PresenceThaw::new(SETTINGS, NOW_MS), WatchedPresence::default());
        frozen.iter().for_each(|record| thaw.record(record, &other).unwrap());
        assert_eq!((other.events(), other.state(&name)), (7, Some(state)));
        let thawed = thaw.finish();
        assert_eq!(records(&thawed, &other), frozen);
        let again = &thawed.channels[&name];
        assert!(again.is_changed && again.due_ms == Some(again.next_ms));
        assert_eq!(thawed.due, [(again.next_ms, name)].into());

        for record in &frozen {
            for end in 0..record.len() {
                let (mut thaw, other) =
                    (PresenceThaw::new(SETTINGS, NOW_MS), WatchedPresence::default());
                let first = Encoder::first(RecordKind::PresenceEvents);
                thaw.has_begun = record[0] != first.finish()[0];
                assert!(thaw.record(&record[..end], &other).is_err(), "{end} of {record:?}");
            }
        }
    }

    #[test]
    fn a_channel_comes_once_and_behind_the_version() {
        let watched = WatchedPresence::default();
        let mut events = PresenceEvents::new(SETTINGS);
        events.channels.insert(ChannelName::channel("room"), channel());
        let frozen = records(&events, &watched);
        let mut thaw = PresenceThaw::new(SETTINGS, NOW_MS);
        assert!(thaw.record(&frozen[1], &watched).is_err());
        thaw.record(&frozen[0], &watched).unwrap();
        thaw.record(&frozen[1], &watched).unwrap();
        assert!(thaw.record(&frozen[1], &watched).is_err());
        assert!(thaw.record(&frozen[0], &watched).is_err());
        let inbox = channel().freeze(&ChannelName::user("ann"), None);
        assert!(thaw.record(&inbox, &watched).is_err());
    }

    #[test]
    fn a_channel_that_nobody_follows_any_more_is_forgotten() {
        let rules = Arc::new(Rules::default());
        let engine = MemoryEngine::new(Epoch::numbered(1), rules, Vec::new(), 1 << 20);
        let cache = Arc::clone(engine.presence_cache());
        let watched = &cache.watched;
        let mut events = PresenceEvents::new(SETTINGS);
        events.channels.insert(ChannelName::channel("room"), channel());
        let mut thaw = PresenceThaw::new(SETTINGS, NOW_MS);
        let frozen = records(&events, watched);
        frozen.iter().for_each(|record| thaw.record(record, watched).unwrap());
        let mut thawed = thaw.finish();
        thawed.step(NOW_MS + 120_000, &crate::Channels::from(engine));
        assert_eq!((thawed.channels(), watched.channels()), (0, 0));
    }
}
