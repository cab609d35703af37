//! Reloads beside an upgrade. The new process may have read its settings before a reload here, and
//! would trust a key again that the reload has withdrawn.
//!
//! | a reload is asked for | by a command | by SIGHUP |
//! |---|---|---|
//! | and no upgrade is under way | happens; an upgrade waits for it | the same |
//! | while another process may take over | is refused | happens, and there, too, once it serves |
//! | when another process serves | is refused | happens there |

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// How long an upgrade waits for reloads that have begun. They take milliseconds, but a file may be
/// one that never ends.
const PATIENCE: Duration = Duration::from_secs(5);

/// Keeps reloads and upgrades from overlapping.
#[derive(Debug, Default)]
pub(crate) struct Reloads {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Reloads that read the settings.
    under_way: usize,
    upgrade: Upgrade,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Upgrade {
    #[default]
    None,
    /// Another process may take over; and whether it has to reload then.
    Starting {
        has_to_reload: bool,
    },
    Done(Pid),
}

/// A reload that is under way, until it is dropped.
#[derive(Debug)]
pub(crate) struct Reload<'a>(&'a Reloads);

impl Drop for Reload<'_> {
    fn drop(&mut self) {
        self.0.lock().under_way -= 1;
        self.0.ended.notify_all();
    }
}

impl Reloads {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, mut state: MutexGuard<'_, State>) -> Reload<'_> {
        state.under_way += 1;
        Reload(self)
    }

    /// Begins the reload of a command; `None` if another process may take over.
    pub(crate) fn by_command(&self) -> Option<Reload<'_>> {
        let state = self.lock();
        (state.upgrade == Upgrade::None).then(|| self.begin(state))
    }

    /// Begins the reload of a SIGHUP. `None` if another process serves, which has the signal now.
    pub(crate) fn by_signal(&self) -> Option<Reload<'_>> {
        self.begin_for_signal().map_err(pass_on).ok()
    }

    /// Begins the reload of a SIGHUP, or returns the process that serves instead.
    fn begin_for_signal(&self) -> Result<Reload<'_>, Pid> {
        let mut state = self.lock();
        match &mut state.upgrade {
            Upgrade::None => {}
            Upgrade::Starting { has_to_reload } => *has_to_reload = true,
            Upgrade::Done(process) => return Err(*process),
        }
        Ok(self.begin(state))
    }

    /// An upgrade begins once no reload is under way. Returns whether it does: false if a reload
    /// does not end.
    pub(super) fn begin_upgrade(&self) -> bool {
        let has_reloads = |state: &mut State| state.under_way > 0;
        let waited = self.ended.wait_timeout_while(self.lock(), PATIENCE, has_reloads);
        let (mut state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return false;
        }
        state.upgrade = Upgrade::Starting { has_to_reload: false };
        true
    }

    pub(super) fn fail_upgrade(&self) {
        self.lock().upgrade = Upgrade::None;
    }

    /// `process` serves instead. It reloads if it may have read its settings too early.
    pub(super) fn end_upgrade(&self, process: Pid) {
        if self.finish(process) {
            pass_on(process);
        }
    }

    /// `process` serves instead. Returns whether it has to reload.
    fn finish(&self, process: Pid) -> bool {
        let before = std::mem::replace(&mut self.lock().upgrade, Upgrade::Done(process));
        before == Upgrade::Starting { has_to_reload: true }
    }
}

/// Makes the process that serves reload.
fn pass_on(process: Pid) {
    tracing::info!("SIGHUP: passed on to process {}", process.as_raw_nonzero());
    // Fails only if it has ended. Nobody else has its id: nobody has waited for it.
    let _ = kill_process(process, Signal::HUP);
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: Pid = Pid::INIT;

    #[test]
    fn a_command_is_refused_while_another_process_may_take_over() {
        let reloads = Reloads::default();
        assert!(reloads.by_command().is_some());
        assert!(reloads.begin_upgrade());
        assert!(reloads.by_command().is_none());
        reloads.fail_upgrade();
        assert!(reloads.by_command().is_some());
    }

    #[test]
    fn a_signal_during_an_upgrade_makes_both_processes_reload() {
        let reloads = Reloads::default();
        assert!(reloads.begin_upgrade());
        assert!(reloads.begin_for_signal().is_ok());
        assert!(reloads.finish(OTHER));
    }

    #[test]
    fn a_signal_after_an_upgrade_is_for_the_process_that_serves() {
        let reloads = Reloads::default();
        assert!(reloads.begin_upgrade());
        assert!(!reloads.finish(OTHER));
        assert_eq!(reloads.begin_for_signal().err(), Some(OTHER));
    }

    #[test]
    fn a_signal_for_an_upgrade_that_has_failed_is_not_for_the_next() {
        let reloads = Reloads::default();
        assert!(reloads.begin_upgrade() && reloads.begin_for_signal().is_ok());
        reloads.fail_upgrade();
        assert!(reloads.begin_upgrade() && !reloads.finish(OTHER));
    }

    #[test]
    fn an_upgrade_begins_behind_the_reloads_that_have_begun() {
        let reloads = Reloads::default();
        let reload = reloads.by_command().unwrap();
        std::thread::scope(|scope| {
            let upgrade = scope.spawn(|| {
                let begins = reloads.begin_upgrade();
                (begins, reloads.lock().under_way)
            });
            assert_eq!(reloads.lock().upgrade, Upgrade::None);
            drop(reload);
            assert_eq!(upgrade.join().unwrap(), (true, 0));
        });
    }
}
