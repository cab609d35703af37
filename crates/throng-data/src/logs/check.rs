//! Checks whether what is on the disk is whole, and says what is wrong and where.
//!
//! Every entry of every table is read, so that the library compares all blocks of its files with
//! their checksums.

use std::collections::HashMap;
use std::ops::ControlFlow;

use throng_core::frozen::ThawError;
use throng_core::{ChannelName, RoomHolder};

use super::at_rest::END;
use super::erased::ErasedOf;
use super::format::{self, KnownKey, LogHead, Table, shown};
use super::reader::Logs;
use super::state_rows::{self as rows, CreatorRow, KeyRow, StateRow};
use crate::storage::{KeyOrder, Space, StorageError};

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Checked {
    /// Channels and inboxes that have had a message.
    pub channels: u64,
    /// Messages that were read.
    pub messages: u64,
    pub keys: u64,
    pub faults: u64,
}

/// Receives a sentence about each fault.
pub type Tell<'a> = &'a mut dyn FnMut(&str);

/// Looks at an entry, and returns its fault.
type EachEntry<'e, 'a> = &'e mut dyn FnMut(&mut Check<'a>, &[u8], &[u8]) -> Result<(), String>;

/// A check that is under way.
struct Check<'a> {
    logs: &'a Logs,
    tell: Tell<'a>,
    checked: Checked,
}

/// The messages of one channel, as they are read.
struct ExpiredRun {
    name: ChannelName,
    head: LogHead,
    /// The offset of the last message that was read.
    last: u64,
    expiring: u64,
    blanks: u64,
    /// The log's state, if it has one.
    state: Option<StateRow>,
    /// Messages before the bounds that the state has.
    older: u64,
    /// True if something was missing, or in the wrong place.
    is_broken: bool,
}

/// The keys of one channel, as they are read.
struct ReadState {
    name: ChannelName,
    row: Option<StateRow>,
    found: StateRow,
}

impl Logs {
    /// Checks all logs, which nobody may write meanwhile. Data of other parts of the server are
    /// only read: they know what it means.
    pub fn check(&self, tell: Tell<'_>) -> Checked {
        let mut check = Check { logs: self, tell, checked: Checked::default() };
        check.heads();
        check.messages();
        check.numbers();
        check.keys();
        check.records();
        check.states();
        check.room();
        for space in [Space::Meta, Space::Expiry, Space::KeyExpiry] {
            check.visit(space, &mut |_, _, _| Ok(()));
        }
        check.checked
    }
}

impl<'a> Check<'a> {
    fn fault(&mut self, what: &str) {
        self.checked.faults += 1;
        (self.tell)(what);
    }

    /// Reads a table to its end.
    fn visit(&mut self, space: Space, each: EachEntry<'_, 'a>) {
        let mut entries = 0_u64;
        let logs = self.logs;
        let read = logs.storage().scan(space, (&[], END), KeyOrder::Up, &mut |key, value| {
            entries += 1;
            if let Err(what) = each(self, key, value) {
                self.fault(&what);
            }
            ControlFlow::Continue(())
        });
        if let Err(error) = read {
            let (table, read) = (table(space), entries);
            self.fault(&format!(
                "the table of {table} cannot be read after {read} entries: {error}"
            ));
        }
    }

    fn heads(&mut self) {
        self.visit(Space::Heads, &mut |check, key, value| {
            let name = name_of(Space::Heads, key)?;
            check.checked.channels += 1;
            let head = LogHead::decode(value).map_err(|error| broken(&name, &error))?;
            let head = check.logs.advance(&name, head);
            let head = head.map_err(|error| format!("{}: {error}", shown(&name)))?;
            check.head(&name, &head)
        });
    }

    fn head(&mut self, name: &ChannelName, head: &LogHead) -> Result<(), String> {
        let storage = self.logs.storage();
        let read = |error: StorageError| format!("{}: {error}", shown(name));
        let number = head.number.to_be_bytes();
        let listed = storage.get(Space::Numbers, &number).map_err(read)?;
        if listed.as_deref() != Some(&*format::name(name)) {
            return Err(format!("{}: lists of channels do not have it", shown(name)));
        }
        let record = format::of_table(Table::LogRecords, name);
        if head.has_record && storage.get(Space::Records, &record).map_err(read)?.is_none() {
            return Err(format!("{}: the record of its log is missing", shown(name)));
        }
        let state = format::of_table(Table::States, name);
        if head.has_keys && storage.get(Space::Records, &state).map_err(read)?.is_none() {
            return Err(format!("{}: the row of its state is missing", shown(name)));
        }
        if head.floor == head.offset {
            return Ok(());
        }
        // The others are looked for where messages are read, if there is one.
        let last = format::message(name, head.offset);
        if storage.get(Space::Messages, &last).map_err(read)?.is_none() {
            return Err(format!("{}: its newest message is missing", shown(name)));
        }
        let due = head.expires_ms.map(|at_ms| format::at(at_ms, &format::name(name)));
        let is_due = |key: Vec<u8>| storage.get(Space::Expiry, &key).map(|entry| entry.is_some());
        if due.map(is_due).transpose().map_err(read)? == Some(false) {
            return Err(format!("{}: its messages would never expire", shown(name)));
        }
        Ok(())
    }

    fn messages(&mut self) {
        let mut run: Option<ExpiredRun> = None;
        let mut erased = ErasedOf::default();
        self.visit(Space::Messages, &mut |check, key, value| {
            let (name, offset) = format::message_of(key)
                .map_err(|error| format!("a message has a key that cannot be read: {error}"))?;
            if erased.contains(check.logs, &name, offset).unwrap_or(false) {
                return Ok(());
            }
            check.checked.messages += 1;
            if run.as_ref().is_none_or(|run| run.name != name) {
                let head = check.logs.committed_head(&name);
                // One that cannot be read was told of with the others.
                let head = head.unwrap_or_default();
                let state = check.logs.state_row(&name).unwrap_or_default();
                let (last, is_broken) = (head.floor, false);
                let (expiring, blanks, older) = (0, 0, 0);
                let next =
                    ExpiredRun { name, head, last, expiring, blanks, state, older, is_broken };
                let before = run.replace(next);
                before.into_iter().for_each(|run| check.end_run(&run));
            }
            run.as_mut().map_or(Ok(()), |run| run.add(check.logs, offset, value))
        });
        run.iter().for_each(|run| self.end_run(run));
    }

    fn end_run(&mut self, run: &ExpiredRun) {
        let known = run.state.map_or(0, |row| row.older);
        if run.older != known {
            let (name, older) = (shown(&run.name), run.older);
            self.fault(&format!("{name}: its state has {older} messages before, and not {known}"));
        }
        // That the newest one is missing was told with the channel.
        if run.is_broken || run.last != run.head.offset {
            return;
        }
        let ExpiredRun { head, expiring, blanks, .. } = run;
        let name = shown(&run.name);
        if *expiring != head.expiring {
            self.fault(&format!(
                "{name}: {expiring} messages expire, and {} should",
                head.expiring
            ));
        }
        // Some may be of before format 5.
        if *blanks < head.blanks {
            self.fault(&format!(
                "{name}: {blanks} messages are notices or erased, and {} should be",
                head.blanks
            ));
        }
    }

    fn numbers(&mut self) {
        self.visit(Space::Numbers, &mut |check, key, value| {
            let name = name_of(Space::Numbers, value)?;
            let head = check.logs.committed_head(&name).unwrap_or_default();
            if format::number(key) != Ok(head.number) {
                return Err(format!("{}: lists of channels have it twice", shown(&name)));
            }
            Ok(())
        });
    }

    /// Looks at the tables of other state that are of logs.
    fn records(&mut self) {
        self.visit(Space::Records, &mut |check, key, value| match key.split_first() {
            Some((table, name)) if *table == Table::LogRecords as u8 => {
                let name = name_of(Space::Records, name)?;
                let head = check.logs.committed_head(&name).unwrap_or_default();
                match format::record(value) {
                    Ok(_) if head.has_record => Ok(()),
                    Ok(_) => Err(format!("{}: it has a record that is not its own", shown(&name))),
                    Err(error) => Err(broken(&name, &error)),
                }
            }
            Some((table, _)) if *table == Table::Erased as u8 => {
                let noted = format::erased_of(key, value).map(drop);
                noted.map_err(|error| format!("a note of erased messages is damaged: {error}"))
            }
            Some((table, name)) if *table == Table::States as u8 => {
                let name = name_of(Space::Records, name)?;
                let head = check.logs.committed_head(&name).unwrap_or_default();
                match StateRow::decode(value) {
                    Ok(_) if head.has_keys => Ok(()),
                    Ok(_) => Err(format!("{}: it has a state that is not its own", shown(&name))),
                    Err(error) => Err(broken(&name, &error)),
                }
            }
            _ => Ok(()),
        });
    }

    /// Looks at the keys of all states, each of which has its message.
    fn states(&mut self) {
        let mut state: Option<ReadState> = None;
        self.visit(Space::Records, &mut |check, place, row| {
            if place.first() != Some(&(Table::Keys as u8)) {
                return Ok(());
            }
            let (name, key) = rows::name_and_key_of(place)
                .map_err(|error| format!("a key of a state cannot be read: {error}"))?;
            if state.as_ref().is_none_or(|state| state.name != name) {
                let row = check.logs.state_row(&name).unwrap_or_default();
                let next = ReadState { name: name.clone(), row, found: StateRow::default() };
                let before = state.replace(next);
                before.into_iter().for_each(|state| check.end_state(&state));
            }
            let Some(state) = &mut state else { return Ok(()) };
            check.key(state, &key, row)
        });
        state.iter().for_each(|state| self.end_state(state));
    }

    /// Looks whether publishers hold what the rows of keys and creations say that they do.
    fn room(&mut self) {
        let mut found = HashMap::<RoomHolder, u64>::new();
        self.visit(Space::Records, &mut |_, place, row| {
            let charge = match place.first() {
                Some(table) if *table == Table::Keys as u8 => {
                    KeyRow::decode(row).map(|row| row.charge())
                }
                Some(table) if *table == Table::Creators as u8 => {
                    CreatorRow::decode(row).map(|row| row.charge())
                }
                _ => return Ok(()),
            };
            let (holder, bytes) = charge.map_err(|error| format!("the room of one: {error}"))?;
            *found.entry(holder).or_default() += bytes as u64;
            Ok(())
        });
        found.remove(&RoomHolder::NOBODY);
        let mut known = self.logs.room.all();
        for (holder, bytes) in found {
            let known = known.remove(&holder).unwrap_or(0);
            if bytes != known {
                let number = holder.number();
                self.fault(&format!("publisher {number} holds {bytes} bytes, and not {known}"));
            }
        }
        for (holder, bytes) in known.into_iter().filter(|(_, bytes)| *bytes > 0) {
            self.fault(&format!("publisher {} holds nothing, and not {bytes}", holder.number()));
        }
    }

    fn key(&self, state: &mut ReadState, key: &str, row: &[u8]) -> Result<(), String> {
        let name = shown(&state.name);
        let row = KeyRow::decode(row)
            .map_err(|error| format!("{name}: its key {key:?} cannot be read: {error}"))?;
        if state.row.is_none_or(|known| row.offset <= known.base) {
            // Of an erased history.
            return Ok(());
        }
        if row.is_tombstone() {
            state.found.removed += 1;
        } else {
            state.found.keys += 1;
            state.found.bytes += row.bytes;
        }
        let content = self.logs.message(&state.name, row.offset).ok().flatten();
        let is_it = content.is_some_and(|content| {
            content.key() == Some(key) && content.removes_key() == row.is_tombstone()
        });
        if is_it {
            return Ok(());
        }
        Err(format!("{name}: message {} of its key {key:?} is missing", row.offset))
    }

    fn end_state(&mut self, state: &ReadState) {
        let Some(row) = state.row else { return };
        let known = (row.keys, row.removed, row.bytes);
        let StateRow { keys, removed, bytes, .. } = state.found;
        if (keys, removed, bytes) != known {
            let name = shown(&state.name);
            self.fault(&format!(
                "{name}: its state has {keys} keys, {removed} tombstones and {bytes} bytes, and \
                 not {}, {} and {}",
                row.keys, row.removed, row.bytes
            ));
        }
    }

    fn keys(&mut self) {
        self.visit(Space::Keys, &mut |check, _, value| {
            check.checked.keys += 1;
            let known = KnownKey::decode(value).map(drop);
            known.map_err(|error| format!("an idempotency key cannot be read: {error}"))
        });
    }
}

impl ExpiredRun {
    /// Adds the next message.
    fn add(&mut self, logs: &Logs, offset: u64, value: &[u8]) -> Result<(), String> {
        let name = shown(&self.name);
        let LogHead { floor, offset: newest, .. } = self.head;
        if offset <= floor && self.state.is_some_and(|row| offset > row.base) {
            self.older += 1;
            // Its key names it, or is reported.
            return format::content(value, logs.epoch(), &self.name)
                .map(drop)
                .map_err(|error| format!("{name}: message {offset} cannot be read: {error}"));
        }
        if offset <= floor || offset > newest {
            self.is_broken = true;
            return Err(format!("{name}: message {offset} is outside its range"));
        }
        let missing = self.last + 1..offset;
        self.last = offset;
        let content = match format::content(value, logs.epoch(), &self.name) {
            Ok(content) if content.id.offset == offset => content,
            Ok(_) => {
                self.is_broken = true;
                return Err(format!("{name}: message {offset} is another one"));
            }
            Err(error) => {
                self.is_broken = true;
                return Err(format!("{name}: message {offset} cannot be read: {error}"));
            }
        };
        self.expiring += u64::from(format::is_expiring(&content));
        self.blanks += u64::from(content.is_blank());
        if let (Some(key), true) = (content.key(), self.state.is_some()) {
            let row = logs.key_row(&self.name, key).ok().flatten();
            if row.is_none_or(|row| row.offset < offset) {
                return Err(format!("{name}: its state does not know key {key:?} of {offset}"));
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        self.is_broken = true;
        Err(format!("{name}: messages {} to {} are missing", missing.start, missing.end - 1))
    }
}

fn broken(name: &ChannelName, error: &ThawError) -> String {
    format!("{}: its record cannot be read: {error}", shown(name))
}

fn name_of(space: Space, bytes: &[u8]) -> Result<ChannelName, String> {
    let name = format::name_of(bytes);
    name.map_err(|error| {
        format!("the table of {} has a name that cannot be read: {error}", table(space))
    })
}

fn table(space: Space) -> &'static str {
    match space {
        Space::Meta => "the format",
        Space::Heads => "channels",
        Space::Messages => "messages",
        Space::Expiry => "expiries",
        Space::Keys => "idempotency keys",
        Space::KeyExpiry => "their expiries",
        Space::Records => "subscriptions, read markers, records and states of logs",
        Space::Numbers => "numbers of channels",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use throng_core::{Body, Publication, Retention, Stamp};

    use super::*;
    use crate::logs::{Entry, Writer};
    use crate::storage::memory::MemoryStorage;
    use crate::storage::{Storage as _, Write};
    use crate::sync_policy::SyncPolicy;

    const NOW_MS: u64 = 1_700_000_000_000;
    const KEPT: Retention =
        Retention { max_messages: 3, max_bytes: usize::MAX, max_age_ms: 1_000_000 };

    /// A storage with five messages of a channel, three of which are kept, and one of a user.
    fn filled() -> MemoryStorage {
        let storage = MemoryStorage::default();
        let (logs, opened) = Logs::open(Arc::new(storage.clone()), "boot").expect("it opens");
        let logs = Arc::new(logs);
        let mut writer =
            Writer::begin(&logs, SyncPolicy::Always, opened.stamps).expect("it writes");
        let publication = |channel: ChannelName, expires_in_ms| Publication {
            idempotency_key: Some("once".into()),
            expires_in_ms,
            ..Publication::new(channel, Body::Text("x".into()))
        };
        let first = publication(ChannelName::user("ann"), Some(1_000));
        let mut publications = vec![Entry::Publication(first, KEPT)];
        for n in 0..5 {
            let mut next = publication(ChannelName::channel("news"), None);
            next.idempotency_key = Some(n.to_string().into());
            publications.push(Entry::Publication(next, KEPT));
        }
        let appended = writer.append(NOW_MS, &publications, Vec::new(), &mut Stamp::default);
        appended.expect("it writes");
        writer.end_run().expect("it writes");
        storage
    }

    fn check(storage: &MemoryStorage) -> (Checked, Vec<String>) {
        let logs = Logs::at_rest(Arc::new(storage.clone())).expect("it opens");
        let mut faults = Vec::new();
        let checked = logs.check(&mut |fault| faults.push(fault.to_owned()));
        assert_eq!(checked.faults as usize, faults.len());
        (checked, faults)
    }

    fn news() -> ChannelName {
        ChannelName::channel("news")
    }

    #[test]
    fn what_a_server_leaves_is_whole() {
        let (checked, faults) = check(&filled());
        assert_eq!(faults, [""; 0]);
        assert_eq!((checked.channels, checked.messages, checked.keys), (2, 4, 6));
        assert_eq!(check(&MemoryStorage::default()), (Checked::default(), Vec::new()));
    }

    /// The value of the head of a channel, after a change.
    fn head(change: &dyn Fn(&mut LogHead)) -> Option<Vec<u8>> {
        let logs = Logs::at_rest(Arc::new(filled())).expect("it opens");
        let mut head = logs.committed_head(&news()).expect("it is read");
        change(&mut head);
        Some(format::Scratch::default().head(&head).to_vec())
    }

    /// The faults with this entry in place of what was there.
    fn faults_with(space: Space, key: Vec<u8>, value: Option<Vec<u8>>) -> Vec<String> {
        let storage = filled();
        let (key, value) = (key.into(), value.map(Into::into));
        storage.commit(&[Write { space, key, value }]).expect("it writes");
        check(&storage).1
    }

    #[test]
    fn faults_are_reported_with_their_place() {
        let message = |offset| format::message(&news(), offset);
        let name = format::name(&news());
        for (space, key, value, expected) in [
            (Space::Messages, message(4), None, "channel \"news\": messages 4 to 4 are missing"),
            (Space::Messages, message(5), None, "channel \"news\": its newest message is missing"),
            (
                Space::Messages,
                message(3),
                Some(vec![3, 1]),
                "channel \"news\": message 3 cannot be read: it ends early",
            ),
            (
                Space::Messages,
                message(2),
                Some(Vec::new()),
                "channel \"news\": message 2 is outside its range",
            ),
            (
                Space::Heads,
                name.clone(),
                head(&|head| head.expiring = 1),
                "channel \"news\": 0 messages expire, and 1 should",
            ),
            (
                Space::Heads,
                name.clone(),
                head(&|head| head.blanks = 1),
                "channel \"news\": 0 messages are notices or erased, and 1 should be",
            ),
            (
                Space::Heads,
                name.clone(),
                head(&|head| head.expires_ms = Some(1)),
                "channel \"news\": its messages would never expire",
            ),
            (
                Space::Numbers,
                9_u64.to_be_bytes().to_vec(),
                Some(name.clone()),
                "channel \"news\": lists of channels have it twice",
            ),
            (
                Space::Keys,
                b"key".to_vec(),
                Some(Vec::new()),
                "an idempotency key cannot be read: it ends early",
            ),
        ] {
            assert_eq!(faults_with(space, key, value), [expected]);
        }
        let storage = filled();
        let lost = Write::remove(Space::Heads, name);
        storage.commit(&[lost]).expect("it writes");
        let (_, faults) = check(&storage);
        assert_eq!(faults.len(), 4, "three messages and a number: {faults:?}");
    }

    #[test]
    fn faults_of_records_are_reported_with_their_channels() {
        let of_news = || format::of_table(Table::LogRecords, &news());
        for (space, key, value, expected) in [
            (
                Space::Records,
                of_news(),
                Some(vec![0; 7]),
                "channel \"news\": its record cannot be read: it ends early",
            ),
            (
                Space::Records,
                of_news(),
                Some([&1_u64.to_be_bytes()[..], &[9, 0, 0, 0]].concat()),
                "channel \"news\": it has a record that is not its own",
            ),
            (
                Space::Heads,
                format::name(&news()),
                head(&|head| head.has_record = true),
                "channel \"news\": the record of its log is missing",
            ),
            (
                Space::Records,
                vec![Table::Erased as u8],
                Some(Vec::new()),
                "a note of erased messages is damaged: it ends early",
            ),
        ] {
            assert_eq!(faults_with(space, key, value), [expected]);
        }
    }
}
