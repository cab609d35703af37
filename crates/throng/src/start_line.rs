//! The line of the log that says what started: version, who may use what, and limits.
//!
//! The banner on standard output tells a person what to do next. This line goes where the log goes,
//! and in JSON its facts are fields. It holds no key, URL or pattern, only how many there are.

use std::fmt::Display;
use std::net::SocketAddr;

use throng_host::limits::{Cores, MemoryLimit};

use crate::memory::MemoryPlan;
use crate::settings::{ChannelTable, Settings};
use crate::version::BUILD;

/// Everybody who reaches the address.
const ANYONE: &str = "anyone";
/// Programs of this machine. Requests that came through a proxy are refused.
const THIS_MACHINE: &str = "this-machine";
/// Credentials are checked, and the rules of access apply.
const CONTROLLED: &str = "controlled";

#[derive(Debug)]
pub(crate) struct StartLine<'a> {
    pub(crate) settings: &'a Settings,
    /// The address of the public listener, with the port that the kernel chose.
    pub(crate) listen: SocketAddr,
    /// The address of the listener for TLS, if there is one.
    pub(crate) tls_listen: Option<SocketAddr>,
    /// The address of the admin listener, if there is one.
    pub(crate) admin_listen: Option<SocketAddr>,
    pub(crate) max_connections: usize,
    /// The memory that the server may use, if that is known.
    pub(crate) memory: Option<MemoryLimit>,
    /// The memory plan of its parts.
    pub(crate) plan: MemoryPlan,
}

impl StartLine<'_> {
    /// Logs it at the level info.
    pub(crate) fn log(&self) {
        let settings = self.settings;
        let (cores, limit) = (Cores::read(), self.memory.as_ref());
        let access = &settings.access;
        let publish = if settings.clients_publish.0 {
            self.permission(&access.publish)
        } else {
            "nobody".to_owned()
        };
        let admin_access = self.admin_listen.map(|_| admin_access(settings));
        tracing::info!(
            version = BUILD,
            listen = %self.listen,
            public_access = %public_access(settings),
            tls_listen = self.tls_listen.map(tracing::field::display),
            client_certificates = client_certificates(settings),
            admin_listen = self.admin_listen.map(tracing::field::display),
            admin_tls = self.admin_listen.map(|_| settings.admin_tls.0),
            admin_access = admin_access.map(tracing::field::display),
            subscribe = %self.permission(&access.subscribe),
            publish = %publish,
            history = %self.permission(&access.history),
            presence = %self.permission(&access.presence),
            erase = %self.permission(&access.erase),
            edit = %self.permission(&access.edit),
            state = %self.permission(&access.state),
            end = %self.permission(&access.end),
            update = %self.permission(&access.update),
            create = %self.permission(&access.create),
            access_rules = access_rules(settings),
            token_keys = settings.token_keys.len(),
            token_key_urls = settings.token_key_urls.0.len(),
            server_keys = settings.server_keys.len(),
            callouts = settings.callouts.len(),
            max_connections = self.max_connections,
            max_channels_per_connection = settings.max_channels_per_connection.0,
            max_message_bytes = settings.max_message_bytes.0,
            max_buffered_bytes = settings.max_buffered_bytes.0.min(self.plan.buffered),
            history_total_bytes = settings.history.total_bytes.0.min(self.plan.logs),
            max_memory = limit.map(|limit| limit.bytes),
            max_memory_from = limit.map(|limit| tracing::field::display(&limit.source)),
            cores = cores.count,
            cpu_quota = cores.quota,
            cores_from = %cores.source,
            "started",
        );
    }

    /// The holders of a permission on channels without a rule of their own. `choice` counts only if
    /// access is controlled.
    fn permission(&self, choice: &dyn Display) -> String {
        if self.settings.has_keys() { choice.to_string() } else { ANYONE.to_owned() }
    }
}

/// Whether clients show certificates over TLS; `None` if they are not asked.
fn client_certificates(settings: &Settings) -> Option<&'static str> {
    settings.tls_client_ca.0.as_ref()?;
    Some(if settings.demands_client_certificates() { "required" } else { "optional" })
}

/// The clients of the public listener.
fn public_access(settings: &Settings) -> &'static str {
    match (settings.has_keys(), settings.refuses_proxies()) {
        (true, _) => CONTROLLED,
        (false, true) => THIS_MACHINE,
        (false, false) => ANYONE,
    }
}

/// The clients of the admin listener.
fn admin_access(settings: &Settings) -> &'static str {
    match (settings.server_keys.is_empty(), settings.admin_refuses_proxies()) {
        (false, _) => CONTROLLED,
        (true, true) => THIS_MACHINE,
        (true, false) => ANYONE,
    }
}

/// How many `[[channels]]` tables say who may do something. Without keys, none of them counts.
fn access_rules(settings: &Settings) -> usize {
    let says = |table: &&ChannelTable| table.has_access();
    if settings.has_keys() { settings.channels.iter().filter(says).count() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::read_text;

    const SERVER_KEYS: &str = "[[server-keys]]\nname = 'a'\n";
    const TOKEN_KEYS: &str = "[[token-keys]]\nsecret = '0123456789abcdef0123456789abcdef'\n";

    #[test]
    fn each_listener_is_open_or_has_keys() {
        for (text, public, admin) in [
            ("", THIS_MACHINE, THIS_MACHINE),
            ("allow-anyone = true", ANYONE, THIS_MACHINE),
            ("admin-allow-anyone = true", THIS_MACHINE, ANYONE),
            (TOKEN_KEYS, CONTROLLED, THIS_MACHINE),
            (SERVER_KEYS, CONTROLLED, CONTROLLED),
        ] {
            let settings = read_text(text).unwrap();
            assert_eq!(
                (public_access(&settings), admin_access(&settings)),
                (public, admin),
                "{text}"
            );
        }
    }

    #[test]
    fn only_tables_with_permissions_are_access_rules() {
        let tables = "[[channels]]\nmatch = 'a'\nmessages = 1
            [[channels]]\nmatch = 'b'\npublish = 'user'\n";
        let rules = |text: &str| access_rules(&read_text(text).unwrap());
        assert_eq!(rules(tables), 0);
        assert_eq!(rules(&format!("{tables}{SERVER_KEYS}")), 1);
    }
}
