//! Numbers the questions that a worker asks and whose answers may come later.

/// The numbers wrap around: what a connection waits for has one, and only the last 2^32 questions
/// have different ones.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    newest: u32,
}

impl Questions {
    /// The number of the newest question.
    pub(crate) fn newest(&self) -> u32 {
        self.newest
    }

    /// Goes on from the newest question of another worker, so that late answers to its questions
    /// are not taken for answers to these.
    pub(crate) fn resume(&mut self, newest: u32) {
        self.newest = newest;
    }

    /// The number of the next question.
    pub(super) fn next(&mut self) -> u32 {
        self.newest = self.newest.wrapping_add(1);
        self.newest
    }
}
