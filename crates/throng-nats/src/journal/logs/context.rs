//! The rest of the journal, as requests about logs need it.

use crate::journal::outbox::Outbox;
use crate::subject::Subjects;

/// See the module.
pub(in crate::journal) struct LogContext<'a> {
    pub(in crate::journal) now_ms: u64,
    /// A sequence that the stream has reached.
    pub(in crate::journal) reached: u64,
    /// A lower bound of the first sequence.
    pub(in crate::journal) first: u64,
    /// The time of the servers, in milliseconds since 1970.
    pub(in crate::journal) server_ms: u64,
    pub(in crate::journal) subjects: &'a Subjects,
    pub(in crate::journal) outbox: &'a mut Outbox,
}
