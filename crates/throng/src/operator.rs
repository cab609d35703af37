//! The server's reactions to its operator: to signals, and to commands at the control socket.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use throng_acme::Renewer;
use throng_control::Control;
use tokio::sync::mpsc::error::TrySendError;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::control_socket::{self, About, Act, ControlSocket, Conversation, Failure, Request};
use crate::departure::{self, Departure, DrainRequest, DrainStage};
use crate::journals::Backups;
use crate::reload::{Reloader, Report};
use crate::service::Hangups;
use crate::settings::SettingsError;
use crate::terminal::{EXIT_CONFIGURATION, EXIT_RUNTIME};
use crate::upgrade::{Asking, Reloads};
use crate::version;

/// How often a command prints how far a drain has come.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// How long a command that takes a drain back waits until all workers serve again.
const HEARD_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest deadline of a drain; more would be a slip of the pen.
pub(crate) const DEADLINE_MAX: Duration = Duration::from_secs(86_400);

/// Acts for the operator. Clones are the same.
#[derive(Clone)]
pub(crate) struct Operator {
    reloader: Arc<Reloader>,
    reloads: Arc<Reloads>,
    renewer: Option<Renewer>,
    departure: Arc<Departure>,
    /// Where an upgrade is asked for.
    upgrades: Asking,
    backups: Backed,
}

/// Makes backups of the data directory, if there is one, and knows the files beside its store.
pub(crate) type Backed = Option<(Arc<Backups>, Arc<Control>)>;

impl Operator {
    /// One who reloads and tries to obtain certificates that failed, who drains, who asks for
    /// upgrades, and who makes backups.
    pub(crate) fn new(
        (reloader, reloads): (Reloader, Arc<Reloads>),
        renewer: Option<Renewer>,
        (departure, upgrades): (&Arc<Departure>, Asking),
        backups: Backed,
    ) -> Operator {
        let departure = Arc::clone(departure);
        Operator { reloader: Arc::new(reloader), reloads, renewer, departure, upgrades, backups }
    }

    /// Serves signals and commands until the runtime, which is entered, ends. `file` is the
    /// settings' file.
    pub(crate) fn serve(
        self,
        hangups: Hangups,
        socket: Option<&ControlSocket>,
        listen: SocketAddr,
        file: Option<String>,
    ) {
        if let Some(socket) = socket {
            tracing::debug!("commands reach the server at {}", socket.path().display());
            let about = About {
                process: std::process::id(),
                version: version::BUILD.into(),
                listen: listen.to_string(),
                settings: file,
                network: control_socket::network(),
            };
            // No reason to end: the process may have taken connections over.
            if let Err(error) = socket.serve(about, Arc::new(self.clone())) {
                tracing::error!("commands cannot reach the server: {error}");
            }
        }
        tokio::spawn(hangups.serve(move || {
            let reload = self.reloads.by_signal();
            drop(reload.map(|_under_way| self.reload("SIGHUP")));
        }));
    }

    /// Reads the settings again, because of `cause`, and tries to obtain certificates that failed.
    fn reload(&self, cause: &str) -> Result<Report, SettingsError> {
        let outcome = self.reloader.reload_for(cause);
        self.renewer.iter().for_each(Renewer::try_again);
        outcome
    }

    async fn reload_for_command(&self, mut conversation: Conversation) {
        let operator = self.clone();
        let reload = move || {
            let _under_way = operator.reloads.by_command()?;
            Some(operator.reload("throng reload"))
        };
        let outcome = match spawn_blocking(reload).await {
            Ok(None) => {
                let message = "an upgrade is under way, and the new process may have read the \
                               settings before: reload again once it serves";
                Err(Failure { message: message.into(), code: EXIT_RUNTIME })
            }
            Ok(Some(Ok(report))) => {
                for warning in &report.warnings {
                    conversation.warn(warning).await;
                }
                if self.renewer.is_some() {
                    let message = "failed certificate orders are retried";
                    conversation.progress(message).await;
                }
                Ok(report.sentence())
            }
            Ok(Some(Err(error))) => {
                let message = format!("everything stays as it was: {error}");
                Err(Failure { message, code: EXIT_CONFIGURATION })
            }
            // Only a bug panics, which the log has then.
            Err(error) => Err(Failure { message: error.to_string(), code: EXIT_RUNTIME }),
        };
        conversation.end(outcome).await;
    }
}

impl Operator {
    /// Asks for an upgrade, whose end answers the command.
    async fn upgrade(&self, mut conversation: Conversation) {
        if *self.departure.watch().borrow() == DrainStage::Upgrading {
            let message = "an upgrade is under way; this one begins if that fails";
            conversation.progress(message).await;
        }
        if let Err(TrySendError::Full(conversation) | TrySendError::Closed(conversation)) =
            self.upgrades.try_send(conversation)
        {
            let message = "an upgrade is under way, or the server ends".into();
            conversation.end(Err(Failure { message, code: EXIT_RUNTIME })).await;
        }
    }

    async fn drain(&self, wanted: DrainRequest, mut conversation: Conversation) {
        match self.departure.begin(wanted) {
            DrainStage::Upgrading => {
                let message = "an upgrade is under way; drain the new process once it serves";
                let failure = Failure { message: message.into(), code: EXIT_RUNTIME };
                return conversation.end(Err(failure)).await;
            }
            DrainStage::Waiting(_) | DrainStage::Leaving(..) => {
                conversation.progress("a drain is under way already").await;
            }
            DrainStage::Serving | DrainStage::Ending => {}
        }
        let mut stage = self.departure.watch();
        let mut last = None;
        loop {
            let now = *stage.borrow_and_update();
            let is_due = last.is_none_or(|last: Instant| last.elapsed() >= PROGRESS_INTERVAL);
            match now {
                // An upgrade begins only after the drain has been taken back.
                DrainStage::Serving | DrainStage::Upgrading => {
                    let message = "the drain was cancelled; the server serves again".into();
                    let failure = Failure { message, code: EXIT_RUNTIME };
                    return conversation.end(Err(failure)).await;
                }
                DrainStage::Ending => {
                    return conversation.end(Ok("drained; the server ends".into())).await;
                }
                DrainStage::Waiting(_) => {
                    let message = "the server is no longer ready; `throng drain --cancel` takes \
                                   it back";
                    conversation.progress(message).await;
                }
                DrainStage::Leaving(_, progress) if is_due => {
                    last = Some(Instant::now());
                    conversation.progress(&departure::sentence(&progress)).await;
                }
                DrainStage::Leaving(..) => {}
            }
            tokio::select! {
                // The departure lives as long as the server.
                _ = stage.changed() => {}
                () = conversation.gone() => return,
            }
        }
    }

    async fn cancel_drain(&self, conversation: Conversation) {
        let failed = |message: &str| Failure { message: message.into(), code: EXIT_RUNTIME };
        let outcome = match self.departure.cancel() {
            Some((stage, all_serve)) => {
                // A worker that takes longer stands still: the probes say so.
                let _ = timeout(HEARD_TIMEOUT, all_serve).await;
                Ok(match stage {
                    DrainStage::Leaving(_, progress) => format!(
                        "the server serves again; {} clients had been asked to leave",
                        throng_units::format::count(progress.asked)
                    ),
                    _ => "the server serves again".into(),
                })
            }
            None if *self.departure.watch().borrow() == DrainStage::Ending => {
                Err(failed("it is too late: the server is stopping"))
            }
            None => Err(failed("no drain is under way")),
        };
        conversation.end(outcome).await;
    }
}

impl Act for Operator {
    async fn act(&self, request: Request, conversation: Conversation) {
        match request {
            // The socket has answered it.
            Request::About => {}
            Request::Upgrade => self.upgrade(conversation).await,
            Request::Reload => self.reload_for_command(conversation).await,
            Request::Drain { return_rate, deadline_ms } => {
                let deadline = Duration::from_millis(deadline_ms).min(DEADLINE_MAX);
                self.drain(DrainRequest { return_rate, deadline }, conversation).await;
            }
            Request::CancelDrain => self.cancel_drain(conversation).await,
            Request::Backup { directory } => match &self.backups {
                Some((backups, control)) => {
                    backups.make(directory.into(), control, conversation).await;
                }
                None => {
                    let message = "the server has no data directory (`--data`)".into();
                    conversation.end(Err(Failure { message, code: EXIT_CONFIGURATION })).await;
                }
            },
        }
    }
}
