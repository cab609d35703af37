//! The service manager and the signals by which it speaks.

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Tells systemd, if it started us and wants to know.
pub fn notify(state: &str) {
    let Some(path) = env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(path.as_encoded_bytes(), state) {
        tracing::warn!(%error, "the service manager could not be told {state}");
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

/// SIGHUP, which a closing terminal sends, and an operator who expects settings to be reloaded.
/// Neither ends the server, even where the signal was ignored when it started.
#[derive(Debug)]
pub struct Hangups(Signal);

impl Hangups {
    /// From now on SIGHUP does not end the process. Must be called within the runtime.
    pub fn catch() -> io::Result<Hangups> {
        signal(SignalKind::hangup()).map(Hangups)
    }

    /// Logs each of them, the one that came since [`Hangups::catch`] included; never returns.
    pub async fn log(mut self) {
        while self.0.recv().await.is_some() {
            tracing::warn!("SIGHUP: settings cannot be reloaded yet; restart to apply changes");
        }
    }
}

/// Waits for SIGTERM and SIGINT.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// From now on these signals do not end the process.
    pub fn new() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// The next one's name.
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
    fn tells_a_socket_with_an_abstract_name() {
        let name = format!("throng-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        send(format!("@{name}").as_bytes(), "READY=1").unwrap();
        let mut bytes = [0; 16];
        let received = socket.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..received], b"READY=1");
    }
}
