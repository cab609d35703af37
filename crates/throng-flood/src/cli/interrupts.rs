//! Ctrl-C: once to end in order, twice to end at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_shutdown};

use super::{EXIT_FAILED, Failure};

/// Signals cannot be caught.
#[derive(Debug, thiserror::Error)]
#[error("no signals: {0}")]
pub struct NoSignals(#[from] io::Error);

impl From<NoSignals> for Failure {
    fn from(error: NoSignals) -> Failure {
        Failure::new(EXIT_FAILED, error)
    }
}

/// Set by the first Ctrl-C; the second one ends the program.
pub fn interrupts() -> Result<Arc<AtomicBool>, NoSignals> {
    let is_stopped = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal finds the flag unset and sets it.
        register_conditional_shutdown(signal, i32::from(EXIT_FAILED), Arc::clone(&is_stopped))?;
        register(signal, Arc::clone(&is_stopped))?;
    }
    Ok(is_stopped)
}
