//! Notifications to systemd, and signals.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGXFSZ};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Sends `state` to systemd, if the process is a service of type `notify`.
pub(crate) fn notify(state: &str) {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(path.as_encoded_bytes(), state) {
        tracing::warn!(%error, "cannot send {state} to the service manager");
    }
}

fn send(path: &[u8], state: &str) -> io::Result<()> {
    let address = match path.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::str::from_utf8(path).map_err(io::Error::other)?)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}

/// SIGHUP before the control plane's runtime exists, which [`Hangups`] needs.
#[derive(Debug)]
pub(crate) struct EarlyHangups(Arc<AtomicBool>);

impl EarlyHangups {
    /// Keeps the signal from ending the process if `command` is the server. Other commands end.
    pub(crate) fn catch_for(command: Option<&OsStr>) -> EarlyHangups {
        let has_come = Arc::new(AtomicBool::new(false));
        if command.is_some_and(|word| word == "serve") {
            // Fails only for signals that cannot be caught; `Hangups::catch` would report it.
            let _ = signal_hook::flag::register(SIGHUP, Arc::clone(&has_come));
        }
        EarlyHangups(has_come)
    }
}

/// Makes writes beyond the limit of file sizes (`RLIMIT_FSIZE`) fail with `EFBIG`. By default the
/// signal of the kernel ends the process, also for shared memory, which counts as a file.
///
/// A handler and not `SIG_IGN`: processes that this one starts get the default back.
pub(crate) fn survive_file_size_limit() -> io::Result<()> {
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map(drop)
}

/// SIGHUP. A closing terminal sends it, and so does an operator who expects a reload. It never ends
/// the server.
#[derive(Debug)]
pub(crate) struct Hangups {
    signal: Signal,
    came_early: bool,
}

impl Hangups {
    /// Replaces the signal's default action, which ends the process. Requires the runtime.
    pub(crate) fn catch(early: &EarlyHangups) -> io::Result<Hangups> {
        let came_early = early.0.load(Ordering::Relaxed);
        Ok(Hangups { signal: signal(SignalKind::hangup())?, came_early })
    }

    /// Calls `react` for each signal since [`Hangups::catch`], and once for the early ones, on a
    /// thread that may wait for files. Never returns.
    pub(crate) async fn serve(mut self, react: impl Fn() + Send + Sync + 'static) {
        let react = Arc::new(react);
        // Both handlers see a signal that comes after `catch`: the loop reacts to it.
        let mut has_come = self.came_early || self.signal.recv().await.is_some();
        while has_come {
            let react = Arc::clone(&react);
            // It panics only with a bug, which the log has then.
            let _ = tokio::task::spawn_blocking(move || react()).await;
            has_come = self.signal.recv().await.is_some();
        }
    }
}

/// SIGUSR2, which asks for a new process that takes over.
#[derive(Debug)]
pub(crate) struct UpgradeSignals(Signal);

impl UpgradeSignals {
    /// Replaces the signal's default action, which ends the process. Requires the runtime.
    pub(crate) fn catch() -> io::Result<UpgradeSignals> {
        Ok(UpgradeSignals(signal(SignalKind::user_defined2())?))
    }

    /// Waits for a signal.
    pub(crate) async fn next(&mut self) {
        self.0.recv().await;
    }
}

/// SIGTERM and SIGINT, which shut the server down.
#[derive(Debug)]
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Replaces the signals' default action, which ends the process. Requires the runtime.
    pub(crate) fn new() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for a signal and returns its name.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_reach_a_socket_with_an_abstract_name() {
        let name = format!("throng-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        send(format!("@{name}").as_bytes(), "READY=1").unwrap();
        let mut bytes = [0; 16];
        let received = socket.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..received], b"READY=1");
    }
}
