//! Why a client pool cannot start.

use std::fmt::Display;

use throng_tunnel::TunnelError;

/// Why a pool cannot start.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ClientPoolError(pub(super) String);

impl ClientPoolError {
    /// A thread cannot be started.
    pub(super) fn thread(error: impl Display) -> ClientPoolError {
        ClientPoolError(format!("a thread cannot be started: {error}"))
    }

    /// There are more clients than 32-bit numbers.
    pub(super) fn too_many(clients: usize) -> ClientPoolError {
        ClientPoolError(format!("{clients} clients are more than can be numbered"))
    }

    /// The plan does not say how to publish.
    pub(crate) fn no_publish_target() -> ClientPoolError {
        ClientPoolError("the plan does not say how to publish".to_owned())
    }
}

impl From<TunnelError> for ClientPoolError {
    fn from(error: TunnelError) -> ClientPoolError {
        ClientPoolError(error.to_string())
    }
}
