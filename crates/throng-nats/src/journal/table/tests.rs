use throng_core::Retention;

use super::*;

const INFO: &str = "$JS.API.STREAM.INFO.KV_throng-t";
const GET: &str = "$JS.API.DIRECT.GET.KV_throng-t";

/// A table, and what it says.
struct Room {
    table: JournalTable,
    outbox: Outbox,
}

impl Room {
    fn new() -> Room {
        Room::of_servers(1)
    }

    fn of_servers(replicas: u8) -> Room {
        let stream = StreamSettings {
            prefix: "throng".into(),
            class: "channels".into(),
            replicas,
            is_in_memory: false,
            retention: Retention { max_messages: 1, max_bytes: 1, max_age_ms: 60_000 },
            bytes_max: 1 << 20,
            message_bytes_max: 1 << 17,
            duplicate_window_ms: 60_000,
        };
        let settings = TableSettings {
            name: "t".into(),
            kind: TableKind::States,
            max_age_ms: 60_000,
            bytes_max: 1 << 20,
            entry_bytes_max: 1 << 10,
        };
        let (mut outbox, table) =
            (Outbox::new("s".into(), "n"), JournalTable::new(&stream, &settings, TableId(0)));
        outbox.connected(1 << 10);
        let mut room = Room { table, outbox };
        room.table.subscribe(&mut room.outbox);
        room.table.connected(0, &mut room.outbox);
        room
    }

    /// The reports since the last call, and the subjects of questions.
    fn said(&mut self) -> (Vec<JournalReport>, Vec<String>) {
        let (mut reports, mut subjects) = (Vec::new(), Vec::new());
        for action in self.outbox.actions.drain(..) {
            match action {
                JournalAction::Report(report) => reports.push(report),
                JournalAction::Publish { subject, .. } => subjects.push(subject),
                JournalAction::Subscribe { .. } | JournalAction::Unsubscribe { .. } => {}
            }
        }
        (reports, subjects)
    }

    /// The servers say how far the table is.
    fn is_at(&mut self, now_ms: u64, last: u64) {
        self.is_within(now_ms, 1, last);
    }

    fn is_within(&mut self, now_ms: u64, first: u64, last: u64) {
        let state = serde_json::json!({ "first_seq": first, "last_seq": last });
        let info = serde_json::json!({
            "config": self.table.wanted, "created": "c", "state": state
        });
        let (token, info) = (self.table.token, info.to_string());
        let answer = (Headers::default(), info.as_bytes());
        self.table.answered(now_ms, token, answer, &mut self.outbox);
    }

    /// A server gives these entries, and has so many more.
    fn gives(&mut self, entries: &[u64], left: u64) {
        let mut last = 0;
        let mut blocks = Vec::new();
        for sequence in entries {
            let place = format!("Nats-Sequence: {sequence}\r\nNats-Last-Sequence: {last}");
            blocks.push(format!("NATS/1.0\r\nNats-Subject: $KV.throng-t.a\r\n{place}\r\n\r\n"));
            last = *sequence;
        }
        let place = format!("Nats-Num-Pending: {left}\r\nNats-Last-Sequence: {last}");
        blocks.push(format!("NATS/1.0 204 EOB\r\n{place}\r\n\r\n"));
        let token = self.table.token;
        for block in blocks {
            let answer = (Headers::new(block.as_bytes()), &b""[..]);
            self.table.answered(0, token, answer, &mut self.outbox);
        }
    }

    /// A change whose key has this entry already.
    fn conflicts_with(&mut self, last: u64) {
        let entry = TableEntry { key: "a".into(), value: Some([].into()) };
        self.table.change(0, 1, (entry, Some(0)), &mut self.outbox);
        let place = *self.table.changes.keys().next().expect("it was sent");
        let description = format!("wrong last sequence: {last}");
        let error =
            serde_json::json!({ "code": 400, "err_code": 10071, "description": description });
        let answer = serde_json::json!({ "error": error }).to_string();
        let answer = (Headers::default(), answer.as_bytes());
        self.table.change_answered(0, place, answer, &mut self.outbox);
    }

    /// The outcomes of changes that are said.
    fn outcomes(&mut self) -> Vec<Changed> {
        let outcome = |report| match report {
            JournalReport::Changed { outcome, .. } => Some(outcome),
            _ => None,
        };
        self.said().0.into_iter().filter_map(outcome).collect()
    }
}

#[test]
fn a_conflict_is_said_after_what_replaced_the_other_entry() {
    let mut room = Room::of_servers(3);
    room.is_at(0, 0);
    room.conflicts_with(1);
    room.table.compare(0, &mut room.outbox);
    room.gives(&[], 0);
    room.table.tick(RETRY_MS, &mut room.outbox);
    // The third entry has taken the place of the first one.
    room.is_within(RETRY_MS, 2, 3);
    room.gives(&[2], 0);
    assert_eq!(room.outcomes(), [], "this server lacks the third one");
    room.gives(&[3], 0);
    assert_eq!(room.outcomes(), [Changed::Conflict { last: 1 }]);
}

#[test]
fn a_conflict_is_said_after_what_an_answer_has_left_out() {
    let mut room = Room::of_servers(3);
    room.is_at(0, 0);
    room.conflicts_with(1);
    // This server knows that the ninth entry has replaced the first one, and the next one does not.
    room.gives(&[4, 6], 2);
    room.gives(&[8], 0);
    assert_eq!(room.outcomes(), []);
    room.is_within(0, 4, 9);
    assert_eq!(room.outcomes(), []);
    room.gives(&[9], 0);
    assert_eq!(room.outcomes(), [Changed::Conflict { last: 1 }]);
}

#[test]
fn a_change_that_is_denied_is_refused_at_once() {
    let mut room = Room::new();
    room.is_at(0, 0);
    for (token, key) in [(1, "a"), (2, "b"), (3, "a")] {
        let entry = TableEntry { key: key.into(), value: Some([].into()) };
        room.table.change(0, token, (entry, None), &mut room.outbox);
    }
    room.said();
    for (subject, token) in [("$KV.throng-t.b", 2), ("$KV.throng-t.a", 1)] {
        room.table.denied(1, subject, "no", &mut room.outbox);
        let outcome = Changed::Refused("no".into());
        assert_eq!(room.said().0, [JournalReport::Changed { token, outcome }]);
    }
    room.table.denied(1, "$KV.throng-t.b", "no", &mut room.outbox);
    assert_eq!(room.said().0, []);
}

#[test]
fn a_table_that_may_not_be_read_is_refused_at_once() {
    let mut room = Room::new();
    room.is_at(0, 2);
    assert_eq!(room.said().1, [INFO, GET]);
    room.table.denied(1, INFO, "no", &mut room.outbox);
    assert_eq!(room.said().0, [], "of a question that was answered");
    room.table.denied(1, GET, "no", &mut room.outbox);
    let reason = "NATS does not let this node use the bucket KV_throng-t: no".into();
    assert_eq!(room.said().0, [JournalReport::TableRefused { reason, limit: None }]);
}

#[test]
fn a_table_that_nobody_answers_for_is_refused_after_a_while() {
    let mut room = Room::new();
    room.said();
    let mut now_ms = 0;
    while now_ms < PATIENCE_MS - ANSWER_MS {
        now_ms += ANSWER_MS;
        room.table.tick(now_ms, &mut room.outbox);
        assert_eq!(room.said(), (vec![], vec![INFO.to_owned()]), "{now_ms}");
    }
    room.table.tick(now_ms + ANSWER_MS, &mut room.outbox);
    let reason = NO_LEADER.into();
    assert_eq!(room.said().0, [JournalReport::TableRefused { reason, limit: None }]);
    room.table.tick(now_ms + 2 * ANSWER_MS, &mut room.outbox);
    assert_eq!(room.said().0, [], "it is said once");
}

#[test]
fn who_compares_learns_of_a_question_after_that() {
    let mut room = Room::new();
    // The question that is under way may have been answered before.
    room.table.compare(5, &mut room.outbox);
    room.is_at(6, 0);
    assert_eq!(room.said().0, [JournalReport::Current { table: TableId(0), as_of_ms: 0 }]);
    room.table.tick(7, &mut room.outbox);
    assert_eq!(room.said().1, [INFO]);
    room.is_at(8, 0);
    assert_eq!(room.said().0, [JournalReport::Current { table: TableId(0), as_of_ms: 7 }]);
    room.table.tick(9, &mut room.outbox);
    assert_eq!(room.said().1, [""; 0]);
    room.table.compare(10, &mut room.outbox);
    assert_eq!(room.said().1, [INFO], "at once");
}
