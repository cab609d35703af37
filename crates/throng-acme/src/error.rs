//! Why there is no certificate, as sentences, and how soon to try again.

use std::path::PathBuf;
use std::time::SystemTime;

use instant_acme::{Error, Problem};

/// A file of the directory of certificates that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}", path.display())]
pub struct StoreError {
    pub(crate) action: &'static str,
    pub(crate) path: PathBuf,
    pub(crate) source: std::io::Error,
}

/// Why there is no new certificate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AcmeError {
    /// The authority did not answer, or not as ACME says. It may do so soon.
    #[error("the certificate authority cannot be reached: {0}")]
    Unreachable(String),
    /// The authority refuses the account, the order or the name.
    #[error("the certificate authority refuses: {0}")]
    Refused(String),
    /// The authority asks to come back later.
    #[error("the certificate authority asks to wait: {0}")]
    Limited(String),
    /// The directory of certificates cannot be written or read.
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{0}")]
    Own(String),
}

#[derive(Debug)]
pub(crate) struct OrderFailure {
    pub(crate) error: AcmeError,
    /// The moment that the authority has named for the next attempt, if it has.
    pub(crate) not_before: Option<SystemTime>,
}

/// Sorts errors of the library by how soon to try again.
pub(crate) fn sorted(error: Error) -> AcmeError {
    match error {
        Error::Api(problem) => of_problem(&problem),
        Error::Crypto | Error::KeyRejected => {
            AcmeError::Own("the key of the ACME account cannot be used".into())
        }
        Error::Timeout(_) => {
            AcmeError::Refused("it has not finished the order within two minutes".into())
        }
        Error::Json(_) => AcmeError::Unreachable(
            "its answer is not one of ACME; acme-directory must be the URL of its directory".into(),
        ),
        error => AcmeError::Unreachable(error.to_string()),
    }
}

fn of_problem(problem: &Problem) -> AcmeError {
    let text = text(problem);
    match problem.r#type.as_deref().and_then(|kind| kind.rsplit(':').next()) {
        Some("rateLimited") => AcmeError::Limited(text),
        Some("serverInternal" | "badNonce") => AcmeError::Unreachable(text),
        _ => AcmeError::Refused(text),
    }
}

/// A problem in one line: what the authority says is text of others.
pub(crate) fn text(problem: &Problem) -> String {
    let details = problem.subproblems.iter().filter_map(|one| one.detail.as_deref());
    let all: Vec<&str> = problem.detail.as_deref().into_iter().chain(details).collect();
    let text = if all.is_empty() { problem.r#type.clone() } else { Some(all.join("; ")) };
    line(&text.unwrap_or_else(|| "it gives no reason".into()))
}

/// A text of the authority on one line, cut at a length.
pub(crate) fn line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(500).collect()
}
