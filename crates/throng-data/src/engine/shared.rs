//! State shared by the engine, the journal's thread and the readers.

use std::sync::Arc;
use std::time::Duration;

use throng_core::change::{ChangeError, ChangeOutcome, Changed, EraseOutcome, Erased};
use throng_core::parts::{HeldPart, Limits, Part, Parts, Reserved, Start};
use throng_core::{
    ChannelName, HistoryQuery, JournalId, MemoryEngine, MessageId, Outcome, PublishError,
    Published, Reading, Rule, StartAt,
};

use super::expired_runs::ExpiredRuns;
use super::read::LogReader;
use super::read_state::{StateReading, StateToRead, StateTurn};
use super::readers::ReadTurn;
use crate::journal::{JournalRefused, JournalWritten};
use crate::logs::{Appended, Logs};
use crate::storage::StorageError;

/// Turns of a reading that somebody waits for, at most.
const TURNS_NOW_MAX: usize = 100;

/// How long one of them waits until what it has read is acknowledged, at most.
const WAIT_NOW: Duration = Duration::from_millis(20);

/// State that the threads of the journal and the readers share with the engine.
pub(super) struct EngineShared {
    pub(super) memory: Arc<MemoryEngine>,
    /// The name of this journal in rules.
    pub(super) id: JournalId,
    pub(super) logs: Arc<Logs>,
    pub(super) parts: Arc<Parts>,
    pub(super) expired: ExpiredRuns,
    /// The time of the newest call.
    #[cfg(test)]
    pub(super) called_ms: std::sync::atomic::AtomicU64,
}

impl From<JournalRefused> for PublishError {
    fn from(refused: JournalRefused) -> PublishError {
        match refused {
            JournalRefused::Busy => PublishError::Busy,
            JournalRefused::Full => PublishError::DiskFull,
            JournalRefused::OverLimit => PublishError::OverLimit,
            JournalRefused::Failed => PublishError::Away,
        }
    }
}

impl EngineShared {
    /// The rule of a channel, if this journal keeps its log.
    pub(super) fn durable(&self, channel: &ChannelName) -> Option<&Rule> {
        let rule = self.memory.rule(channel);
        (rule.journal == Some(self.id)).then_some(rule)
    }

    /// The publisher's answer.
    pub(super) fn outcome(&self, written: Result<JournalWritten, JournalRefused>) -> Outcome {
        let JournalWritten { appended, subscribers } = written?;
        Ok(match appended {
            Appended::New(content) => {
                Published { id: content.id, subscribers, is_duplicate: false }
            }
            Appended::Known(id) => {
                self.memory.count_duplicate();
                Published { id, subscribers, is_duplicate: true }
            }
            Appended::Refused(ChangeError::Refused(refused)) => return Err(refused),
            _ => return Err(PublishError::Refused),
        })
    }

    /// The answer to a change.
    pub(super) fn changed(&self, written: Result<JournalWritten, JournalRefused>) -> ChangeOutcome {
        match written.map_err(PublishError::from)?.appended {
            Appended::Changed(contents, record) => {
                Ok(Changed { ids: contents.iter().map(|content| content.id).collect(), record })
            }
            Appended::Refused(refused) => Err(refused),
            _ => Err(PublishError::Refused.into()),
        }
    }

    /// The answer to an erasure.
    pub(super) fn erased(&self, written: Result<JournalWritten, JournalRefused>) -> EraseOutcome {
        match written.map_err(PublishError::from)?.appended {
            Appended::Erased(messages, _) => Ok(Erased { messages }),
            _ => Err(PublishError::Refused.into()),
        }
    }

    pub(super) fn reader<'a>(
        &'a self,
        now_ms: u64,
        name: &'a ChannelName,
        reading: Reading,
    ) -> LogReader<'a> {
        let is_known = match reading {
            Reading::Start(StartAt::Since(position))
            | Reading::Page(HistoryQuery::Since(position), _) => self.memory.is_known(position),
            _ => false,
        };
        LogReader { logs: &self.logs, name, now_ms, is_known, expired: &self.expired }
    }

    /// Reads a part from the disk, in a log without a state. `None` if that takes more than one
    /// turn, or the log has a state now: then call it again.
    pub(super) fn read(&self, now_ms: u64, held: &HeldPart) -> Result<Option<Part>, StorageError> {
        let reader = self.reader(now_ms, held.channel(), held.reading());
        let limits = held.limits();
        match held.reading() {
            Reading::Start(start) => {
                let read = reader.start(start, limits)?;
                // The first key may have come meanwhile: then there is a state to be read.
                let is_all = matches!(reader.state_to_read(start)?, StateToRead::None);
                Ok(is_all.then_some(Part::Start(read)))
            }
            Reading::Page(query, limit) => Ok(reader.page(query, limit, limits)?.map(Part::Page)),
        }
    }

    /// Reads a part without turns. `None` if that takes too long.
    pub(super) fn read_now(
        &self,
        now_ms: u64,
        held: &HeldPart,
    ) -> Result<Option<Part>, StorageError> {
        let reader = self.reader(now_ms, held.channel(), held.reading());
        let Reading::Start(start) = held.reading() else { return self.read(now_ms, held) };
        let mut under_way = None;
        for _ in 0..TURNS_NOW_MAX {
            if under_way.is_none() {
                match reader.state_to_read(start)? {
                    StateToRead::None => match self.read(now_ms, held)? {
                        None => continue,
                        read => return Ok(read),
                    },
                    StateToRead::All(_) => {}
                    StateToRead::Later => {
                        self.logs.wait_acknowledged(held.channel(), WAIT_NOW);
                        continue;
                    }
                }
            }
            match reader.read_state(start, held.limits(), &mut under_way)? {
                StateTurn::Read(start) => return Ok(Some(Part::Start(start))),
                StateTurn::Again => {}
                StateTurn::Later => self.logs.wait_acknowledged(held.channel(), WAIT_NOW),
                StateTurn::Never => break,
            }
        }
        Ok(None)
    }

    /// Has a turn at reading the start of a subscription in a log with a state.
    fn state_turn(
        &self,
        (now_ms, held, start): (u64, &HeldPart, StartAt),
        wanted: Limits,
        under_way: &mut Option<StateReading>,
    ) -> Result<Option<ReadTurn>, StorageError> {
        let reader = self.reader(now_ms, held.channel(), held.reading());
        if under_way.is_none() {
            let row = match reader.state_to_read(start)? {
                StateToRead::None => return Ok(None),
                StateToRead::All(row) => row,
                StateToRead::Later => return Ok(Some(ReadTurn::Later)),
            };
            // The whole state is read, however much the client holds: a part of it is no use.
            let bytes = usize::try_from(row.bytes).unwrap_or(usize::MAX);
            match held.reserve(Limits { bytes: wanted.bytes.saturating_add(bytes), ..wanted }) {
                Reserved::Yes if held.limits().bytes > 0 => {}
                Reserved::Later => return Ok(Some(ReadTurn::Again)),
                Reserved::Yes | Reserved::No => return Ok(Some(ReadTurn::Done)),
            }
        }
        let limits = Limits { bytes: held.limits().bytes.min(wanted.bytes), ..wanted };
        Ok(Some(match reader.read_state(start, limits, under_way)? {
            StateTurn::Read(start) => {
                held.answer(Part::Start(start));
                ReadTurn::Done
            }
            StateTurn::Again => ReadTurn::Again,
            StateTurn::Later => ReadTurn::Later,
            StateTurn::Never => ReadTurn::Done,
        }))
    }

    /// Has a turn at reading a part, and answers those that ask for it when it was read.
    pub(super) fn turn(
        &self,
        now_ms: u64,
        held: &HeldPart,
        wanted: Limits,
        under_way: &mut Option<StateReading>,
    ) -> ReadTurn {
        // Dropped, their tickets say that there is no answer.
        if !held.is_wanted() {
            return ReadTurn::Done;
        }
        if let Reading::Start(start) = held.reading() {
            match self.state_turn((now_ms, held, start), wanted, under_way) {
                Ok(Some(turn)) => return turn,
                Ok(None) => {}
                Err(_) => return ReadTurn::Done,
            }
        }
        match held.reserve(wanted) {
            Reserved::Yes => {}
            Reserved::Later => return ReadTurn::Again,
            Reserved::No => return ReadTurn::Done,
        }
        // A page without a message would lead nowhere.
        if matches!(held.reading(), Reading::Page(..)) && held.limits().bytes == 0 {
            return ReadTurn::Done;
        }
        match self.read(now_ms, held) {
            Ok(Some(part)) => {
                held.answer(part);
                ReadTurn::Done
            }
            Ok(None) => {
                held.give_back();
                ReadTurn::Again
            }
            Err(_) => ReadTurn::Done,
        }
    }

    /// The start of a subscription, if it is known without the disk: the channel is followed, and
    /// the client has all of its messages.
    pub(super) fn start_now(&self, channel: &ChannelName, start: StartAt) -> Option<Part> {
        let has_all = |head: MessageId| match start {
            StartAt::Live | StartAt::Last(0) => Some(None),
            StartAt::After(id) if id == head => Some(Some(true)),
            _ => None,
        };
        let offset = self.memory.followed_head(channel)?;
        let head = MessageId { epoch: self.logs.epoch(), offset };
        let is_recovered = has_all(head)?;
        Some(Part::Start(Start {
            head,
            cursor: offset,
            is_recovered,
            is_sparse: false,
            is_ended: false,
            messages: Vec::new(),
        }))
    }
}
