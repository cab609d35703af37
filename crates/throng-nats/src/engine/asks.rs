//! Questions to other nodes that have no answers yet.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Deserialize;
use throng_core::OtherNodes;

/// Questions without their answers, at most.
const ASKS_MAX: usize = 4_096;

/// Called with what other nodes have answered.
pub(super) type QuestionDone = Box<dyn FnOnce(NodeAnswers) + Send>;

/// The answers of other nodes.
pub(super) struct NodeAnswers {
    pub(super) bytes: Vec<Vec<u8>>,
    pub(super) is_complete: bool,
}

impl NodeAnswers {
    /// Nobody was asked.
    const NONE: NodeAnswers = NodeAnswers { bytes: Vec::new(), is_complete: false };

    /// Reads the answers. One that cannot be read is missing.
    pub(super) fn read<T: for<'a> Deserialize<'a>>(self) -> OtherNodes<Vec<T>> {
        let read = |bytes: &Vec<u8>| serde_json::from_slice(bytes).ok();
        let found: Vec<T> = self.bytes.iter().filter_map(read).collect();
        let is_complete = self.is_complete && found.len() == self.bytes.len();
        OtherNodes { found, is_complete }
    }
}

/// Questions without their answers, by token.
#[derive(Default)]
pub(super) struct OpenQuestions(Mutex<HashMap<u64, QuestionDone>>);

impl OpenQuestions {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, QuestionDone>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what is to be done with the answers. Returns whether there is room for the question;
    /// otherwise it is done without any.
    pub(super) fn begin(&self, token: u64, done: QuestionDone) -> bool {
        let mut asks = self.lock();
        if asks.len() >= ASKS_MAX {
            drop(asks);
            done(NodeAnswers::NONE);
            return false;
        }
        asks.insert(token, done);
        true
    }

    /// Other nodes have answered.
    pub(super) fn end(&self, token: u64, answers: NodeAnswers) {
        let done = self.lock().remove(&token);
        if let Some(done) = done {
            done(answers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_cannot_be_read_is_missing() {
        let of = |bytes: &[&[u8]]| {
            let bytes = bytes.iter().map(|bytes| bytes.to_vec()).collect();
            let OtherNodes { found, is_complete } =
                NodeAnswers { bytes, is_complete: true }.read::<u64>();
            (found, is_complete)
        };
        assert_eq!(of(&[b"7", b"11"]), (vec![7, 11], true));
        assert_eq!(of(&[b"7", b"what?"]), (vec![7], false));
        assert_eq!(of(&[]), (vec![], true));
    }
}
