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
    /// True if there was no connection, so that any other question would have failed as well.
    pub(super) fn is_of_endpoint(&self) -> bool {
        matches!(self, CalloutError::Request(RequestError::Connect(_) | RequestError::Tls(_)))
    }

    /// True if the application answered, but refused this question, such as one about a name that
    /// it does not know. "Too many requests" and "timeout" are about the endpoint.
    pub(super) fn is_about_question(&self) -> bool {
        let is_of_endpoint =
            |status| [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS].contains(status);
        matches!(self, CalloutError::Status(status)
            if status.is_client_error() && !is_of_endpoint(status))
    }

    /// The word for it in metrics.
    pub(super) fn label(&self) -> &'static str {
        match self {
            CalloutError::Request(error) => error.label(),
            CalloutError::Status(_) => "status",
            CalloutError::Answer(_) => "bad_answer",
        }
    }
}
