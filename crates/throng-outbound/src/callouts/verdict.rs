//! Answers of the application, for every kind of question.

use std::borrow::Cow;
use std::fmt;

use throng_access::grants::GrantsError;
use throng_wire::ErrorResponse;
use throng_wire::member::MemberInfoError;
use throng_wire::name::NameError;

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
    #[error("the answer's grants, which are as the claim of a token: {0}")]
    Grants(#[from] GrantsError),
    /// It has something that no member can show of itself.
    #[error("the answer's info {0}")]
    Info(MemberInfoError),
    /// Its content in place of a message's cannot be published, or was not asked for.
    #[error("the answer's content: {0}")]
    Content(Cow<'static, str>),
    /// It allows what has ended already.
    #[error("the answer has an `expires` in the past")]
    Past,
}

/// The application's answer to one kind of question.
pub(super) trait Verdict: Clone + fmt::Debug + Send + Sync + 'static {
    /// The state that reading an answer needs.
    type Reader: fmt::Debug + Send + Sync + 'static;

    /// Facts known about the client before the question, which an answer cannot extend.
    type Bounds: fmt::Debug + Send + 'static;

    type Given: Send + 'static;

    /// The most bytes of an answer.
    fn answer_bytes_max(reader: &Self::Reader) -> usize {
        let _ = reader;
        ANSWER_BYTES_MAX
    }

    /// Reads an answer to a question of the moment `asked_s`, in seconds since 1970.
    fn read(
        reader: &Self::Reader,
        body: &[u8],
        asked_s: u64,
    ) -> Result<Answered<Self>, AnswerError>;

    /// The verdict on a client that gets this error.
    fn refused(error: ErrorResponse) -> Self;

    /// True if the application has answered, and against the client.
    fn is_denial(&self) -> bool;

    /// The verdict, restricted to these bounds.
    fn within(self, bounds: &Self::Bounds) -> Self::Given;
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answered<V> {
    pub(super) verdict: V,
    /// For how long it holds for the same question.
    pub(super) cache_ms: u64,
}
