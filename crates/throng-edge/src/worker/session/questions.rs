//! Numbers the questions that a worker asks and whose answers may come later.

/// The numbers wrap around: what a connection waits for has one, and only the last 2^32 questions
/// have different ones.
#[derive(Debug, Default)]
pub(in crate::worker) struct Questions {
    newest: u32,
}

impl Questions {
    /// The number of the next question.
    pub(super) fn next(&mut self) -> u32 {
        self.newest = self.newest.wrapping_add(1);
        self.newest
    }
}
