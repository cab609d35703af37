use throng_core::Retention;

use super::*;
use crate::journal::JournalAction;

/// The reader of names, and what it says.
struct Room {
    names: Names,
    subjects: Subjects,
    outbox: Outbox,
    /// The subject of the last request, and where its answer goes.
    asked: (String, u64),
}

/// A report of names: how many, and how it goes on.
type Said = (u64, Vec<(String, u64, LastOfLog)>, Naming);

impl Room {
    fn new(replicas: u8) -> Room {
        let stream = StreamSettings {
            prefix: "t".into(),
            class: "c".into(),
            replicas,
            is_in_memory: false,
            retention: Retention { max_messages: 1, max_bytes: 1, max_age_ms: 60_000 },
            bytes_max: 1 << 20,
            message_bytes_max: 1 << 17,
            duplicate_window_ms: 60_000,
        };
        let mut outbox = Outbox::new(stream.name(), "n");
        outbox.connected(1 << 10);
        let (names, subjects) = (Names::new(&stream, "n"), Subjects::new("t", "c"));
        Room { names, subjects, outbox, asked: Default::default() }
    }

    /// The names that were reported since the last call.
    fn said(&mut self) -> Vec<Said> {
        let mut said = Vec::new();
        for action in self.outbox.actions.drain(..) {
            match action {
                JournalAction::Report(JournalReport::Named { token, logs, naming }) => {
                    let named =
                        |log: NamedLog| (log.channel.name().to_owned(), log.sequence, log.last);
                    said.push((token, logs.into_iter().map(named).collect(), naming));
                }
                JournalAction::Publish { subject, reply: Some(reply), .. } => {
                    let token = reply.rsplit_once('.').expect("it has a token").1;
                    self.asked = (subject, token.parse().expect("a number"));
                }
                _ => {}
            }
        }
        said
    }

    fn ask(&mut self, now_ms: u64, token: u64, is_anew: bool) -> Vec<Said> {
        let asked = (token, Kind::Channel, is_anew);
        self.names.ask(now_ms, asked, &self.subjects, &mut self.outbox);
        self.said()
    }

    /// A server answers the last request.
    fn answer(&mut self, now_ms: u64, headers: &str, payload: &str) -> Vec<Said> {
        let answer = (Headers::new(headers.as_bytes()), payload.as_bytes());
        self.names.answered((now_ms, self.asked.1), answer, 5, &mut self.outbox);
        self.said()
    }

    /// The consumer with this name gives its message with this number.
    fn give(&mut self, consumer: &str, number: u64, suffix: &str, left: u64) -> Vec<Said> {
        let reply = format!("$JS.ACK.t-c.{consumer}.1.{}.{number}.9.{left}", 100 + number);
        let headers = "NATS/1.0\r\nNats-Msg-Size: 0\r\n\r\n";
        let message = ServerMessage {
            subject: &format!("t.in.c.{suffix}"),
            sid: 1,
            reply: Some(&reply),
            headers: Headers::new(headers.as_bytes()),
            payload: b"",
        };
        let stream = (&self.subjects, 5);
        assert!(self.names.given(7, &message, stream, &mut self.outbox));
        self.said()
    }
}

const CREATED: &str = r#"{"name":"n"}"#;
const NONE: &str = "NATS/1.0 404 No Messages\r\n\r\n";

const NOBODY: &str = "NATS/1.0 503\r\n\r\n";

fn end(token: u64, logs: Vec<(String, u64, LastOfLog)>) -> Vec<Said> {
    vec![(token, logs, Naming::End { first: 5 })]
}

#[test]
fn all_names_are_told_and_then_those_that_come() {
    let mut room = Room::new(1);
    assert_eq!(room.ask(0, 1, true), []);
    assert_eq!(room.asked.0, "$JS.API.CONSUMER.CREATE.t-c.nn1");
    assert_eq!(room.answer(1, "", CREATED), []);
    assert_eq!(room.asked.0, "$JS.API.CONSUMER.MSG.NEXT.t-c.nn1");
    assert_eq!(room.give("nn1", 1, "c.a%2Eb", 1), []);
    assert_eq!(room.give("nn1", 1, "c.a%2Eb", 1), [], "it comes twice");
    let told = vec![
        ("a.b".to_owned(), 101, LastOfLog::Message),
        ("r".to_owned(), 102, LastOfLog::Beside),
        ("s".to_owned(), 103, LastOfLog::Beside),
    ];
    assert_eq!(room.give("nn1", 2, "r.c.r", 1), []);
    assert_eq!(room.give("nn1", 3, "k.c.s.%", 0), end(1, told));
    // One more was given before the server saw that there are no more.
    assert_eq!(room.give("nn1", 4, "c.late", 0), []);
    assert_eq!(room.ask(9, 2, false), []);
    assert_eq!(room.asked.0, "$JS.API.CONSUMER.MSG.NEXT.t-c.nn1");
    let late = vec![("late".to_owned(), 104, LastOfLog::Message)];
    assert_eq!(room.answer(9, NONE, ""), end(2, late));
}

#[test]
fn many_names_come_in_parts() {
    let mut room = Room::new(1);
    room.ask(0, 1, true);
    room.answer(1, "", CREATED);
    let before = room.asked.1;
    for number in 1..PULL as u64 {
        assert_eq!(room.give("nn1", number, "c.a", 9_000), []);
    }
    let said = room.give("nn1", PULL as u64, "c.a", 5);
    assert_eq!((said[0].1.len(), &said[0].2), (PULL, &Naming::More));
    assert_ne!(room.asked.1, before, "the next ones are asked for");
    let last = vec![("z".to_owned(), 1_101, LastOfLog::Message)];
    assert_eq!(room.give("nn1", PULL as u64 + 1, "c.z", 0), end(1, last));
}

#[test]
fn a_name_that_did_not_arrive_is_not_passed_over() {
    let failed = |token| vec![(token, vec![], Naming::Failed(None))];
    let mut room = Room::new(1);
    room.ask(0, 1, true);
    room.answer(1, "", CREATED);
    room.give("nn1", 1, "c.a", 5);
    let said = room.give("nn1", 3, "c.c", 3);
    assert_eq!((said[0].0, &said[0].2), (1, &Naming::Failed(None)));
    assert_eq!(room.ask(5, 2, false), failed(2), "all have to be read");
    // An answer that does not come at all.
    room.ask(5, 3, true);
    room.answer(6, "", CREATED);
    assert_eq!(room.asked.0, "$JS.API.CONSUMER.MSG.NEXT.t-c.nn2");
    room.names.tick(6 + PULL_MS - 1, &mut room.outbox);
    assert_eq!(room.said(), []);
    room.names.tick(6 + PULL_MS, &mut room.outbox);
    assert_eq!(room.said(), failed(3));
    // A consumer that is gone.
    room.ask(9_000, 4, true);
    room.answer(9_000, "", CREATED);
    assert_eq!(room.answer(9_000 + NEW_MS, NOBODY, ""), failed(4));
    room.ask(9_000, 5, true);
    room.names.cancel(&mut room.outbox);
    assert_eq!(room.said(), failed(5));
}

#[test]
fn a_consumer_that_servers_do_not_know_yet_is_asked_again() {
    let mut room = Room::new(1);
    room.ask(0, 1, true);
    room.answer(10, "", CREATED);
    let before = room.asked.1;
    assert_eq!(room.answer(11, NOBODY, ""), []);
    room.names.tick(11 + AGAIN_MS, &mut room.outbox);
    assert_eq!(room.said(), []);
    assert_ne!(room.asked.1, before);
    let one = vec![("a".to_owned(), 101, LastOfLog::Message)];
    assert_eq!(room.give("nn1", 1, "c.a", 0), end(1, one));
}

#[test]
fn a_refusal_of_a_consumer_says_why() {
    let mut room = Room::new(1);
    room.ask(0, 1, true);
    let said = room.answer(1, "", r#"{"error":{"err_code":10026,"description":"maximum"}}"#);
    let why = "NATS does not let this node list channels: maximum (error 10026)";
    assert_eq!(said, [(1, vec![], Naming::Failed(Some(why.into())))]);
    room.ask(0, 2, true);
    room.names.denied("$JS.API.CONSUMER.CREATE.t-c.nn2", "no", &mut room.outbox);
    let said = room.said();
    let Naming::Failed(Some(why)) = &said[0].2 else { panic!("{said:?}") };
    assert!(why.starts_with("NATS does not let this node publish to $JS.API.CONSUMER.CREATE"));
}

#[test]
fn copies_have_a_moment_to_catch_up() {
    let mut room = Room::new(3);
    room.ask(0, 1, true);
    room.answer(1, "", CREATED);
    let before = room.asked.1;
    assert_eq!(room.answer(2, NONE, ""), []);
    room.names.tick(LAGS_MS - 1, &mut room.outbox);
    assert_eq!((room.said(), room.asked.1), (vec![], before));
    room.names.tick(LAGS_MS, &mut room.outbox);
    assert_eq!(room.said(), []);
    assert_ne!(room.asked.1, before, "it is asked again");
    assert_eq!(room.answer(LAGS_MS + 1, NONE, ""), end(1, vec![]));
}
