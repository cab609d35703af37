//! Publications under way, with answers that come as a test says.

use throng_core::{AskerId, Body, ChannelName, Retention};

use super::*;
use crate::journal::outbox::JournalAction;

const ASKER: AskerId = AskerId::of_connection(7);

fn publishing(replicas: u8) -> Publishing {
    let retention = Retention { max_messages: 100, max_bytes: 1 << 20, max_age_ms: 60_000 };
    let settings = StreamSettings {
        prefix: "s".into(),
        class: "channels".into(),
        replicas,
        is_in_memory: false,
        retention,
        bytes_max: 1 << 30,
        message_bytes_max: 1 << 17,
        duplicate_window_ms: 300_000,
    };
    Publishing::new(&settings, "n", 4_000)
}

fn request(publication: Publication) -> PublishRequest {
    PublishRequest { token: 9, publication, asker: ASKER, may_end: false, state: None }
}

fn publication(key: Option<&str>) -> Publication {
    Publication {
        idempotency_key: key.map(Into::into),
        ..Publication::new(ChannelName::channel("a"), Body::Text("x".into()))
    }
}

/// A publication that was sent when the stream had reached 7.
struct Sent {
    publishing: Publishing,
    outbox: Outbox,
    subjects: Subjects,
}

impl Sent {
    fn with(key: Option<&str>) -> Sent {
        let mut publishing = publishing(1);
        let (subjects, mut outbox) =
            (Subjects::new("throng", "channels"), Outbox::new("s".into(), "n"));
        outbox.connected(1 << 20);
        let about = (&subjects, true);
        publishing.publish(0, &request(publication(key)), about, &mut outbox);
        let mut sent = Sent { publishing, outbox, subjects };
        sent.send(0, 7);
        sent
    }

    fn send(&mut self, now_ms: u64, last: u64) {
        self.publishing.tick(now_ms, true, &mut self.outbox);
        self.publishing.send(now_ms, last, &self.subjects, &mut self.outbox);
    }

    /// Answers what was sent last. Returns also what is reported of it.
    fn answer(
        &mut self,
        sequence: u64,
        duplicate: bool,
    ) -> (Option<StoreOutcome>, Vec<JournalReport>) {
        let mut sent = self.outbox.actions.drain(..).rev();
        let reply = sent.find_map(|action| match action {
            JournalAction::Publish { reply, .. } => reply,
            _ => None,
        });
        drop(sent);
        let reply = reply.expect("it was sent");
        let found = self.outbox.question(&reply).expect("it is open");
        let (_, Question::Ack(suffix, number)) = found else { panic!("{reply}") };
        let text = format!(r#"{{"stream":"s-channels","seq":{sequence},"duplicate":{duplicate}}}"#);
        let answer = (Headers::new(b""), text.as_bytes());
        let stored = self.publishing.answered(50, (number, &suffix), answer, &mut self.outbox);
        let reported = self.outbox.actions.drain(..).filter_map(|action| match action {
            JournalAction::Report(report) => Some(report),
            _ => None,
        });
        (stored, reported.collect())
    }
}

fn published(sequence: u64, is_duplicate: bool) -> Vec<JournalReport> {
    let outcome = Outcome::Stored { sequence, is_duplicate };
    vec![JournalReport::Published { token: 9, outcome }]
}

#[test]
fn an_answer_of_a_stream_that_fell_waits_for_the_epoch() {
    let mut sent = Sent::with(None);
    assert_eq!(sent.answer(7, false), (Some(StoreOutcome::Fallen), vec![]));
    // It is not known yet.
    sent.send(200, 7);
    assert_eq!(sent.answer(7, true), (Some(StoreOutcome::Fallen), vec![]));
    sent.publishing.begin_epoch(9);
    sent.send(400, 7);
    let stored = StoreOutcome::At { sequence: 7, needs_hint: true };
    assert_eq!(sent.answer(7, true), (Some(stored), published(7, false)));
}

#[test]
fn what_comes_after_what_was_reached_is_passed_on_at_once() {
    let mut sent = Sent::with(None);
    let stored = StoreOutcome::At { sequence: 8, needs_hint: false };
    assert_eq!(sent.answer(8, false), (Some(stored), published(8, false)));
}

/// Publishes another message. Returns the subject of its answer.
fn next_reply(sent: &mut Sent, key: Option<&str>) -> String {
    let Sent { publishing, outbox, subjects } = sent;
    publishing.publish(0, &request(publication(key)), (subjects, true), outbox);
    sent.send(60, 8);
    let mut replies = sent.outbox.actions.iter().rev().filter_map(|action| match action {
        JournalAction::Publish { reply, .. } => reply.clone(),
        _ => None,
    });
    replies.next().expect("it was sent")
}

#[test]
fn the_subject_of_an_answer_is_used_again() {
    let mut sent = Sent::with(None);
    sent.answer(8, false);
    let [second, third] = [(); 2].map(|()| next_reply(&mut sent, None));
    assert_eq!(second, "_INBOX.n.2", "the first one is stored");
    assert_ne!(third, second, "the second one has no answer yet");
}

#[test]
fn a_second_answer_is_not_taken_for_the_next_publication() {
    let mut sent = Sent::with(None);
    sent.answer(8, false);
    assert_eq!(next_reply(&mut sent, None), "_INBOX.n.2");
    assert_eq!(sent.answer(8, true), (Some(StoreOutcome::Fallen), vec![]));
}

#[test]
fn a_subject_to_which_more_may_come_is_not_used_again() {
    let mut sent = Sent::with(Some("key"));
    sent.answer(8, false);
    assert_ne!(next_reply(&mut sent, None), "_INBOX.n.2", "it had a key");
    let mut sent = Sent::with(None);
    sent.publishing.disconnected();
    sent.send(50, 7);
    sent.answer(8, false);
    assert_ne!(next_reply(&mut sent, None), "_INBOX.n.2", "it was sent twice");
    let mut sent = Sent::with(None);
    sent.answer(8, false);
    assert_ne!(next_reply(&mut sent, Some("key")), "_INBOX.n.2", "this one has a key");
}

#[test]
fn a_message_beyond_a_lowered_limit_is_not_sent_again() {
    for (is_sent, expected) in
        [(true, Outcome::Unknown), (false, Outcome::TooLarge { bytes_max: 1 })]
    {
        let mut sent = Sent::with(None);
        if !is_sent {
            let one = publication(None);
            sent.publishing = publishing(1);
            let Sent { publishing, outbox, subjects } = &mut sent;
            publishing.publish(0, &request(one), (subjects, true), outbox);
        }
        sent.publishing.disconnected();
        sent.outbox.actions.clear();
        sent.outbox.connected(1);
        sent.send(100, 7);
        let ended = JournalReport::Published { token: 9, outcome: expected };
        assert!(sent.outbox.actions.contains(&JournalAction::Report(ended)));
        assert_eq!(sent.publishing.outstanding(), 0);
    }
}

#[test]
fn nothing_is_sent_while_too_much_waits_to_be_written() {
    let mut sent = Sent::with(None);
    sent.outbox.actions.clear();
    for now_ms in (2_000..3_000).step_by(50) {
        sent.publishing.tick(now_ms, true, &mut sent.outbox);
        sent.publishing.pause();
    }
    assert!(sent.outbox.actions.is_empty() && sent.publishing.ready.is_empty());
    sent.send(3_000, 7);
    assert_eq!(sent.outbox.actions.len(), 1);
}

#[test]
fn a_node_knows_its_own_keys_when_the_stream_forgets_them() {
    let mut sent = Sent::with(Some("key"));
    sent.answer(8, false);
    let again = publication(Some("key"));
    let Sent { publishing, outbox, subjects } = &mut sent;
    let again = request(again);
    publishing.publish(100, &again, (subjects, true), outbox);
    let reported = outbox.actions.drain(..).collect::<Vec<_>>();
    let expected = published(8, true).into_iter().map(JournalAction::Report).collect::<Vec<_>>();
    assert_eq!(reported, expected);
    assert_eq!(publishing.outstanding(), 0);
    // Sequences of another epoch mean nothing.
    publishing.begin_epoch(9);
    publishing.publish(100, &again, (subjects, true), outbox);
    assert_eq!(publishing.outstanding(), 1);
}

#[test]
fn a_key_that_was_known_has_an_old_sequence() {
    let mut sent = Sent::with(Some("key"));
    let stored = StoreOutcome::At { sequence: 3, needs_hint: false };
    assert_eq!(sent.answer(3, true), (Some(stored), published(3, true)));
    let mut sent = Sent::with(Some("key"));
    assert_eq!(sent.answer(3, false).0, Some(StoreOutcome::Fallen), "it is new");
    sent.send(200, 7);
    assert_eq!(sent.answer(3, true).0, Some(StoreOutcome::Fallen), "and is no old one now");
}

/// Publications to a channel that may end, on so many servers.
struct Gated {
    sent: Sent,
    /// The questions and publications that wait for an answer.
    asked: Vec<(u64, Question, String)>,
}

const RECORD: &str = "throng.in.channels.r.c.a";

impl Gated {
    fn new(replicas: u8) -> Gated {
        let mut outbox = Outbox::new("s".into(), "n");
        outbox.connected(1 << 20);
        outbox.actions.clear();
        let subjects = Subjects::new("throng", "channels");
        let sent = Sent { publishing: publishing(replicas), outbox, subjects };
        Gated { sent, asked: Vec::new() }
    }

    fn publish(&mut self, token: u64) {
        let Sent { publishing, outbox, subjects } = &mut self.sent;
        let request = PublishRequest { token, may_end: true, ..request(publication(None)) };
        publishing.publish(0, &request, (subjects, true), outbox);
    }

    /// Sends what may be. Returns the conditions of publications, by the expected sequence, and how
    /// often the record is asked for.
    fn send(&mut self, now_ms: u64) -> (Vec<u64>, usize) {
        self.sent.send(now_ms, 7);
        let (mut expected, mut questions) = (Vec::new(), 0);
        for action in std::mem::take(&mut self.sent.outbox.actions) {
            let JournalAction::Publish { reply: Some(reply), headers, payload, .. } = action else {
                self.sent.outbox.actions.push(action);
                continue;
            };
            let (token, question) = self.sent.outbox.question(&reply).expect("it is open");
            match question {
                Question::Gate(_) => {
                    assert_eq!(&*payload, get::last(RECORD));
                    questions += 1;
                }
                _ => {
                    let headers = Headers::new(&headers);
                    assert_eq!(headers.get(beside::EXPECTED_OF), Some(RECORD));
                    expected.extend(headers.number(beside::EXPECTED));
                }
            }
            self.asked.push((token, question, reply));
        }
        (expected, questions)
    }

    /// Answers the oldest one that has no answer.
    fn answer(&mut self, text: &str) {
        let (token, question, _) = self.asked.remove(0);
        let Sent { publishing, outbox, .. } = &mut self.sent;
        match question {
            Question::Gate(suffix) => {
                publishing.record_is((0, token), &suffix, text.as_bytes(), outbox)
            }
            Question::Ack(suffix, number) => {
                let answer = (Headers::new(b""), text.as_bytes());
                publishing.answered(0, (number, &suffix), answer, outbox);
            }
            other => panic!("{other:?}"),
        }
    }

    fn outcomes(&mut self) -> Vec<(u64, Outcome)> {
        let reports = self.sent.outbox.actions.drain(..).map(|action| match action {
            JournalAction::Report(JournalReport::Published { token, outcome }) => (token, outcome),
            other => panic!("{other:?}"),
        });
        reports.collect()
    }
}

fn record(sequence: u64, is_of_end: bool) -> String {
    let values: [(u16, &[u8]); 1] =
        if is_of_end { [(throng_core::Attribute::End as u16, b"")] } else { [(9_999, b"x")] };
    let record = throng_core::LogRecord::of(&values).expect("it is short");
    let data = base64::engine::general_purpose::STANDARD.encode(record.block());
    format!(r#"{{"message":{{"subject":"{RECORD}","seq":{sequence},"data":"{data}"}}}}"#)
}

fn other_record(sequence: u64) -> String {
    let description = format!("wrong last sequence: {sequence}");
    format!(r#"{{"error":{{"code":400,"err_code":10071,"description":"{description}"}}}}"#)
}

fn stored(sequence: u64) -> String {
    format!(r#"{{"stream":"s-channels","seq":{sequence}}}"#)
}

#[test]
fn publications_to_a_channel_that_has_ended_cost_one_question() {
    let mut gated = Gated::new(1);
    (1..=5).for_each(|token| gated.publish(token));
    assert_eq!(gated.send(0), (vec![0], 0), "the first one finds out");
    gated.answer(&other_record(6));
    assert_eq!(gated.send(0), (vec![], 1));
    // What comes after the question is asked about anew.
    gated.publish(6);
    gated.answer(&record(6, true));
    let ended: Vec<_> = (1..=5).map(|token| (token, Outcome::Ended)).collect();
    assert_eq!(gated.outcomes(), ended);
    assert_eq!(gated.send(0), (vec![], 1));
    gated.answer(&record(6, true));
    assert_eq!(gated.outcomes(), [(6, Outcome::Ended)]);
    // The next one does not try again.
    gated.publish(7);
    assert_eq!(gated.send(0), (vec![], 1));
    gated.answer(&record(9, false));
    assert_eq!(gated.send(0), (vec![9], 0), "it was opened again");
    gated.answer(&stored(10));
    assert_eq!(gated.outcomes(), [(7, Outcome::Stored { sequence: 10, is_duplicate: false })]);
    gated.publish(8);
    assert_eq!(gated.send(0), (vec![9], 0), "the record is known");
}

#[test]
fn one_publication_at_a_time_has_a_condition_on_several_servers() {
    for (replicas, expected) in [(1, 2), (3, 1)] {
        let mut gated = Gated::new(replicas);
        (1..=4).for_each(|token| gated.publish(token));
        assert_eq!(gated.send(0).0.len(), 1);
        gated.answer(&stored(8));
        assert_eq!(gated.send(0).0.len(), expected, "{replicas}");
    }
}

const BUSY: &str = r#"{"error":{"code":400,"err_code":10164,"description":"wrong last sequence"}}"#;

/// A server that leads no more refuses the first copy as well, after its successor has.
#[test]
fn a_second_refusal_is_not_taken_for_that_of_the_next_copy() {
    let mut gated = Gated::new(3);
    gated.publish(1);
    let replies = [(); 2].map(|()| {
        assert_eq!(gated.send(0), (vec![0], 0));
        let reply = gated.asked[0].2.clone();
        gated.answer(BUSY);
        reply
    });
    assert_ne!(replies[0], replies[1]);
}

#[test]
fn a_publication_in_whose_way_another_one_is_goes_again() {
    let mut gated = Gated::new(3);
    gated.publish(1);
    for _ in 0..4 {
        assert_eq!(gated.send(0), (vec![0], 0));
        gated.answer(BUSY);
    }
    assert_eq!(gated.send(0), (vec![], 0), "it gives way now");
    assert_eq!(gated.send(RETRY_MS), (vec![0], 0));
    gated.answer(&stored(8));
    assert_eq!(gated.outcomes().len(), 1);
}

#[test]
fn a_publication_that_may_be_stored_is_not_said_to_come_after_the_end() {
    let mut gated = Gated::new(1);
    gated.publish(1);
    assert_eq!(gated.send(0), (vec![0], 0));
    // The answer is lost, and the second copy comes after the end.
    gated.sent.publishing.disconnected();
    gated.asked.clear();
    assert_eq!(gated.send(0), (vec![0], 0));
    gated.answer(&other_record(9));
    assert_eq!(gated.send(0), (vec![], 1));
    gated.answer(&record(9, true));
    assert_eq!(gated.outcomes(), [], "its answer may still come");
    assert_eq!(gated.send(1_200), (vec![], 1));
    let (token, question, _) = gated.asked.remove(0);
    let Question::Gate(suffix) = question else { panic!("{question:?}") };
    let Sent { publishing, outbox, .. } = &mut gated.sent;
    publishing.record_is((1_200, token), &suffix, record(9, true).as_bytes(), outbox);
    assert_eq!(gated.outcomes(), [(1, Outcome::Unknown)]);
}
