//! What the server does when its operator asks: by a signal, or by a command at the control socket.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use throng_acme::Renewer;
use tokio::task::spawn_blocking;

use crate::control_socket::{About, Act, ControlSocket, Conversation, Failure, Request};
use crate::reload::{Reloader, Report};
use crate::service::Hangups;
use crate::settings::SettingsError;
use crate::terminal::{EXIT_CONFIGURATION, EXIT_RUNTIME};
use crate::version;

/// Acts for the operator. Clones are the same.
#[derive(Clone)]
pub(crate) struct Operator {
    reloader: Arc<Reloader>,
    renewer: Option<Renewer>,
}

impl Operator {
    /// One who reloads, and tries to obtain certificates that failed.
    pub(crate) fn new(reloader: Reloader, renewer: Option<Renewer>) -> Operator {
        Operator { reloader: Arc::new(reloader), renewer }
    }

    /// Serves signals and commands until the runtime, which is entered, ends. `file` is that of the
    /// settings.
    ///
    /// # Errors
    ///
    /// The runtime cannot watch the socket.
    pub(crate) fn serve(
        self,
        hangups: Hangups,
        socket: Option<&ControlSocket>,
        listen: SocketAddr,
        file: Option<String>,
    ) -> io::Result<()> {
        if let Some(socket) = socket {
            tracing::debug!("commands reach the server at {}", socket.path().display());
            let about = About {
                process: std::process::id(),
                version: version::BUILD.into(),
                listen: listen.to_string(),
                settings: file,
            };
            socket.serve(about, Arc::new(self.clone()))?;
        }
        tokio::spawn(hangups.serve(move || drop(self.reload("SIGHUP"))));
        Ok(())
    }

    /// Reads the settings again, because of `cause`, and tries to obtain certificates that failed.
    fn reload(&self, cause: &str) -> Result<Report, SettingsError> {
        let outcome = self.reloader.reload_for(cause);
        self.renewer.iter().for_each(Renewer::try_again);
        outcome
    }

    async fn reload_for_command(&self, mut conversation: Conversation) {
        let operator = self.clone();
        let outcome = match spawn_blocking(move || operator.reload("throng reload")).await {
            Ok(Ok(report)) => {
                for warning in &report.warnings {
                    conversation.warn(warning).await;
                }
                if self.renewer.is_some() {
                    let message = "certificates that ACME failed to obtain are asked for again";
                    conversation.progress(message).await;
                }
                Ok(report.sentence())
            }
            Ok(Err(error)) => {
                let message = format!("everything stays as it was: {error}");
                Err(Failure { message, code: EXIT_CONFIGURATION })
            }
            // Only a bug panics, which the log has then.
            Err(error) => Err(Failure { message: error.to_string(), code: EXIT_RUNTIME }),
        };
        conversation.end(outcome).await;
    }
}

impl Act for Operator {
    async fn act(&self, request: Request, conversation: Conversation) {
        match request {
            // The socket has answered it.
            Request::About => {}
            Request::Reload => self.reload_for_command(conversation).await,
        }
    }
}
