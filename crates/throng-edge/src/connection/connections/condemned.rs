//! Ends connections with the turn of the worker.
//!
//! Whoever holds a connection's id during a turn may call anything: the connection may be condemned
//! below, but nothing frees it before the turn is over.

use throng_dialect::CloseReason;

use super::Connections;
use crate::connection::condemned::Condemned;
use crate::connection::id::ConnectionId;
use crate::connection::state::State;

impl<S> Connections<S> {
    /// The worker begins to act on connections. From now on none is freed.
    pub(crate) fn begin_turn(&mut self) {
        self.condemned.begin_turn();
    }

    /// The worker has done, and holds no connection's id any more.
    pub(crate) fn end_turn(&mut self) {
        self.condemned.end_turn();
    }

    /// Lets a connection end with the turn, unless it does already: nothing is read from it or
    /// written to it any more.
    pub(crate) fn condemn(&mut self, id: ConnectionId, reason: CloseReason) {
        let state = self[id].state();
        self[id].set_state(State::Condemned);
        if state != State::Condemned {
            self.condemned.push(Condemned { id, reason, state });
        }
    }

    /// The next connection to free, in the state that it had. Each has to be
    /// [taken](Connections::take).
    pub(crate) fn next_condemned(&mut self) -> Option<(ConnectionId, CloseReason)> {
        let Condemned { id, reason, state } = self.condemned.next()?;
        self[id].set_state(state);
        Some((id, reason))
    }
}
