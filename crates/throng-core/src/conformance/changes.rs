//! Checks of changes: several messages at once, conditions, records and erasure.

use super::{NOW_MS, RETAINED, Subject, attributes, ids, name, publication};
use crate::attributes::Erasure;
use crate::change::{
    ChangeError, ChangeOutcome, Changed, Condition, Erase, Erased, KnownRecord, LogChange,
    LogRecord, LogState, RecordChange, RecordVersion,
};
use crate::id::MessageId;
use crate::later::ask;
use crate::listing::ListedChannel;
use crate::name::{ChannelName, Kind};
use crate::publication::Publication;
use crate::reading::{HistoryQuery, StartAt};

fn record(text: &[u8]) -> LogRecord {
    LogRecord::of(&[(1, text), (9_999, b"\xff")]).expect("it is in order")
}

fn known(version: RecordVersion, text: &[u8]) -> KnownRecord {
    KnownRecord { version, record: record(text) }
}

fn appended(texts: &[&str]) -> LogChange {
    LogChange::append(name(), texts.iter().map(|text| publication(&name(), text)).collect())
}

impl Subject {
    pub(super) fn change(&self, change: LogChange) -> ChangeOutcome {
        let outcome = ask(|later| self.engine.change(NOW_MS, change, later)).recv();
        outcome.ok().flatten().expect("the journal answers")
    }

    pub(super) fn changed(&self, change: LogChange) -> Changed {
        self.change(change).expect("its condition holds")
    }

    pub(super) fn state_of(&self, channel: &ChannelName) -> LogState {
        let state = ask(|later| self.engine.state(NOW_MS, channel, later)).recv();
        state.ok().flatten().expect("the journal answers").expect("it can be read")
    }

    fn version(&self) -> RecordVersion {
        self.state_of(&name()).record_version()
    }

    pub(super) fn erase(&self, what: Erase) -> Erased {
        let outcome = ask(|later| self.engine.erase(NOW_MS, &name(), what, later)).recv();
        outcome.ok().flatten().expect("the journal answers").expect("it can be written")
    }

    fn all_ids(&self) -> Vec<MessageId> {
        ids(&self.history(HistoryQuery::Newest, 99).messages)
    }

    pub(super) fn a_change_appends_several_messages_in_order(&self) {
        let first = self.publish(&name(), "first").id;
        let followed = self.follow(&name(), 0, StartAt::Live);
        let with_attributes =
            Publication { attributes: Some(attributes()), ..publication(&name(), "b") };
        let change = LogChange {
            messages: vec![publication(&name(), "a"), with_attributes],
            ..appended(&[])
        };
        let Changed { ids: changed, record } = self.changed(change);
        let last = self.publish(&name(), "last").id;
        let messages = self.messages(0);
        let texts: Vec<_> = messages.iter().map(|message| message.body.bytes()).collect();
        assert_eq!(texts, [&b"a"[..], b"b", b"last"]);
        assert_eq!((changed.len(), record), (2, 0));
        assert_eq!(ids(&messages), [changed[0], changed[1], last]);
        let mut previous = followed.head;
        assert_eq!(previous, first);
        for message in &messages {
            assert_eq!(message.previous, previous.offset);
            previous = message.id;
        }
        assert_eq!(messages[1].extras.attributes(), Some(&attributes()));
        assert_eq!(self.all_ids(), [changed[0], changed[1], last], "{RETAINED} are kept");
        assert_eq!(self.changed(appended(&[])), Changed { ids: Vec::new(), record: 0 });
    }

    pub(super) fn a_change_is_made_only_if_its_condition_holds(&self) {
        let unused = self.state_of(&name());
        assert_eq!(unused.record, None);
        self.follow(&name(), 0, StartAt::Live);
        let at = |head| Condition { head: Some(head), ..Condition::default() };
        let on = |condition, texts: &[&str]| LogChange { condition, ..appended(texts) };
        let first = self.changed(on(at(unused.head), &["a", "b"])).ids;
        for condition in
            [at(unused.head), at(first[0]), Condition { record: Some(7), ..at(first[1]) }]
        {
            let refused = self.change(on(condition.clone(), &["never", "never"]));
            let state = LogState { head: first[1], record: None };
            assert_eq!(refused, Err(ChangeError::Conflict(state)), "{condition:?}");
        }
        let next = self.changed(on(at(first[1]), &["c"])).ids;
        assert_eq!(self.state_of(&name()).head, next[0]);
        let last = self.publish(&name(), "d").id;
        let refused = self.change(on(at(next[0]), &["never"]));
        assert!(matches!(refused, Err(ChangeError::Conflict(state)) if state.head == last));
        assert_eq!(ids(&self.messages(0)), [first[0], first[1], next[0], last]);
    }

    pub(super) fn a_record_is_kept_beside_the_messages(&self) {
        let write = |text, version: RecordVersion, texts: &[&str]| LogChange {
            condition: Condition { record: Some(version), ..Condition::default() },
            record: RecordChange::Write(record(text)),
            ..appended(texts)
        };
        let created = self.changed(write(b"created", 0, &[]));
        assert!(created.ids.is_empty() && created.record > 0);
        let state = self.state_of(&name());
        assert_eq!(state.record, Some(known(created.record, b"created")));
        // Another one cannot create it, too, and publications leave it where it is.
        let again = self.change(write(b"created again", 0, &["never"]));
        assert_eq!(again, Err(ChangeError::Conflict(state)));
        let published = self.publish_some();
        let state = self.state_of(&name());
        assert_eq!((Some(&state.head), self.version()), (published.last(), created.record));
        let next = self.changed(write(b"next", created.record, &["with it"]));
        assert!(next.record != created.record && next.record > 0);
        assert_eq!(
            self.state_of(&name()),
            LogState { head: next.ids[0], record: Some(known(next.record, b"next")) }
        );
        assert_eq!(self.changed(appended(&["keeps it"])).record, next.record);
        let remove = LogChange { record: RecordChange::Remove, ..appended(&[]) };
        assert_eq!(self.changed(remove.clone()).record, 0);
        assert_eq!(self.version(), 0);
        assert_eq!(self.changed(remove).record, 0);
        let anew = self.changed(write(b"anew", 0, &[])).record;
        assert!(![0, created.record, next.record].contains(&anew));
        // Another channel has another one.
        assert_eq!(self.state_of(&ChannelName::user("news")).record, None);
    }

    pub(super) fn an_erased_message_is_gone_and_leaves_no_gap(&self) {
        let before = self.publish(&name(), "before").id;
        let [first, middle, last] =
            ["first", "middle", "last"].map(|text| self.publish(&name(), text).id);
        let followed = self.follow(&name(), 0, StartAt::Live);
        for id in [middle, first] {
            assert_ne!(self.erase(Erase::Message(id)).messages, Some(0));
        }
        for id in [middle, before, MessageId { offset: last.offset + 9, ..last }] {
            assert_ne!(self.erase(Erase::Message(id)).messages, Some(1), "{id}");
        }
        assert_eq!(self.all_ids(), [last]);
        for after in [before, first, middle] {
            let followed = self.follow(&name(), 1, StartAt::After(after));
            assert_eq!(followed.is_recovered, Some(true), "after {after}");
            let found = followed.backlog.iter().filter(|it| !it.body.bytes().is_empty());
            assert_eq!(found.map(|it| it.id).collect::<Vec<_>>(), [last], "after {after}");
            let mut cursor = followed.cursor.offset;
            for message in &followed.backlog {
                assert!(message.previous <= cursor, "a gap before {}", message.id);
                cursor = message.id.offset;
            }
        }
        assert_ne!(self.erase(Erase::Message(last)).messages, Some(0));
        assert_eq!(self.all_ids(), []);
        let next = self.publish(&name(), "next");
        assert!(next.id.offset > last.offset);
        let messages = self.messages(0);
        assert_eq!(ids(&messages), [next.id]);
        assert!(messages[0].previous <= followed.head.offset, "no gap for those who follow");
        assert_eq!(self.all_ids(), [next.id]);
    }

    pub(super) fn a_notice_tells_everybody_of_an_erasure(&self) {
        let [first, second] = ["first", "second"].map(|text| self.publish(&name(), text).id);
        self.follow(&name(), 0, StartAt::Live);
        let erasure = Erasure::of(first.offset);
        let notice = self.changed(LogChange::notice(name(), erasure)).ids[0];
        // A reader that comes between the notice and the erasure has what others have.
        let between = self.follow(&name(), 1, StartAt::Last(3));
        let bodies = between.backlog.iter().map(|it| it.body.bytes());
        assert!(bodies.into_iter().all(|body| body != b"first"), "{:?}", between.backlog);
        self.erase(Erase::Message(first));
        let messages = self.messages(0);
        assert_eq!(ids(&messages), [notice]);
        assert_eq!(messages[0].erasure(), Some(erasure));
        assert_eq!(self.all_ids(), [second, notice]);
        // A notice is none of the last messages, and comes with them.
        assert_eq!(ids(&self.follow(&name(), 1, StartAt::Last(1)).backlog), [second, notice]);
        let resumed = self.follow(&name(), 1, StartAt::After(first));
        assert_eq!(resumed.is_recovered, Some(true));
        assert_eq!(ids(&resumed.backlog), [second, notice]);
        assert_eq!(resumed.backlog[1].erasure(), Some(erasure));
    }

    pub(super) fn an_erased_history_is_a_gap_for_those_who_resume(&self) {
        let published = self.publish_some();
        let last = *published.last().expect("some were published");
        let followed = self.follow(&name(), 0, StartAt::Live);
        let write = LogChange { record: RecordChange::Write(record(b"kept")), ..appended(&[]) };
        let version = self.changed(write).record;
        assert_ne!(self.erase(Erase::History).messages, Some(0));
        assert_ne!(self.erase(Erase::History).messages, Some(RETAINED as u64));
        assert_eq!((self.all_ids(), self.version()), (Vec::new(), version));
        let next = self.publish(&name(), "next").id;
        assert!(next.offset > last.offset, "no offset names two messages");
        let messages = self.messages(0);
        assert_eq!(ids(&messages), [next]);
        assert!(messages[0].previous <= followed.head.offset, "no gap for those who follow");
        let resumed = self.follow(&name(), 1, StartAt::After(published[published.len() - 2]));
        assert_eq!(resumed.is_recovered, Some(false));
        assert_eq!(ids(&resumed.backlog), [next]);
        assert_ne!(self.erase(Erase::Log).messages, Some(0));
        assert_eq!((self.all_ids(), self.version()), (Vec::new(), 0));
    }

    /// Erases a message, as requests do.
    fn erase_with_notice(&self, id: MessageId) {
        self.changed(LogChange::notice(name(), Erasure::of(id.offset)));
        assert_ne!(self.erase(Erase::Message(id)).messages, Some(0));
    }

    fn ids_without_notices(&self) -> Vec<MessageId> {
        let page = self.history(HistoryQuery::Newest, 99);
        page.messages.iter().filter(|it| !it.is_notice()).map(|it| it.id).collect()
    }

    pub(super) fn erasures_push_out_no_other_message(&self) {
        let mut kept = self.publish_some().split_off(1);
        let before = kept[0];
        for id in kept.split_off(1) {
            self.erase_with_notice(id);
        }
        if self.profile.counts_notices {
            return;
        }
        assert_eq!(self.ids_without_notices(), kept);
        // As many as were erased have room.
        kept.extend((1..RETAINED).map(|n| self.publish(&name(), &n.to_string()).id));
        assert_eq!(self.ids_without_notices(), kept);
        let last = self.follow(&name(), 0, StartAt::Last(RETAINED));
        let found = last.backlog.iter().filter(|it| !it.is_blank()).map(|it| it.id);
        assert_eq!(found.collect::<Vec<_>>(), kept);
        assert_eq!(self.follow(&name(), 0, StartAt::After(before)).is_recovered, Some(true));
        kept.remove(0);
        kept.push(self.publish(&name(), "one too many").id);
        assert_eq!(self.ids_without_notices(), kept);
    }

    pub(super) fn places_and_notices_of_erased_messages_are_bounded(&self) {
        let first = self.publish(&name(), "first").id;
        for n in 0..20 * RETAINED {
            let id = self.publish(&name(), &n.to_string()).id;
            self.erase_with_notice(id);
            // Who is there keeps up.
            self.messages(0);
        }
        let followed = self.follow(&name(), 0, StartAt::After(first));
        assert_eq!(followed.is_recovered, Some(false));
        let entries = followed.backlog.len();
        assert!(entries <= 4 * RETAINED + 1, "{entries} are left");
        assert_eq!(self.ids_without_notices(), []);
    }

    pub(super) fn a_log_with_a_record_is_listed(&self) {
        let write = LogChange { record: RecordChange::Write(record(b"here")), ..appended(&[]) };
        self.changed(write);
        let is_listed = || {
            let listed = self.list(Kind::Channel);
            listed.iter().any(|ListedChannel { name: listed, .. }| *listed == name())
        };
        assert!(is_listed());
        self.erase(Erase::Log);
        self.engine.tick(NOW_MS);
        assert_eq!(self.version(), 0);
        assert!(!is_listed());
    }
}
