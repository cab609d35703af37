//! Ctrl-C: once to end in order, twice to end at once.

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_shutdown, register_usize};

use super::{EXIT_FAILED, Failure};

/// A program that a signal ended has this more than the signal's number, as shells say it: 130
/// after Ctrl-C, 143 after `SIGTERM`.
const EXIT_SIGNAL: i32 = 128;

/// Signals cannot be caught.
#[derive(Debug, thiserror::Error)]
#[error("no signals: {0}")]
pub struct NoSignals(#[from] io::Error);

impl From<NoSignals> for Failure {
    fn from(error: NoSignals) -> Failure {
        Failure::new(EXIT_FAILED, error)
    }
}

/// Whether somebody has asked for the end, and how.
#[derive(Debug, Clone)]
pub struct Interrupts {
    /// Set by the first signal; the second one ends the program.
    pub is_stopped: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl Interrupts {
    /// Whether the end was asked for.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// The exit code of a program that ended because it was asked to.
    pub fn exit_code(&self) -> Option<ExitCode> {
        let signal = i32::try_from(self.signal.load(Ordering::Relaxed)).ok()?;
        let code = u8::try_from(EXIT_SIGNAL + signal).ok()?;
        (self.is_stopped() && signal > 0).then(|| code.into())
    }
}

/// Waits for signals from now on.
pub fn interrupts() -> Result<Interrupts, NoSignals> {
    let (is_stopped, signal) = (Arc::new(AtomicBool::new(false)), Arc::default());
    for number in [SIGINT, SIGTERM] {
        // In this order: the first signal finds the flag unset and sets it.
        register_conditional_shutdown(number, EXIT_SIGNAL + number, Arc::clone(&is_stopped))?;
        register_usize(number, Arc::clone(&signal), number as usize)?;
        register(number, Arc::clone(&is_stopped))?;
    }
    Ok(Interrupts { is_stopped, signal })
}
