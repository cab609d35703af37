//! The listening socket that systemd passes to a service with a socket unit (sd_listen_fds(3)).

use std::net::{SocketAddr, TcpListener};

use listenfd::ListenFd;

use crate::settings::SettingsError;

/// Takes the socket, if there is one. Its address has to be the one in the settings, because the
/// server's rights without keys depend on who can reach it.
pub(crate) fn listener(listen: SocketAddr) -> Result<Option<TcpListener>, SettingsError> {
    let mut passed = ListenFd::from_env();
    if passed.len() > 1 {
        let count = passed.len();
        let message = format!("systemd passes {count} sockets; write one ListenStream= only");
        return Err(SettingsError(message));
    }
    let listener = passed.take_tcp_listener(0).map_err(|error| {
        SettingsError(format!("the socket that systemd passes cannot be used: {error}"))
    })?;
    let Some(listener) = listener else { return Ok(None) };
    match listener.local_addr() {
        Ok(address) if address == listen => Ok(Some(listener)),
        Ok(address) => Err(SettingsError(format!(
            "systemd listens on {address}, and the setting `listen` says {listen}; write the same \
             address into ListenStream= of the socket unit and into `listen`"
        ))),
        Err(error) => Err(SettingsError(format!("the socket that systemd passes: {error}"))),
    }
}
