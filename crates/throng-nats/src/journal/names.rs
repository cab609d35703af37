//! The names of the channels that have messages, a record or a state in the stream, for lists.
//!
//! A stream cannot be asked for them a page at a time, in no order that all nodes know. So a node
//! that is asked for lists learns all of them from a consumer, and keeps them for a while. The
//! consumer stays, too: whoever asks again gets only what has come since.
//!
//! # Invariants
//!
//! * Each [`JournalEvent::Name`](super::JournalEvent::Name) gets one [`JournalReport::Named`] that
//!   ends it.
//! * If that says [`Naming::End`], all names were reported that were there when it was asked, in
//!   this answer or in earlier ones of the same consumer.

use throng_core::{ChannelName, Kind};

use super::outbox::{CONSUMERS, Outbox, Question};
use super::report::{JournalReport, LastOfLog, NamedLog, Naming};
use crate::api::StreamSettings;
use crate::api::consumer;
use crate::protocol::decoder::ServerMessage;
use crate::protocol::headers::Headers;
use crate::subject::{self, Subjects};

#[cfg(test)]
mod tests;

/// Messages that one request asks for: what they tell is taken within a millisecond.
const PULL: usize = 1_000;

/// Within this time a consumer has to be there: its server passes all channels first, which takes
/// two seconds with a million.
const CREATE_MS: u64 = 30_000;

/// Without a message for this time, an answer is lost.
const PULL_MS: u64 = 2_000;

/// For so long after a consumer was made, servers may not know yet where it is.
const NEW_MS: u64 = 2_000;

/// Until it is asked again.
const AGAIN_MS: u64 = 20;

/// For so long a server with a copy of the stream may lag behind the others. The consumer is on one
/// of them.
const LAGS_MS: u64 = 30;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Create,
    Pull,
    /// It is pulled from this time on.
    WaitUntil(u64),
}

/// A request that is being answered.
struct Task {
    token: u64,
    step: Step,
    /// Under which the answer to the step comes.
    asked: u64,
    /// When the last answer came.
    heard_ms: u64,
    began_ms: u64,
    /// When its consumer was made, if it was for this.
    created_ms: Option<u64>,
    got: usize,
}

/// The reader of the names of a kind.
#[derive(Default)]
struct Reader {
    /// The name of its consumer, once it is asked for.
    consumer: Option<String>,
    /// How many messages the consumer has given.
    given: u64,
    /// What these say, if it is not reported yet. A request may give a message after the last one
    /// that was there when it came.
    logs: Vec<NamedLog>,
    task: Option<Task>,
}

/// See the module.
pub(super) struct Names {
    stream: String,
    nonce: String,
    has_replicas: bool,
    next_consumer: u64,
    /// Of channels, and of users.
    readers: [Reader; 2],
}

fn place(kind: Kind) -> Option<usize> {
    match kind {
        Kind::Channel => Some(0),
        Kind::User => Some(1),
        Kind::Internal => None,
    }
}

fn end(reader: &mut Reader, naming: Naming, outbox: &mut Outbox) {
    if matches!(naming, Naming::Failed(_)) {
        // It may have given what did not arrive.
        *reader = Reader { task: reader.task.take(), ..Reader::default() };
    }
    if let Some(task) = reader.task.take() {
        outbox.answered(task.asked);
        let logs = std::mem::take(&mut reader.logs);
        outbox.report(JournalReport::Named { token: task.token, logs, naming });
    }
}

fn pull(reader: &mut Reader, outbox: &mut Outbox) {
    let (Some(task), Some(name)) = (&mut reader.task, &reader.consumer) else { return };
    outbox.answered(task.asked);
    let request = consumer::pull(PULL);
    (task.step, task.got) = (Step::Pull, 0);
    task.asked = outbox.ask_consumer(("MSG.NEXT", name), Question::Names, request);
}

impl Names {
    pub(super) fn new(settings: &StreamSettings, nonce: &str) -> Names {
        Names {
            stream: settings.name(),
            nonce: nonce.to_owned(),
            has_replicas: settings.replicas > 1,
            next_consumer: 0,
            readers: Default::default(),
        }
    }

    /// Learns the names of a kind: all of them, or those that were not reported since.
    pub(super) fn ask(
        &mut self,
        now_ms: u64,
        (token, kind, is_anew): (u64, Kind, bool),
        subjects: &Subjects,
        outbox: &mut Outbox,
    ) {
        let reader = place(kind).map(|place| &mut self.readers[place]);
        let is_ready =
            |reader: &&mut Reader| reader.task.is_none() && (is_anew || reader.consumer.is_some());
        let Some(reader) = reader.filter(is_ready) else {
            let (logs, naming) = (Vec::new(), Naming::Failed(None));
            return outbox.report(JournalReport::Named { token, logs, naming });
        };
        reader.task = Some(Task {
            token,
            step: Step::Create,
            asked: 0,
            heard_ms: now_ms,
            began_ms: now_ms,
            created_ms: None,
            got: 0,
        });
        if !is_anew {
            return pull(reader, outbox);
        }
        self.next_consumer += 1;
        let name = format!("{}n{}", self.nonce, self.next_consumer);
        let request = consumer::create(&self.stream, &name, &subjects.all_of(kind));
        let asked = outbox.ask_consumer(("CREATE", &name), Question::Names, request);
        (reader.consumer, reader.given, reader.logs) = (Some(name), 0, Vec::new());
        reader.task.as_mut().into_iter().for_each(|task| task.asked = asked);
    }

    /// Takes an answer that is no message of a consumer. `first`: the stream's first sequence.
    pub(super) fn answered(
        &mut self,
        (now_ms, token): (u64, u64),
        (headers, payload): (Headers<'_>, &[u8]),
        first: u64,
        outbox: &mut Outbox,
    ) {
        outbox.answered(token);
        let is_asked =
            |reader: &&mut Reader| reader.task.as_ref().is_some_and(|task| task.asked == token);
        let Some(reader) = self.readers.iter_mut().find(is_asked) else { return };
        let Some(task) = &mut reader.task else { return };
        task.heard_ms = now_ms;
        let is_new = |created_ms| reader.given == 0 && now_ms < created_ms + NEW_MS;
        match (task.step, headers.status()) {
            (Step::Create, None) => match consumer::created(payload) {
                Ok(()) => {
                    task.created_ms = Some(now_ms);
                    pull(reader, outbox);
                }
                Err(error) => {
                    let said = error.advised();
                    let reason = format!("NATS does not let this node list channels: {said}");
                    end(reader, Naming::Failed(Some(reason)), outbox);
                }
            },
            // There are no more.
            (Step::Pull, Some(404)) => self.all_came(now_ms, token, first, outbox),
            (Step::Pull, Some(503)) if task.created_ms.is_some_and(is_new) => {
                task.step = Step::WaitUntil(now_ms + AGAIN_MS);
            }
            _ => end(reader, Naming::Failed(None), outbox),
        }
    }

    /// Takes a message of a consumer. Returns whether it is one.
    pub(super) fn given(
        &mut self,
        now_ms: u64,
        message: &ServerMessage<'_>,
        (subjects, first): (&Subjects, u64),
        outbox: &mut Outbox,
    ) -> bool {
        let Some(given) = message.reply.and_then(consumer::given) else { return false };
        let is_own = |reader: &&mut Reader| reader.consumer.as_deref() == Some(given.consumer);
        let Some(reader) = self.readers.iter_mut().find(is_own) else { return true };
        if given.number <= reader.given {
            return true;
        }
        if given.number > reader.given + 1 {
            end(reader, Naming::Failed(None), outbox);
            return true;
        }
        reader.given = given.number;
        let suffix = subjects.suffix_of(message.subject).unwrap_or_default();
        let beside = suffix.strip_prefix(subject::RECORD);
        let beside = beside.or_else(|| Some(subjects.channel_of_key(message.subject)?.0));
        let (of, last) = match beside {
            Some(of) => (of, LastOfLog::Beside),
            None => (suffix, LastOfLog::Message),
        };
        let channel: Option<ChannelName> = subject::channel(of);
        let logged = channel.map(|channel| NamedLog { channel, sequence: given.sequence, last });
        reader.logs.extend(logged);
        let Some(task) = reader.task.as_mut().filter(|task| task.step == Step::Pull) else {
            return true;
        };
        (task.heard_ms, task.got) = (now_ms, task.got + 1);
        let (asked, token) = (task.asked, task.token);
        if given.left == 0 {
            self.all_came(now_ms, asked, first, outbox);
        } else if task.got == PULL {
            let logs = std::mem::take(&mut reader.logs);
            outbox.report(JournalReport::Named { token, logs, naming: Naming::More });
            pull(reader, outbox);
        }
        true
    }

    /// The consumer that was asked under a token has given all that its server has.
    fn all_came(&mut self, now_ms: u64, token: u64, first: u64, outbox: &mut Outbox) {
        let has_replicas = self.has_replicas;
        let lags = |task: &Task| has_replicas && now_ms < task.began_ms + LAGS_MS;
        for reader in &mut self.readers {
            let Some(task) = reader.task.as_mut().filter(|task| task.asked == token) else {
                continue;
            };
            if lags(task) {
                outbox.answered(token);
                (task.step, task.asked) = (Step::WaitUntil(task.began_ms + LAGS_MS), 0);
            } else {
                end(reader, Naming::End { first }, outbox);
            }
        }
    }

    /// The servers do not let this node publish to a subject.
    pub(super) fn denied(&mut self, subject: &str, error: &str, outbox: &mut Outbox) {
        if !subject.starts_with(CONSUMERS) {
            return;
        }
        let reason = format!("NATS does not let this node publish to {subject}: {error}");
        for reader in &mut self.readers {
            end(reader, Naming::Failed(Some(reason.clone())), outbox);
        }
    }

    /// The stream is away, or another one. The consumers may be gone, or what they have given.
    pub(super) fn cancel(&mut self, outbox: &mut Outbox) {
        self.readers.iter_mut().for_each(|reader| end(reader, Naming::Failed(None), outbox));
    }

    pub(super) fn tick(&mut self, now_ms: u64, outbox: &mut Outbox) {
        for reader in &mut self.readers {
            let Some(task) = &reader.task else { continue };
            let silent_ms = now_ms.saturating_sub(task.heard_ms);
            match task.step {
                Step::WaitUntil(until_ms) if now_ms >= until_ms => pull(reader, outbox),
                Step::Create if silent_ms >= CREATE_MS => {
                    end(reader, Naming::Failed(None), outbox);
                }
                Step::Pull if silent_ms >= PULL_MS => end(reader, Naming::Failed(None), outbox),
                _ => {}
            }
        }
    }
}
