//! Requests for an upgrade, and what happens between them and the end of this process.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use throng_control::Control;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::parent;
use super::upgrader::{Upgraded, Upgrader};
use crate::beside::Beside;
use crate::control_socket::{Conversation, Failure};
use crate::departure::{Departure, DrainStage};
use crate::log_writer::LogWriter;
use crate::service::{Signals, UpgradeSignals};
use crate::signal_thread::SignalThread;
use crate::terminal::EXIT_RUNTIME;

/// Commands that may wait for an upgrade. Further ones are told to try again.
const WAITING_MAX: usize = 4;

/// The time for clients to read the responses that this process has begun to write, and for a
/// backup to remove what it has written.
const RESPONSES_PATIENCE: Duration = Duration::from_secs(5);

/// How often it is looked whether both are done.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The time in which this process heeds the signals whose handlers have run: the runtime takes
/// them before it looks at the clock, and a SIGHUP goes through another thread.
const HANDLED: Duration = Duration::from_millis(20);

/// Where commands ask for an upgrade.
pub(crate) type Asking = mpsc::Sender<Conversation>;

/// Requests for an upgrade: SIGUSR2, and commands.
#[derive(Debug)]
pub(crate) struct Requests {
    signals: UpgradeSignals,
    /// Where all signals arrive.
    thread: SignalThread,
    asking: Asking,
    asked: mpsc::Receiver<Conversation>,
}

/// Resources that end with this process when another one has taken over.
pub(crate) struct Ending {
    pub(crate) control: Arc<Control>,
    pub(crate) beside: Beside,
    pub(crate) log: LogWriter,
}

impl Requests {
    /// Catches the signal, and accepts commands.
    pub(crate) fn catch(thread: SignalThread) -> io::Result<Requests> {
        let (asking, asked) = mpsc::channel(WAITING_MAX);
        Ok(Requests { signals: UpgradeSignals::catch()?, thread, asking, asked })
    }

    /// Where commands ask.
    pub(crate) fn asking(&self) -> Asking {
        self.asking.clone()
    }

    /// Waits for a request; with the command that waits for the outcome, if it is one.
    async fn next(&mut self) -> Option<Conversation> {
        tokio::select! {
            () = self.signals.next() => None,
            // The other end is here, too, so that it never closes.
            conversation = self.asked.recv() => conversation,
        }
    }

    /// Upgrades whenever that is asked for, until a signal of `signals` comes or a drain has come
    /// to its end. Returns the name of that. Does not return when another process has taken over:
    /// then this one ends.
    pub(crate) async fn serve(
        &mut self,
        upgrader: Arc<Upgrader>,
        (signals, departure): (&mut Signals, &Arc<Departure>),
        ending: Ending,
    ) -> (&'static str, Beside) {
        loop {
            let conversation = tokio::select! {
                name = signals.next() => return (name, ending.beside),
                () = departure.ended() => return ("throng drain", ending.beside),
                conversation = self.next() => conversation,
            };
            let cause = if conversation.is_some() { "throng upgrade" } else { "SIGUSR2" };
            let reservation = match departure.reserve() {
                Ok(reservation) => reservation,
                Err(stage) => {
                    fail(in_the_way(stage).to_owned(), conversation).await;
                    continue;
                }
            };
            tracing::info!("{cause}: starting a new process to take over");
            let (outcome, conversation, ended_by) = attempt(&upgrader, signals, conversation).await;
            match outcome {
                Ok(upgraded) => {
                    let process = upgraded.process;
                    if ended_by.is_some() {
                        end(process);
                    }
                    let log = ending.log.clone();
                    let ends = ending.end(upgraded, conversation, &mut self.asked);
                    let signals = (signals, &mut self.signals);
                    end_with_signals(ends, signals, process, &self.thread).await;
                    log.flush();
                    if parent::is_needed() {
                        parent::become_parent_of(process);
                    }
                    std::process::exit(0);
                }
                Err(error) => {
                    let message = format!("this process continues to serve: {error:#}");
                    fail(message, conversation).await;
                }
            }
            drop(reservation);
            if let Some(name) = ended_by {
                return (name, ending.beside);
            }
        }
    }
}

/// Attempts an upgrade, and tells the command that waits how it goes on. A signal makes it fail if
/// it still can: returns its name, too.
async fn attempt(
    upgrader: &Arc<Upgrader>,
    signals: &mut Signals,
    mut conversation: Option<Conversation>,
) -> (anyhow::Result<Upgraded>, Option<Conversation>, Option<&'static str>) {
    let (say, mut said) = mpsc::unbounded_channel();
    let attempting = Arc::clone(upgrader);
    let mut attempt: JoinHandle<anyhow::Result<Upgraded>> = spawn_blocking(move || {
        attempting.upgrade(&|text| {
            tracing::info!("{text}");
            // Fails only if nobody listens any more.
            let _ = say.send(text.to_owned());
        })
    });
    let mut ended_by = None;
    loop {
        tokio::select! {
            biased;
            Some(text) = said.recv() => {
                if let Some(conversation) = &mut conversation {
                    conversation.progress(&text).await;
                }
            }
            outcome = &mut attempt => {
                // Only a bug panics, which the log has then.
                let outcome = outcome.unwrap_or_else(|error| Err(error.into()));
                return (outcome, conversation, ended_by);
            }
            name = signals.next(), if ended_by.is_none() => {
                ended_by = Some(name);
                upgrader.cancel();
            }
        }
    }
}

/// Passes signals on to the process that serves, until `ends` is over. Those that come later wait
/// for the parent that this process may become.
async fn end_with_signals(
    ends: impl Future<Output = ()>,
    (signals, upgrades): (&mut Signals, &mut UpgradeSignals),
    process: Pid,
    thread: &SignalThread,
) {
    let pass = pass_on(signals, upgrades, process);
    tokio::pin!(pass);
    tokio::select! {
        () = ends => {}
        never = &mut pass => match never {},
    }
    // One that just ends would take signals with it that wait.
    if parent::is_needed() {
        thread.block();
        let _ = timeout(HANDLED, pass).await;
    }
}

/// Passes signals on that come too late for this process: another one serves. SIGHUP has its own
/// way, beside the reloads.
async fn pass_on(signals: &mut Signals, upgrades: &mut UpgradeSignals, process: Pid) -> Infallible {
    loop {
        let (name, signal) = tokio::select! {
            name = signals.next() => (name, Signal::TERM),
            () = upgrades.next() => ("SIGUSR2", Signal::USR2),
        };
        tracing::info!("{name}: passed on to process {}", process.as_raw_nonzero());
        // Fails only if it has ended. Nobody else has its id: nobody has waited for it.
        let _ = kill_process(process, signal);
    }
}

/// Ends the process that serves.
fn end(process: Pid) {
    // Fails only if it has ended. Nobody else has its id: nobody has waited for it.
    let _ = kill_process(process, Signal::TERM);
}

/// Says why an upgrade has failed.
async fn fail(message: String, conversation: Option<Conversation>) {
    tracing::error!("the upgrade has failed: {message}");
    if let Some(conversation) = conversation {
        conversation.end(Err(Failure { message, code: EXIT_RUNTIME })).await;
    }
}

/// Tells the commands that wait for an upgrade of their own that there will be none.
async fn answer_all(asked: &mut mpsc::Receiver<Conversation>, message: &str) {
    while let Ok(conversation) = asked.try_recv() {
        conversation.end(Err(Failure { message: message.into(), code: EXIT_RUNTIME })).await;
    }
}

/// Why a server in this stage is not upgraded.
fn in_the_way(stage: DrainStage) -> &'static str {
    match stage {
        DrainStage::Waiting(_) | DrainStage::Leaving(..) => {
            "a drain is under way; take it back first, with `throng drain --cancel`"
        }
        DrainStage::Serving | DrainStage::Upgrading => "an upgrade is under way",
        DrainStage::Ending => "the server ends",
    }
}

impl Ending {
    /// Ends what this process does, which another one has taken over from.
    async fn end(
        mut self,
        upgraded: Upgraded,
        conversation: Option<Conversation>,
        asked: &mut mpsc::Receiver<Conversation>,
    ) {
        // Those who ask from now on hear that the server ends.
        asked.close();
        upgraded.stop_backup();
        if let Some(reason) = &upgraded.lost {
            let process = upgraded.process.as_raw_nonzero();
            let message = format!("process {process} has taken over and ended: {reason}");
            fail(message.clone(), conversation).await;
            answer_all(asked, &message).await;
            let deadline = Instant::now() + RESPONSES_PATIENCE;
            while upgraded.has_backup() && Instant::now() < deadline {
                sleep(CHECK_INTERVAL).await;
            }
            upgraded.log_backup();
            self.log.flush();
            // So that the service manager starts the server again.
            std::process::exit(EXIT_RUNTIME.into());
        }
        let redirect = self.beside.step_aside();
        upgraded.send_pause();
        upgraded.send_rest();
        let sentence = upgraded.announce();
        tracing::info!("{sentence}; this one ends");
        let late = format!(
            "another command has upgraded the server: {sentence}; ask again if its \
             file or settings have been replaced since"
        );
        if let Some(conversation) = conversation {
            conversation.end(Ok(sentence)).await;
        }
        answer_all(asked, &late).await;
        let deadline = Instant::now() + RESPONSES_PATIENCE;
        let is_busy = || self.control.connections() > 0 || upgraded.has_backup();
        while is_busy() && Instant::now() < deadline {
            sleep(CHECK_INTERVAL).await;
            upgraded.send_rest();
        }
        upgraded.log_backup();
        // Those that have ended since; then the new process learns that this was all.
        upgraded.send_rest();
        drop(upgraded);
        if let Some(answering) = redirect {
            // Clients that have not been answered by then are slow.
            let _ = timeout_at(deadline, answering).await;
        }
        self.beside.finish().await;
    }
}
