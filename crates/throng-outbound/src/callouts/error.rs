//! Why a callout failed.

use http::StatusCode;

use super::verdict::AnswerError;
use crate::client::RequestError;

/// Why a callout failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CalloutError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("the status is {}", .0.as_u16())]
    Status(StatusCode),
    #[error(transparent)]
    Answer(#[from] AnswerError),
}

impl CalloutError {
    /// The word for it in metrics.
    pub(super) fn label(&self) -> &'static str {
        match self {
            CalloutError::Request(error) => error.label(),
            CalloutError::Status(_) => "status",
            CalloutError::Answer(_) => "bad_answer",
        }
    }
}
