//! The publications of one channel: sent in their order, many before the first is answered.
//!
//! As long as nothing fails, servers store them in the order in which they come. A leader that dies
//! may drop one and its successor store the next. So after a refusal or a lost answer, all that
//! have no answer are sent again in their order: the oldest one alone, and once it is answered two,
//! four and so on at a time.
//!
//! A publication is *overtaken* if a later one of the same asker is stored and its own outcome is
//! not known. It is not sent again, because it would be stored in another order.

use std::collections::VecDeque;
use std::sync::Arc;

use throng_core::{AskerId, LogRecord, Publication, PublishError, Replacement, creation};

use super::gate::Gate;
use super::known_keys::{KeyId, KnownKeys};
use crate::api::message;
use crate::journal::report::Outcome;

/// Publications of a channel that are sent and not answered, at most. Those of other channels wait
/// behind them in the stream, where 128 take a few milliseconds.
pub(super) const IN_FLIGHT_MAX: usize = 128;

/// After this time without an answer a publication is sent again.
const RESEND_MS: u64 = 1_000;

/// The floor of a publication that a stream has stored which fell: nothing that it says counts
/// before its epoch is known.
pub(super) const FALLEN: u64 = u64::MAX;

pub(super) struct Outstanding {
    pub(super) token: u64,
    /// Its place among all publications: those of later ones are greater.
    pub(super) number: u64,
    /// Under which its answers come; `None` before it is sent.
    pub(super) reply: Option<u64>,
    pub(super) headers: Arc<[u8]>,
    pub(super) body: Arc<[u8]>,
    /// How it was published, where the record of its channel may say how it is stored.
    pub(super) original: Option<Box<Original>>,
    /// The bytes that were counted when it came: what it becomes may have others.
    pub(super) counted_bytes: usize,
    /// The bytes of the condition that it is sent with.
    pub(super) condition_bytes: usize,
    pub(super) key: Option<KeyId>,
    pub(super) asker: AskerId,
    /// The stream's head when it was first sent.
    pub(super) floor: u64,
    pub(super) taken_ms: u64,
    /// When it is sent again if it has no answer.
    due_ms: u64,
    pub(super) sends: u32,
    /// True if it was sent more than once, so that several answers may come.
    pub(super) is_repeated: bool,
    /// True if a copy may have been stored: it was sent, and not refused.
    pub(super) is_uncertain: bool,
    /// The highest sequence of earlier ones of its asker that were stored while its own copies may
    /// have been.
    after: u64,
    /// The lowest sequence of those that have overtaken it.
    overtaken_at: Option<u64>,
}

/// A publication, and the names under which it is stored.
#[derive(Debug)]
pub(super) struct Original {
    pub(super) publication: Publication,
    pub(super) id: String,
    pub(super) receipt: Option<String>,
}

impl Outstanding {
    /// A publication that was not sent yet, without a key. It has no number yet.
    pub(super) fn new(
        now_ms: u64,
        token: u64,
        asker: AskerId,
        (headers, body): (Arc<[u8]>, Arc<[u8]>),
    ) -> Outstanding {
        Outstanding {
            token,
            number: 0,
            reply: None,
            headers,
            body,
            original: None,
            counted_bytes: 0,
            condition_bytes: 0,
            key: None,
            asker,
            floor: 0,
            taken_ms: now_ms,
            due_ms: 0,
            sends: 0,
            is_repeated: false,
            is_uncertain: false,
            after: 0,
            overtaken_at: None,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.headers.len() + self.body.len() + self.condition_bytes
    }

    /// The bytes that it counts as, until its end.
    pub(super) fn count_bytes(&mut self) -> usize {
        let original = self.original.as_ref();
        let original = original.map_or(0, |original| original.publication.body.bytes().len());
        self.counted_bytes = self.bytes() + original;
        self.counted_bytes
    }

    /// Makes of it what a channel with this record takes.
    fn admit(&mut self, record: Option<&LogRecord>) -> Result<(), PublishError> {
        let Some(original) = &self.original else { return Ok(()) };
        let Original { publication, id, receipt } = &**original;
        let admitted = creation::admit(record, publication.needs_creation, publication)?;
        if let Some(Replacement { body, content_type }) = admitted {
            let admitted = Publication { body, content_type, ..publication.clone() };
            self.headers = message::headers(&admitted, id, receipt.as_deref()).into();
            self.body = admitted.body.bytes().into();
        }
        Ok(())
    }

    /// True if no answer to it is expected any more.
    pub(super) fn is_overdue(&self, now_ms: u64) -> bool {
        self.due_ms <= now_ms
    }

    /// True if it is in its order with this sequence.
    pub(super) fn is_in_order(&self, sequence: u64) -> bool {
        let is_overtaken = self.overtaken_at.is_some_and(|overtaken_at| sequence > overtaken_at);
        sequence > self.after && !is_overtaken
    }

    /// The outcome if it is not tried any more.
    pub(super) fn unanswered(&self) -> Outcome {
        if self.is_uncertain { Outcome::Unknown } else { Outcome::Away }
    }
}

/// What is to be done with the next publication.
pub(super) enum NextStep {
    /// It has to wait, or there is none.
    Wait,
    Send,
    End(Outcome),
}

/// See the module.
pub(super) struct Pipeline {
    /// Oldest first.
    queue: VecDeque<Outstanding>,
    /// How many of them were sent since the last doubt.
    sent: usize,
    /// How many may be.
    window: usize,
    /// None is sent before.
    due_ms: u64,
    /// The last one that had been sent when there was a doubt, by its number: up to it, several
    /// copies are on their way.
    doubted: u64,
    /// Of a channel that may end.
    gate: Option<Box<Gate>>,
}

impl Pipeline {
    pub(super) fn new() -> Pipeline {
        // Mostly one. The first push would make room for four.
        let queue = VecDeque::with_capacity(1);
        Pipeline { queue, sent: 0, window: IN_FLIGHT_MAX, due_ms: 0, doubted: 0, gate: None }
    }

    /// One of a channel that may end. Its first publication finds out whether it has.
    pub(super) fn gated(gate: Gate) -> Pipeline {
        Pipeline { window: 1, gate: Some(Box::new(gate)), ..Pipeline::new() }
    }

    pub(super) fn gate(&self) -> Option<&Gate> {
        self.gate.as_deref()
    }

    pub(super) fn gate_mut(&mut self) -> Option<&mut Gate> {
        self.gate.as_deref_mut()
    }

    /// True if there is something to send now: publications, or the question for the record that
    /// they depend on.
    pub(super) fn has_work(&self, now_ms: u64) -> bool {
        self.is_ready(now_ms) || self.gate().is_some_and(|gate| gate.is_due(now_ms))
    }

    /// The number of the newest publication; 0 without one.
    pub(super) fn newest(&self) -> u64 {
        self.queue.back().map_or(0, |newest| newest.number)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn oldest(&self) -> Option<&Outstanding> {
        self.queue.front()
    }

    pub(super) fn push(&mut self, outstanding: Outstanding) {
        debug_assert!(self.queue.back().is_none_or(|last| last.number < outstanding.number));
        self.queue.push_back(outstanding);
    }

    /// The place of the publication with this number.
    pub(super) fn find(&self, number: u64) -> Option<usize> {
        self.queue.binary_search_by_key(&number, |outstanding| outstanding.number).ok()
    }

    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut Outstanding> {
        self.queue.get_mut(at)
    }

    /// The place of the next publication to be sent.
    pub(super) fn next(&self) -> usize {
        self.sent
    }

    /// True if [`Pipeline::next_step`] is another one than to wait, unless it waits for a key.
    pub(super) fn is_ready(&self, now_ms: u64) -> bool {
        let is_open = self.gate().is_none_or(Gate::is_open);
        is_open && self.due_ms <= now_ms && self.sent < self.window.min(self.queue.len())
    }

    pub(super) fn next_step(
        &self,
        now_ms: u64,
        bytes_max: usize,
        known_keys: &KnownKeys,
    ) -> NextStep {
        let Some(next) = self.queue.get(self.sent).filter(|_| self.is_ready(now_ms)) else {
            return NextStep::Wait;
        };
        if next.overtaken_at.is_some() {
            return NextStep::End(next.unanswered());
        }
        // This server takes less than the one before, or less than it did.
        if next.bytes() > bytes_max {
            return NextStep::End(match next.unanswered() {
                Outcome::Away => Outcome::TooLarge { bytes_max },
                unknown => unknown,
            });
        }
        let Some(key) = next.key else { return NextStep::Send };
        // While a message with its key is being stored, servers refuse another one.
        if self.queue.iter().take(self.sent).any(|earlier| earlier.key == Some(key)) {
            return NextStep::Wait;
        }
        let known = known_keys.find(now_ms, &key).filter(|_| next.sends == 0);
        known.map_or(NextStep::Send, |sequence| {
            NextStep::End(Outcome::Stored { sequence, is_duplicate: true })
        })
    }

    /// The same step, unless the record of the channel says that the next publication is not taken.
    pub(super) fn admitted(&mut self, step: NextStep) -> NextStep {
        let (NextStep::Send, Some(gate)) = (&step, &self.gate) else { return step };
        let Some(next) = self.queue.get_mut(self.sent) else { return step };
        match next.admit(gate.record.as_deref()) {
            Ok(()) => step,
            Err(error) => NextStep::End(match next.unanswered() {
                Outcome::Away => Outcome::State(error),
                unknown => unknown,
            }),
        }
    }

    /// The next publication, which is sent now, and the token of its answers: `reply` gives it one
    /// when it is sent first. The stream has reached `last`.
    pub(super) fn send(
        &mut self,
        now_ms: u64,
        last: u64,
        reply: impl FnOnce(&Outstanding) -> u64,
    ) -> Option<(&Outstanding, u64, Option<&Gate>)> {
        let next = self.queue.get_mut(self.sent)?;
        self.sent += 1;
        next.due_ms = now_ms + RESEND_MS;
        if !next.is_uncertain {
            next.floor = last;
        }
        next.sends += 1;
        next.is_uncertain = true;
        next.is_repeated = next.reply.is_some();
        let reply = next.reply.unwrap_or_else(|| reply(next));
        next.reply = Some(reply);
        Some((next, reply, self.gate.as_deref()))
    }

    /// The publication at this place and all after it are sent again, not before this time.
    pub(super) fn doubt(&mut self, at: usize, due_ms: u64) {
        if let Some(first) = self.queue.get_mut(at).filter(|first| !first.is_uncertain) {
            // As if it had never been sent. A refusal that comes again, as if two servers led, is
            // none of the next copy.
            (first.sends, first.reply) = (0, None);
        }
        let last = self.sent.checked_sub(1).and_then(|last| self.queue.get(last));
        self.doubted = last.map_or(0, |last| last.number).max(self.doubted);
        self.sent = self.sent.min(at);
        self.window = 1;
        self.due_ms = due_ms;
    }

    /// If the oldest one has had no answer for too long, all are sent again.
    pub(super) fn doubt_if_due(&mut self, now_ms: u64) {
        let oldest = self.queue.front().filter(|_| self.sent > 0);
        if oldest.is_some_and(|oldest| oldest.due_ms <= now_ms) {
            self.doubt(0, 0);
        }
    }

    /// The servers answer: more may be under way.
    pub(super) fn widen(&mut self) {
        let is_narrow = self.gate().is_some_and(|gate| gate.is_narrow);
        self.window = if is_narrow { 1 } else { (2 * self.window).min(IN_FLIGHT_MAX) };
    }

    /// The publication at this place is stored with this sequence.
    pub(super) fn stored(&mut self, at: usize, sequence: u64) {
        let Some(asker) = self.queue.get(at).map(|stored| stored.asker) else { return };
        if !asker.is_client() {
            return;
        }
        for earlier in self.queue.iter_mut().take(at).filter(|earlier| earlier.asker == asker) {
            let lowest = earlier.overtaken_at.unwrap_or(u64::MAX);
            earlier.overtaken_at = Some(lowest.min(sequence));
        }
        let doubted = self.doubted;
        let later = self.queue.iter_mut().skip(at + 1);
        for later in later.take_while(|later| later.number <= doubted) {
            if later.asker == asker {
                later.after = later.after.max(sequence);
            }
        }
    }

    pub(super) fn remove(&mut self, at: usize) -> Option<Outstanding> {
        let removed = self.queue.remove(at)?;
        self.sent -= usize::from(at < self.sent);
        Some(removed)
    }

    /// The stream is another one: the sequences of the one before mean nothing.
    pub(super) fn begin_epoch(&mut self) {
        for outstanding in &mut self.queue {
            (outstanding.floor, outstanding.after) = (0, 0);
            // What has overtaken it was stored before all that is stored now.
            outstanding.overtaken_at = outstanding.overtaken_at.map(|_| 0);
        }
        self.gate.iter_mut().for_each(|gate| gate.begin_epoch());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANN: AskerId = AskerId::of_connection(1);
    const BOB: AskerId = AskerId::of_connection(2);

    /// Publications of these askers with the numbers 1, 2 and so on.
    fn pipeline(askers: &[AskerId]) -> Pipeline {
        let mut pipeline = Pipeline::new();
        for (asker, number) in askers.iter().zip(1..) {
            let content = ([].into(), [].into());
            let mut outstanding = Outstanding::new(0, number, *asker, content);
            outstanding.number = number;
            pipeline.push(outstanding);
        }
        pipeline
    }

    /// Sends all that may be sent. Returns their numbers, and the outcomes of those that end.
    fn send(pipeline: &mut Pipeline, now_ms: u64) -> (Vec<u64>, Vec<Outcome>) {
        let (mut sent, mut ended) = (Vec::new(), Vec::new());
        loop {
            match pipeline.next_step(now_ms, 1 << 20, &KnownKeys::default()) {
                NextStep::Wait => return (sent, ended),
                NextStep::Send => {
                    sent.extend(pipeline.send(now_ms, 0, |_| 7).map(|(sent, ..)| sent.number));
                }
                NextStep::End(outcome) => {
                    pipeline.remove(pipeline.next());
                    ended.push(outcome);
                }
            }
        }
    }

    #[test]
    fn many_are_sent_before_the_first_is_answered() {
        let mut pipeline = pipeline(&[ANN; 2 * IN_FLIGHT_MAX]);
        let sent = send(&mut pipeline, 0).0;
        assert_eq!(sent, (1..=IN_FLIGHT_MAX as u64).collect::<Vec<_>>());
        let at = pipeline.find(5).expect("it is under way");
        pipeline.remove(at);
        assert_eq!(send(&mut pipeline, 0).0, [IN_FLIGHT_MAX as u64 + 1]);
        assert_eq!(pipeline.find(5), None);
    }

    #[test]
    fn after_a_doubt_one_is_sent_alone_and_then_more() {
        let mut pipeline = pipeline(&[ANN; 20]);
        assert_eq!(send(&mut pipeline, 0).0.len(), 20);
        pipeline.doubt_if_due(RESEND_MS - 1);
        assert!(send(&mut pipeline, RESEND_MS - 1).0.is_empty());
        pipeline.doubt_if_due(RESEND_MS);
        assert_eq!(send(&mut pipeline, RESEND_MS).0, [1]);
        for expected in [vec![2, 3], vec![4, 5, 6], vec![7, 8, 9, 10, 11]] {
            pipeline.widen();
            pipeline.remove(0);
            assert_eq!(send(&mut pipeline, RESEND_MS).0, expected);
        }
    }

    #[test]
    fn a_refused_one_and_those_after_it_wait_until_it_is_due() {
        let mut pipeline = pipeline(&[ANN; 4]);
        send(&mut pipeline, 0);
        pipeline.doubt(1, 100);
        assert!(send(&mut pipeline, 99).0.is_empty());
        // The first one still has no answer, and one may be under way.
        assert!(send(&mut pipeline, 100).0.is_empty());
        pipeline.remove(0);
        assert_eq!(send(&mut pipeline, 100).0, [2]);
    }

    #[test]
    fn an_overtaken_one_is_not_sent_again() {
        let mut pipeline = pipeline(&[ANN, BOB, AskerId::SERVER, ANN, AskerId::SERVER]);
        send(&mut pipeline, 0);
        pipeline.stored(3, 7);
        pipeline.remove(3);
        pipeline.stored(3, 8);
        pipeline.remove(3);
        let ann = pipeline.get_mut(0).expect("it is under way");
        assert!(ann.is_in_order(6) && !ann.is_in_order(8));
        pipeline.doubt(0, 0);
        let (sent, ended) = send(&mut pipeline, 0);
        assert_eq!((sent, ended), (vec![2], vec![Outcome::Unknown]), "others are sent again");
    }

    #[test]
    fn an_overtaken_one_that_was_refused_is_known_not_to_be_stored() {
        let mut pipeline = pipeline(&[ANN, ANN]);
        send(&mut pipeline, 0);
        pipeline.get_mut(0).expect("it is under way").is_uncertain = false;
        pipeline.doubt(0, 0);
        pipeline.stored(1, 7);
        assert_eq!(send(&mut pipeline, 0).1, [Outcome::Away]);
    }

    #[test]
    fn an_early_copy_of_a_later_one_is_out_of_order() {
        let mut pipeline = pipeline(&[ANN, ANN, ANN]);
        pipeline.window = 2;
        send(&mut pipeline, 0);
        pipeline.doubt(0, 0);
        pipeline.stored(0, 9);
        for (at, is_in_order) in [(1, false), (2, true)] {
            let later = pipeline.get_mut(at).expect("it is there");
            assert_eq!(later.is_in_order(8), is_in_order, "{at}: only the first two were sent");
        }
    }

    #[test]
    fn the_second_with_a_key_waits_for_the_first() {
        let mut pipeline = pipeline(&[ANN, BOB, ANN]);
        for at in [0, 1] {
            pipeline.get_mut(at).expect("it is there").key = Some([7; 16]);
        }
        assert_eq!(send(&mut pipeline, 0).0, [1]);
        pipeline.remove(0);
        let mut known = KnownKeys::default();
        known.add(0, [7; 16], 5);
        let NextStep::End(outcome) = pipeline.next_step(0, 1 << 20, &known) else {
            panic!("it is known")
        };
        assert_eq!(outcome, Outcome::Stored { sequence: 5, is_duplicate: true });
    }
}
