//! The error of every parser of this crate.

use std::fmt::Display;

/// A value that cannot be parsed: one sentence that quotes it and says what is accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(pub String);

impl Invalid {
    /// `text` is not `expected`.
    pub fn new(text: &str, expected: impl Display) -> Invalid {
        Invalid(format!("{text:?} is not {expected}"))
    }
}
