//! Why a connection ended.

use std::io;

use crate::protocol::decoder::DecodeError;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Lost {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error("the server has closed the connection")]
    Closed,
    #[error("the server does not answer")]
    Silent,
    #[error("the server says: {0}")]
    Said(String),
    /// The owner of the journal is gone.
    #[error("the node stops")]
    Stopped,
}
