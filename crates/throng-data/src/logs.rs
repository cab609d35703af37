//! The logs of channels on a storage. One writer appends; readers read beside it.
//!
//! # Invariants
//!
//! * Offsets of a channel count up by one. The messages after its `floor` up to its head are there,
//!   and before it those that its state needs (see `states`), and no others.
//! * An id that was given to a message is given to no other one: what has the id survives, or the
//!   epoch changes (see [`Logs::open`]), or the channel begins after a mark (see `forgotten`).
//! * Nobody reads a message before it is acknowledged: until then it may be lost, and its id with
//!   it.
//! * Times on the storage are by the machine's clock: the other one begins anew in each process.
//! * A change of a log is one commit: its messages, and its record.
//! * A message and its idempotency key are one commit. So is the head of its channel, unless the
//!   channel is busy: its head is stored once for many messages, and found with those behind it.

mod ages;
mod at_rest;
mod change;
mod check;
mod due;
mod entry;
mod erased;
mod erasure_notes;
mod forgotten;
mod format;
mod group;
mod group_state;
mod names;
#[cfg(test)]
mod power_loss;
mod reader;
mod retention;
mod rewriting;
mod room;
mod state_rows;
mod states;
#[cfg(test)]
mod tests;
mod unreadable;
mod walk;
mod writer;

pub use check::{Checked, Tell};
pub use entry::{Appended, DueKey, Entry};
pub use format::names_of_marker;
pub(crate) use format::{channel_marker, read_marker as read_marker_key};
pub(crate) use names::NameIndex;
pub use reader::{LogBounds, Logs, OpenedLogs};
pub(crate) use state_rows::{AllStates, KeyRow, StateRow};
pub use unreadable::Unreadable;
pub use writer::Writer;
