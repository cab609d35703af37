//! Notifications to systemd, and signals.

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Sends `state` to systemd, if the process is a service of type `notify`.
pub fn notify(state: &str) {
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

/// SIGHUP. A closing terminal sends it, and so does an operator who expects a reload. It never ends
/// the server.
#[derive(Debug)]
pub struct Hangups(Signal);

impl Hangups {
    /// Replaces the signal's default action, which ends the process. Requires the runtime.
    pub fn catch() -> io::Result<Hangups> {
        signal(SignalKind::hangup()).map(Hangups)
    }

    /// Logs each signal since [`Hangups::catch`]. Never returns.
    pub async fn log(mut self) {
        while self.0.recv().await.is_some() {
            tracing::warn!("SIGHUP: settings cannot be reloaded yet; restart to apply changes");
        }
    }
}

/// SIGTERM and SIGINT, which shut the server down.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Replaces the signals' default action, which ends the process. Requires the runtime.
    pub fn new() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for a signal and returns its name.
    pub async fn next(&mut self) -> &'static str {
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
