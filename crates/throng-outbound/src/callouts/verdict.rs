//! What an answer of the application is, whatever the question.

use std::fmt;

use throng_access::grants::GrantsError;
use throng_wire::ErrorResponse;
use throng_wire::name::NameError;

/// The largest answer, in bytes.
pub(super) const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Why an answer does not count.
#[derive(Debug, thiserror::Error)]
pub(super) enum AnswerError {
    /// It is no JSON object with `allow`, or has an unknown member.
    #[error("the answer is not as agreed: {0}")]
    Form(#[from] serde_json::Error),
    /// It names a user who cannot be.
    #[error("the answer's user: {0}")]
    User(NameError),
    /// Its grants are malformed.
    #[error("the answer's grants, which are as the claim of a token: {0}")]
    Grants(#[from] GrantsError),
    /// It allows what has ended already.
    #[error("the answer has an `expires` in the past")]
    Past,
}

/// What the application answers to one kind of question.
pub(super) trait Verdict: Clone + fmt::Debug + Send + Sync + 'static {
    /// What it takes to read an answer.
    type Reader: fmt::Debug + Send + Sync + 'static;

    /// What was known about the client before it was asked about, which an answer cannot extend.
    type Bounds: fmt::Debug + Send + 'static;

    /// What the client gets.
    type Given: Send + 'static;

    /// Reads an answer to a question of the moment `asked_s`, in seconds since 1970.
    fn read(
        reader: &Self::Reader,
        body: &[u8],
        asked_s: u64,
    ) -> Result<Answered<Self>, AnswerError>;

    /// The verdict on a client that gets this error.
    fn refused(error: ErrorResponse) -> Self;

    /// Whether it is an answer, and against the client.
    fn is_denial(&self) -> bool;

    /// What a client gets of it within these bounds.
    fn within(self, bounds: &Self::Bounds) -> Self::Given;
}

/// An answer that counts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answered<V> {
    /// What the application has decided.
    pub(super) verdict: V,
    /// For how long it holds for the same question.
    pub(super) cache_ms: u64,
}
