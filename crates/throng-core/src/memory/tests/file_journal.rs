//! A journal over a plain file that only grows: all that a further journal has to do.
//!
//! The file has a record for each change of a log, behind its length. There is nothing else,
//! neither an index nor state in memory: each call reads the whole file into logs in memory, and
//! these answer it. Nothing compacts it, so that erased messages cannot be read, but stay in it.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

use super::*;
use crate::change::{
    ChangeError, ChangeOutcome, Changed, Erase, EraseOutcome, Erased, LogChange, LogRecord,
    LogState, RecordChange,
};
use crate::conformance::{self, Profile, page_in, start_in};
use crate::frozen::{
    Decoder, Encoder, RecordKind, decode_content, decode_name, encode_content, encode_name,
};
use crate::later::ask;
use crate::message::Content;
use crate::parts::{Limits, Part, Parts};
use crate::{
    Answer, AskerId, Channels, ErasedMarkers, Fetched, HistoryQuery, Journal, JournalId,
    JournalIds, Kind, Later, ListPart, ListPlace, ListQuery, ListStep, Mark, Marked, MarkerKey,
    MarkersErased, MarkersOf, Outcome, Publication, PublishError, Published, ReadMarker, Reading,
    Receipt, StartAt, too_many_markers,
};

const EPOCH: Epoch = Epoch::numbered(7);

/// Parts of a record of the file, which begins with the channel and the time.
const MESSAGE: u8 = 1;
const MARKER: u8 = 2;
const LOG_RECORD: u8 = 3;
const ERASURE: u8 = 4;
const ERASED_MARKERS: u8 = 5;

/// A file for a test, which is removed in the end.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Temporary {
        Temporary(std::env::temp_dir().join(format!("throng-{}-{name}", std::process::id())))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // A test that failed early has not made it.
        let _ = fs::remove_file(&self.0);
    }
}

struct FileJournal {
    path: PathBuf,
    /// Held while the file is read, and until what was written is delivered.
    file: Mutex<File>,
    memory: Arc<MemoryEngine>,
    parts: Arc<Parts>,
}

impl FileJournal {
    /// Opens a file, and cuts off a record that a process did not write to its end.
    fn open(path: &Path, memory: Arc<MemoryEngine>) -> FileJournal {
        let file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        let (path, parts) = (path.to_owned(), Arc::default());
        let journal = FileJournal { path, file: Mutex::new(file), memory, parts };
        let (file, (_, whole_bytes)) = (journal.lock(), journal.read_file());
        file.set_len(whole_bytes as u64).unwrap();
        drop(file);
        journal
    }

    fn lock(&self) -> MutexGuard<'_, File> {
        self.file.lock().unwrap()
    }

    /// The logs that the file has, and the bytes of its whole records. Call it under the lock.
    fn read_file(&self) -> (MemoryEngine, usize) {
        let rules = Arc::new(self.memory.rules().without_journal());
        let logs = MemoryEngine::new(EPOCH, rules, Vec::new(), usize::MAX);
        // A list goes on at the place where the logs of an earlier call have ended it.
        let logs = logs.with_hash_seed(EPOCH.number());
        let bytes = fs::read(&self.path).unwrap();
        let mut rest = &bytes[..];
        while let Some((length, behind)) = rest.split_first_chunk()
            && let Some((record, behind)) =
                behind.split_at_checked(u32::from_le_bytes(*length) as usize)
        {
            replay(&logs, record);
            rest = behind;
        }
        (logs, bytes.len() - rest.len())
    }

    /// Answers from the logs as they are now.
    fn read<T>(&self, read: impl FnOnce(MemoryEngine) -> T) -> T {
        let _file = self.lock();
        read(self.read_file().0)
    }

    /// Begins to change a log.
    fn begin(&self, now_ms: u64, channel: &ChannelName) -> Turn<'_> {
        let file = self.lock();
        let logs = self.read_file().0;
        let mut record = Encoder::new(RecordKind::Channel);
        encode_name(&mut record, channel);
        record.u64(now_ms);
        Turn { journal: self, file, logs, now_ms, record, messages: Vec::new() }
    }

    fn publish(&self, now_ms: u64, mut publication: Publication) -> Outcome {
        let receipt = publication.receipt.take();
        let mut turn = self.begin(now_ms, &publication.channel);
        let published = turn.publish(publication)?;
        if published.is_duplicate {
            self.memory.count_duplicate();
            return Ok(published);
        }
        let subscribers = turn.end(receipt.as_ref());
        Ok(Published { subscribers, ..published })
    }

    fn make_change(&self, now_ms: u64, mut change: LogChange) -> ChangeOutcome {
        let mut turn = self.begin(now_ms, &change.channel);
        let state = turn.logs.state(&change.channel);
        if !change.condition.holds(&state) {
            return Err(ChangeError::Conflict(state));
        }
        if state.is_ended() && change.is_refused_by_end() {
            return Err(PublishError::Ended.into());
        }
        change.admit(state.record.as_ref().map(|known| &known.record))?;
        let creates = change.creates(&state);
        let of_record =
            LogChange { record: change.record, ..LogChange::append(change.channel, Vec::new()) };
        // Messages come after the creation, and before the end.
        let first = if creates { Some(turn.change_record(of_record.clone())?) } else { None };
        let mut ids = Vec::new();
        for publication in change.messages {
            ids.push(turn.publish(publication)?.id);
        }
        let changed = first.map_or_else(|| turn.change_record(of_record), Ok)?;
        turn.end(None);
        Ok(Changed { ids, ..changed })
    }
}

/// A change of a log under way: nothing is changed before its end.
struct Turn<'a> {
    journal: &'a FileJournal,
    file: MutexGuard<'a, File>,
    /// As they will be.
    logs: MemoryEngine,
    now_ms: u64,
    record: Encoder,
    /// The new messages.
    messages: Vec<Arc<Content>>,
}

impl Turn<'_> {
    fn change_record(&mut self, of_record: LogChange) -> ChangeOutcome {
        let block = match &of_record.record {
            RecordChange::Keep => None,
            RecordChange::Write(record) => Some(record.block()),
            RecordChange::Remove => Some(&[][..]),
        };
        if let Some(block) = block {
            self.record.u8(LOG_RECORD);
            self.record.bytes(block);
        }
        self.logs.change(self.now_ms, of_record)
    }

    fn publish(&mut self, mut publication: Publication) -> Outcome {
        let name = publication.channel.clone();
        let key = publication.idempotency_key.take();
        let key = key.map(|key| key.scoped().to_owned()).unwrap_or_default();
        publication.idempotency_key = (!key.is_empty()).then(|| key.as_str().into());
        let published = self.logs.publish(self.now_ms, publication)?;
        if !published.is_duplicate {
            let newest = start_in(&self.logs, self.now_ms, &name, StartAt::Last(1));
            let content = newest.messages.into_iter().next_back();
            let content = content.expect("no rule of a test keeps nothing");
            self.record.u8(MESSAGE);
            self.record.bytes(key.as_bytes());
            encode_content(&mut self.record, &content);
            self.messages.push(content);
        }
        Ok(published)
    }

    /// Writes what has changed, and delivers the new messages. Returns how many subscriptions the
    /// last one has.
    fn end(self, receipt: Option<&Arc<Receipt>>) -> u64 {
        let Turn { journal, mut file, record, messages, .. } = self;
        let record = record.finish();
        file.write_all(&[&(record.len() as u32).to_le_bytes(), &*record].concat()).unwrap();
        file.sync_data().unwrap();
        let deliver = |content: &Arc<Content>| {
            journal.memory.deliver(content, receipt, || journal.parts.append(content))
        };
        messages.iter().map(deliver).last().unwrap_or_default()
    }
}

/// Makes the changes of a record of the file.
fn replay(logs: &MemoryEngine, record: &[u8]) {
    let (_, mut decoder) = Decoder::new(record).unwrap();
    let name = decode_name(&mut decoder).unwrap();
    let now_ms = decoder.u64().unwrap();
    while !decoder.is_empty() {
        match decoder.u8().unwrap() {
            MESSAGE => {
                let key = decoder.text().unwrap();
                replay_message(logs, key, decode_content(&mut decoder, EPOCH, &name).unwrap());
            }
            MARKER => {
                let id = MessageId { epoch: EPOCH, offset: decoder.u64().unwrap() };
                let may_go_back = decoder.u8().unwrap() != 0;
                let of = match name.kind() {
                    Kind::User => MarkerKey::inbox(name.name()),
                    _ => MarkerKey::channel(name.clone(), decoder.text().unwrap()),
                };
                // One that is refused was refused before.
                let _ = logs.read_marker(now_ms, &of, Some(Mark::new(id, may_go_back)));
            }
            ERASED_MARKERS => {
                let of = match name.kind() {
                    Kind::User => MarkersOf::User(name.name()),
                    _ => MarkersOf::Channel(&name),
                };
                logs.erase_markers(of);
            }
            LOG_RECORD => {
                let record = LogRecord::read(decoder.bytes().unwrap());
                let record = record.map_or(RecordChange::Remove, RecordChange::Write);
                let change = LogChange { record, ..LogChange::append(name.clone(), Vec::new()) };
                logs.change(now_ms, change).unwrap();
            }
            ERASURE => {
                let what = match (decoder.u8().unwrap(), decoder.u64().unwrap()) {
                    (0, offset) => Erase::Message(MessageId { epoch: EPOCH, offset }),
                    (1, _) => Erase::History,
                    _ => Erase::Log,
                };
                logs.erase(now_ms, &name, what);
            }
            other => panic!("no record has the part {other}"),
        }
    }
}

fn replay_message(logs: &MemoryEngine, key: &str, content: Content) {
    let expires_ms = content.expires_ms.map(NonZeroU64::get);
    let publication = Publication {
        content_type: content.content_type,
        idempotency_key: (!key.is_empty()).then(|| key.into()),
        excluded: content.extras.excluded(),
        attributes: content.extras.attributes().cloned(),
        expires_in_ms: expires_ms.map(|expires_ms| expires_ms.saturating_sub(content.time_ms)),
        ..Publication::new(content.channel, content.body)
    };
    let published = logs.publish(content.time_ms, publication).unwrap();
    assert_eq!((published.id, logs.watermark().stamp), (content.id, content.stamp));
}

impl Journal for FileJournal {
    fn append(
        &self,
        now_ms: u64,
        publication: Publication,
        _: Retention,
        _: Later<'_, Outcome>,
    ) -> Answer<Outcome> {
        self.publish(now_ms, publication).into()
    }

    fn change(
        &self,
        now_ms: u64,
        change: LogChange,
        _: Retention,
        _: Later<'_, ChangeOutcome>,
    ) -> Answer<ChangeOutcome> {
        self.make_change(now_ms, change).into()
    }

    fn state(
        &self,
        _: u64,
        channel: &ChannelName,
        _: Later<'_, Result<LogState, ChangeError>>,
    ) -> Answer<Result<LogState, ChangeError>> {
        Ok(self.read(|logs| logs.state(channel))).into()
    }

    fn erase(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        what: Erase,
        _: Later<'_, EraseOutcome>,
    ) -> Answer<EraseOutcome> {
        let (number, offset) = match what {
            Erase::Message(id) if id.epoch != EPOCH => {
                return Ok(Erased { messages: Some(0) }).into();
            }
            Erase::Message(id) => (0, id.offset),
            Erase::History => (1, 0),
            Erase::Log => (2, 0),
        };
        let mut turn = self.begin(now_ms, channel);
        turn.record.u8(ERASURE);
        turn.record.u8(number);
        turn.record.u64(offset);
        let erased = turn.logs.erase(now_ms, channel, what);
        turn.end(None);
        Ok(erased).into()
    }

    fn parts(&self) -> &Parts {
        &self.parts
    }

    fn ids(&self, _: &ChannelName) -> JournalIds {
        JournalIds { epoch: EPOCH, are_consecutive: true }
    }

    fn fetch(
        &self,
        now_ms: u64,
        channel: &ChannelName,
        reading: Reading,
        limits: Limits,
        _: Later<'_, Fetched>,
    ) -> Answer<Fetched> {
        // Opened first: what is delivered from now on is in the part, or in its tail.
        let held = self.parts.open(channel, reading, limits, AskerId::SERVER);
        held.fill(self.read(|logs| match reading {
            Reading::Start(start) => Part::Start(start_in(&logs, now_ms, channel, start)),
            Reading::Page(query, limit) => {
                Part::Page(page_in(&logs, now_ms, channel, (query, limit)))
            }
        }));
        Fetched::held_by(held).into()
    }

    fn read_marker(
        &self,
        now_ms: u64,
        of: &MarkerKey,
        mark: Option<Mark>,
        _: Later<'_, Marked>,
    ) -> Answer<Marked> {
        let before = self.read(|logs| logs.read_marker(now_ms, of, None)).unwrap();
        let mark = mark.filter(|mark| mark.id.epoch == EPOCH);
        if let Some(Mark { id, may_go_back, .. }) = mark {
            let mut turn = self.begin(now_ms, of.log());
            turn.record.u8(MARKER);
            turn.record.u64(id.offset);
            turn.record.u8(may_go_back.into());
            of.reader().into_iter().for_each(|user| turn.record.bytes(user.as_bytes()));
            turn.end(None);
        }
        let marker = self.read(|logs| logs.read_marker(now_ms, of, None)).unwrap();
        let has_moved = marker.read != before.read;
        if mark.is_some_and(|mark| mark.id.offset > 0 && marker.read.is_none()) {
            return Err(too_many_markers()).into();
        }
        Ok(ReadMarker { has_moved, ..marker }).into()
    }

    fn erase_markers(
        &self,
        of: MarkersOf<'_>,
        _: Later<'_, ErasedMarkers>,
    ) -> Answer<ErasedMarkers> {
        let name = match of {
            MarkersOf::User(user) => ChannelName::user(user),
            MarkersOf::Channel(channel) => channel.clone(),
        };
        let count = |file: &FileJournal| file.read(|logs| logs.metrics().read_markers);
        let before = count(self);
        let mut turn = self.begin(0, &name);
        turn.record.u8(ERASED_MARKERS);
        turn.end(None);
        Ok(MarkersErased { count: before - count(self), are_more: false }).into()
    }

    fn list_part(&self, now_ms: u64, query: &ListQuery) -> ListPart {
        self.read(|logs| logs.list_part(now_ms, query))
    }

    fn list(&self, kind: Kind, after: u64) -> ListStep {
        // Places of a journal begin at 1.
        let after = after.checked_sub(1).map(ListPlace);
        let mut step = self.read(|logs| logs.list(0, kind, after));
        for listed in &mut step.channels {
            listed.place = ListPlace(listed.place.0 + 1);
            listed.subscribers = self.memory.audience(&listed.name).subscribers;
        }
        step.next = step.next.map(|ListPlace(place)| ListPlace(place + 1));
        step
    }

    fn has_order(&self) -> bool {
        true
    }

    fn watermark(&self) -> Option<Watermark> {
        Some(self.read(|logs| logs.watermark()))
    }

    fn is_at_rest(&self) -> bool {
        true
    }
}

/// Channels whose logs are in this file.
fn channels(file: &Temporary, rules: Arc<Rules>, queues: Vec<Arc<WorkerQueue>>) -> Channels {
    let memory = Arc::new(MemoryEngine::new(EPOCH, rules, queues, usize::MAX));
    let journal = FileJournal::open(&file.0, Arc::clone(&memory));
    Channels::new(memory, vec![Arc::new(journal)])
}

#[test]
fn a_journal_over_a_plain_file_conforms() {
    let file = Temporary::new("conformance");
    let profile = Profile { has_many_channels: false, ..Profile::JOURNAL };
    conformance::run_with(profile, |rules, queues| {
        // Of an earlier check.
        let _ = fs::remove_file(&file.0);
        channels(&file, rules, queues)
    });
}

/// The ids of an inbox's messages in a file, and how far its user has read.
fn inbox_of(channels: &Channels, inbox: &ChannelName) -> (Vec<MessageId>, ReadMarker) {
    let reading = Reading::Page(HistoryQuery::Newest, 9);
    let _held = ask(|later| channels.fetch(1, inbox, reading, later)).recv();
    let page = channels.history(1, inbox, HistoryQuery::Newest, 9);
    let of = MarkerKey::inbox(inbox.name());
    let marker = ask(|later| channels.read_marker(1, &of, None, later)).recv();
    let marker = marker.unwrap().unwrap().unwrap();
    (page.messages.iter().map(|message| message.id).collect(), marker)
}

#[test]
fn a_file_that_was_cut_anywhere_has_all_before() {
    let file = Temporary::new("cut");
    let rule = Rule { journal: Some(JournalId(0)), ..Rule::default() };
    let rules = Arc::new(Rules::new(Vec::new(), rule));
    let open = || channels(&file, Arc::clone(&rules), Vec::new());
    let inbox = ChannelName::user("ann");
    let publish = |channels: &Channels, key: &str| {
        let publication = Publication {
            idempotency_key: Some(key.into()),
            ..Publication::new(inbox.clone(), Body::Text("x".into()))
        };
        let published = ask(|later| channels.publish(1, publication, later)).recv();
        published.unwrap().unwrap().unwrap()
    };
    let first = open();
    let id = publish(&first, "a").id;
    let mark = Some(Mark::new(id, false));
    ask(|later| first.read_marker(1, &MarkerKey::inbox("ann"), mark, later)).recv().unwrap();
    let (before, whole_bytes) = (inbox_of(&first, &inbox), fs::metadata(&file.0).unwrap().len());
    assert_eq!(before.1.read, Some(id));
    let lost = publish(&first, "b").id;
    let bytes = fs::read(&file.0).unwrap();
    for cut_at in whole_bytes as usize..bytes.len() {
        fs::write(&file.0, &bytes[..cut_at]).unwrap();
        let reopened = open();
        assert_eq!(inbox_of(&reopened, &inbox), before, "cut at {cut_at}");
        assert!(publish(&reopened, "a").is_duplicate, "cut at {cut_at}");
        assert_eq!(publish(&reopened, "b").id, lost, "cut at {cut_at}");
        assert_eq!(inbox_of(&open(), &inbox).0, [id, lost], "cut at {cut_at}");
    }
}
