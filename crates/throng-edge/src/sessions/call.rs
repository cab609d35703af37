//! A command of a client, while it is executed.

use throng_wire::v1::RawValue;

use crate::connection::ConnectionId;

/// What it costs of the turn and of the slice to look at a subscription of the connection, in bytes
/// of an answer: a command of a client with ten thousand channels is five steps.
pub(super) const LOOK_COST_BYTES: usize = 4;

/// A command that awaits its answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) id: ConnectionId,
    /// The client's own name for it, which the answer repeats.
    pub(super) reference: Option<&'a RawValue>,
}
