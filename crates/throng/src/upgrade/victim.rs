//! Which of two processes the kernel ends if memory is short: the one that does not serve yet.
//!
//! The larger one would be that which serves. So until the last word, the new process has the
//! highest `oom_score_adj` (proc_pid_oom_score_adj(5)). To raise it needs no privilege, and neither
//! does going back to what it was.

use std::fs;

const PATH: &str = "/proc/self/oom_score_adj";

/// "End this one first".
const HIGHEST: &str = "1000";

/// This process, while it is to be ended before all others.
#[derive(Debug)]
pub(super) struct Victim {
    /// Its earlier score; `None` if it could not be raised.
    before: Option<String>,
}

impl Victim {
    /// Makes this process the one that is ended first.
    pub(super) fn volunteer() -> Victim {
        let before = fs::read_to_string(PATH).ok();
        // Without `/proc` the kernel decides as ever.
        let before = before.filter(|_| fs::write(PATH, HIGHEST).is_ok());
        Victim { before: before.map(|score| score.trim().to_owned()) }
    }

    /// Makes it a process like any other again.
    pub(super) fn serve(&mut self) {
        let Some(before) = self.before.take() else { return };
        if let Err(error) = fs::write(PATH, &before) {
            tracing::warn!(
                "cannot write {before} to {PATH}: {error}; if memory is short, the kernel ends \
                 this process first"
            );
        }
    }
}
