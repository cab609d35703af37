//! Why a request has no response.

use std::error::Error as _;
use std::io;

/// Why a request has no usable response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    /// The name has no address, or no address accepts connections.
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    /// The endpoint is not trusted, or does not speak TLS.
    #[error("cannot set up TLS: {0}")]
    Tls(io::Error),
    /// The response was not complete in time.
    #[error("no complete response in time")]
    Timeout,
    /// The response is larger than the request allows.
    #[error("the response is larger than {0} bytes")]
    TooLarge(usize),
    /// The response is no HTTP, or ends too early.
    #[error("{}", explain(.0))]
    Http(hyper::Error),
}

impl RequestError {
    /// The word for it in metrics.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            RequestError::Connect(_) => "connect",
            RequestError::Tls(_) => "tls",
            RequestError::Timeout => "timeout",
            RequestError::TooLarge(_) => "too_large",
            RequestError::Http(_) => "protocol",
        }
    }
}

/// The error of hyper, with the cause, which its text leaves out.
fn explain(error: &hyper::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
