//! How a log is, as the stream's leader says it.

use throng_core::{KnownRecord, LogRecord, RecordVersion};

use crate::api::beside::{Erasures, Found};
use crate::journal::report::{LogEdit, LogFacts};

/// The parts of a view: the last message, the record, what was erased, and a certain message.
pub(super) const PARTS: usize = 4;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::journal) struct LogView {
    /// The sequence of the last message; 0 without one.
    pub(super) last: u64,
    record: Option<Found>,
    marker: Option<Found>,
    target: Option<Found>,
}

impl LogView {
    pub(in crate::journal) fn of(
        [last, record, marker, target]: [Option<Found>; PARTS],
    ) -> LogView {
        LogView { last: last.map_or(0, |last| last.sequence), record, marker, target }
    }

    /// The same log, whose head is known to be at least this.
    pub(in crate::journal) fn with_head(self, head: u64) -> LogView {
        LogView { last: self.last.max(head), ..self }
    }

    /// The certain message, if it is there.
    pub(super) fn target_message(&self) -> Option<&Found> {
        self.target.as_ref()
    }

    /// The subject of the certain message, if it is there.
    pub(super) fn target(&self) -> Option<&str> {
        self.target.as_ref().map(|target| &*target.subject)
    }

    /// The sequence of the message that has the record, or says that it was removed.
    pub(super) fn record_sequence(&self) -> u64 {
        self.record.as_ref().map_or(0, |record| record.sequence)
    }

    pub(super) fn erasures_sequence(&self) -> u64 {
        self.marker.as_ref().map_or(0, |marker| marker.sequence)
    }

    pub(in crate::journal) fn erasures(&self) -> Erasures {
        Erasures::read(self.marker.as_ref())
    }

    pub(in crate::journal) fn record(&self) -> Option<KnownRecord> {
        let found = self.record.as_ref()?;
        let record = LogRecord::read(&found.data).ok()?;
        Some(KnownRecord { version: found.version(), record })
    }

    /// The version of the record; 0 without one.
    pub(in crate::journal) fn record_version(&self) -> RecordVersion {
        self.record().map_or(0, |known| known.version)
    }

    /// True if the channel has ended.
    pub(in crate::journal) fn is_ended(&self) -> bool {
        self.record().is_some_and(|known| known.record.is_of_end())
    }

    /// The last message there ever was; 0 if none is known.
    fn known_head(&self) -> u64 {
        self.last.max(self.erasures().head)
    }

    /// True if the log has no message, and none is known that was erased.
    pub(super) fn is_empty(&self) -> bool {
        self.known_head() == 0
    }

    /// The log, when the stream has reached a sequence.
    pub(in crate::journal) fn facts(&self, reached: u64) -> LogFacts {
        let known = self.known_head();
        let head = if known == 0 { reached } else { known };
        LogFacts { head, record: self.record() }
    }

    /// Whether the conditions of a change hold in a stream that has the sequences from `first` to
    /// `reached`.
    pub(in crate::journal) fn holds(&self, edit: &LogEdit, (first, reached): (u64, u64)) -> bool {
        let known = self.known_head();
        let has_head = edit.head.is_none_or(|head| match known {
            // Of a log without messages the head is any place where nothing has expired since.
            0 => head <= reached && head.saturating_add(1) >= first,
            _ => head == known,
        });
        let is_erased = |sequence| self.erasures().have(sequence);
        has_head
            && edit.record_version.is_none_or(|version| version == self.record_version())
            && !edit.replaces().is_some_and(is_erased)
    }
}
