//! Ctrl-C: the first ends the run in order, the second at once.

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_shutdown, register_usize};

use super::error::{CommandError, EXIT_FAILED};

/// Shells add this to the number of the signal that ended a program: 130 after Ctrl-C, 143 after
/// `SIGTERM`.
const EXIT_SIGNAL: i32 = 128;

/// The signal handlers cannot be installed.
#[derive(Debug, thiserror::Error)]
#[error("no signals: {0}")]
pub struct NoSignals(#[from] io::Error);

impl From<NoSignals> for CommandError {
    fn from(error: NoSignals) -> CommandError {
        CommandError::new(EXIT_FAILED, error)
    }
}

/// The user's request to stop, by a signal.
#[derive(Debug, Clone)]
pub struct Interrupts {
    /// Set by the first signal. The second one ends the program.
    pub is_stopped: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl Interrupts {
    /// True if the user has asked to stop.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// The exit code of a program that was stopped.
    pub fn exit_code(&self) -> Option<ExitCode> {
        let signal = i32::try_from(self.signal.load(Ordering::Relaxed)).ok()?;
        let code = u8::try_from(EXIT_SIGNAL + signal).ok()?;
        (self.is_stopped() && signal > 0).then(|| code.into())
    }
}

/// Installs the signal handlers.
pub fn interrupts() -> Result<Interrupts, NoSignals> {
    let (is_stopped, signal) = (Arc::new(AtomicBool::new(false)), Arc::default());
    for number in [SIGINT, SIGTERM] {
        // The order matters: the first signal finds the flag clear, and sets it.
        register_conditional_shutdown(number, EXIT_SIGNAL + number, Arc::clone(&is_stopped))?;
        register_usize(number, Arc::clone(&signal), number as usize)?;
        register(number, Arc::clone(&is_stopped))?;
    }
    Ok(Interrupts { is_stopped, signal })
}
