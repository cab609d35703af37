//! Ctrl-C: the first ends the run in order, the second at once.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::{register, register_conditional_shutdown, register_usize};

use throng_units::Invalid;

/// Shells add this to the number of the signal that ended a program: 130 after Ctrl-C, 143 after
/// `SIGTERM`.
const EXIT_SIGNAL: i32 = 128;

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
pub fn interrupts() -> Result<Interrupts, Invalid> {
    let (is_stopped, signal) = (Arc::new(AtomicBool::new(false)), Arc::default());
    let install = |number| {
        // The order matters: the first signal finds the flag clear, and sets it.
        register_conditional_shutdown(number, EXIT_SIGNAL + number, Arc::clone(&is_stopped))?;
        register_usize(number, Arc::clone(&signal), number as usize)?;
        register(number, Arc::clone(&is_stopped))
    };
    for number in [SIGINT, SIGTERM] {
        install(number).map_err(|error: std::io::Error| Invalid(format!("no signals: {error}")))?;
    }
    Ok(Interrupts { is_stopped, signal })
}
