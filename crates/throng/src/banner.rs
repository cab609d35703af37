//! The text that the server prints on standard output when it starts.
//!
//! Programs parse the lines `listening on http://…`, `TLS listener on https://…` and
//! `admin listener on http://…`, so their form is fixed.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use throng_access::server_key::Scope;
use throng_host::preflight::{self, Check, CheckVerdict, Preflight, TableDemand};
use throng_units::Count;
use throng_units::format::count;
use throng_units::paint::{Ink, Paint};

use crate::dev::DevKeys;
use crate::settings::Settings;

/// A server with fewer connections tells how to have this many.
const MANY: u64 = 1_000_000;

/// Entries of a list that are shown.
const SHOWN_MAX: usize = 5;

/// The facts that the banner shows.
#[derive(Debug)]
pub(crate) struct Banner<'a> {
    /// The address of the public listener.
    pub(crate) address: SocketAddr,
    /// The address of the admin listener, if there is one.
    pub(crate) admin: Option<SocketAddr>,
    pub(crate) is_admin_tls: bool,
    /// The address of the listener for TLS, if there is one.
    pub(crate) tls: Option<SocketAddr>,
    pub(crate) has_demo: bool,
    /// True if the documentation is served.
    pub(crate) has_docs: bool,
    pub(crate) do_clients_publish: bool,
    pub(crate) origins: &'a [String],
    pub(crate) hosts: &'a [String],
    pub(crate) workers: usize,
    /// Descriptor limit of each worker.
    pub(crate) descriptors_max: u64,
    /// Capacity of all workers together.
    pub(crate) max_connections: usize,
    /// The result of the machine check for that capacity.
    pub(crate) preflight: &'a Preflight,
    /// The setting `max-connections`; `None` for `auto`.
    pub(crate) requested: Option<usize>,
    /// True if the settings allow an address that others can reach.
    pub(crate) allows_anyone: bool,
    /// True if nobody gets through TLS without a certificate.
    pub(crate) demands_certificates: bool,
    pub(crate) keys: Keys,
    /// The public keys of applications.
    pub(crate) apps: &'a [String],
    /// Those of `--dev`.
    pub(crate) dev_keys: Option<&'a DevKeys>,
    pub(crate) dev_certificate: Option<&'a Path>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    /// There is none: everyone may do everything.
    Missing,
    /// There are keys that verify tokens, and no server keys.
    Tokens,
    /// Those of `[[apps]]` alone: the native interface is closed to everybody.
    Apps,
    Server(ServerScopes),
}

/// The scopes of all server keys together, and whether there are others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ServerScopes {
    can_follow: bool,
    can_publish: bool,
    /// True if one of them may see the status.
    can_administer: bool,
    /// True if tokens count, too.
    has_tokens: bool,
}

const SHOWN_KEY: &str = "-H \"Authorization: Bearer $THRONG_KEY\" ";
const SHOWN_TOKEN: &str = "-H \"Authorization: Bearer $THRONG_TOKEN\" ";

impl Keys {
    /// Those of the settings.
    pub(crate) fn of(settings: &Settings) -> Keys {
        if !settings.has_keys() {
            return Keys::Missing;
        }
        if settings.server_keys.is_empty() {
            return if settings.has_clients_keys() { Keys::Tokens } else { Keys::Apps };
        }
        let can = |scope: Scope| {
            let mut all = settings.server_keys.iter().flat_map(|key| key.scopes.iter().flatten());
            all.any(|word| word == scope.word())
        };
        Keys::Server(ServerScopes {
            can_follow: can(Scope::Subscribe),
            can_publish: can(Scope::Publish),
            can_administer: can(Scope::Administration),
            has_tokens: settings.has_token_keys(),
        })
    }

    /// How curl shows what follows channels, from a variable, so that no history of a shell has it;
    /// `None` if nothing does.
    fn shown_to_follow(self) -> Option<&'static str> {
        self.shown(|scopes| scopes.can_follow)
    }

    /// As [`Keys::shown_to_follow`], for what publishes.
    fn shown_to_publish(self) -> Option<&'static str> {
        self.shown(|scopes| scopes.can_publish)
    }

    fn shown(self, can: impl Fn(ServerScopes) -> bool) -> Option<&'static str> {
        match self {
            Keys::Missing => Some(""),
            Keys::Tokens => Some(SHOWN_TOKEN),
            Keys::Apps => None,
            Keys::Server(scopes) if can(scopes) => Some(SHOWN_KEY),
            Keys::Server(scopes) => scopes.has_tokens.then_some(SHOWN_TOKEN),
        }
    }

    /// True if one of them shows the status, wherever the client is.
    fn show_status(self) -> bool {
        matches!(self, Keys::Server(scopes) if scopes.can_administer)
    }
}

impl Banner<'_> {
    /// The banner, with colours if `paint` has them.
    pub(crate) fn text(&self, paint: Paint) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut text, paint);
        text
    }

    fn write(&self, text: &mut String, paint: Paint) -> std::fmt::Result {
        let label = |name: &'static str| paint.ink(Ink::Dim, format!("  {name:<11}"));
        let here = format!("http://{}", reachable(self.address));
        let address = format!("http://{}", self.address);
        writeln!(text, "{}", paint.ink(Ink::Bold, concat!("throng ", env!("CARGO_PKG_VERSION"))))?;
        writeln!(text, "  listening on {}", paint.ink(Ink::GOOD, address))?;
        if let Some(tls) = self.tls {
            let tls = paint.ink(Ink::GOOD, format!("https://{tls}"));
            writeln!(text, "  TLS listener on {tls}")?;
        }
        let admin_scheme = if self.is_admin_tls { "https" } else { "http" };
        if let Some(admin) = self.admin {
            let admin = paint.ink(Ink::GOOD, format!("{admin_scheme}://{admin}"));
            writeln!(text, "  admin listener on {admin}")?;
        }
        writeln!(text)?;
        if self.has_demo {
            let fragment = self.dev_keys.map_or_else(String::new, DevKeys::fragment);
            writeln!(text, "{}{here}/chat{fragment}", label("chat"))?;
        }
        if self.has_docs {
            writeln!(text, "{}{here}/docs/", label("docs"))?;
        }
        let admin = self.admin.map(|admin| format!("{admin_scheme}://{}", reachable(admin)));
        if let Some(admin) = &admin {
            writeln!(text, "{}{admin}/status", label("status"))?;
        } else if self.address.ip().to_canonical().is_loopback() || self.keys.show_status() {
            writeln!(text, "{}{here}/status", label("status"))?;
        }
        for key in self.apps.iter().take(SHOWN_MAX) {
            writeln!(text, "{}{}/app/{key}", label("pusher"), here.replacen("http", "ws", 1))?;
        }
        if let Some(keys) = self.dev_keys {
            writeln!(text)?;
            keys.write(text, &here)?;
        } else {
            let follow = match self.keys.shown_to_follow() {
                Some(with) => format!("curl -N {with}{here}/channels/news"),
                None => "needs a server key with the scope subscribe, or [[token-keys]]".into(),
            };
            writeln!(text, "{}{follow}", label("follow"))?;
            let publish_at = admin.filter(|_| !self.do_clients_publish).unwrap_or(here);
            let publish = match self.keys.shown_to_publish() {
                Some(with) => format!("curl -d hello {with}{publish_at}/channels/news"),
                None => "needs a server key with the scope publish, or [[token-keys]]".into(),
            };
            writeln!(text, "{}{publish}", label("publish"))?;
        }
        if let (Some(certificate), Some(tls), Some(with)) =
            (self.dev_certificate, self.tls, self.keys.shown_to_follow())
        {
            // The certificate is for this name, whatever the address is.
            let url = format!("https://localhost:{}", tls.port());
            let certificate = certificate.display();
            writeln!(
                text,
                "{}curl -N --cacert '{certificate}' {with}{url}/channels/news",
                label("over TLS")
            )?;
        }
        writeln!(text)?;
        writeln!(text, "{}{}", label("pages"), self.pages())?;
        if !self.hosts.is_empty() {
            writeln!(text, "{}{}", label("hosts"), first_of(self.hosts))?;
        }
        self.write_capacity(text, label("capacity"), label(""))?;
        self.write_warnings(text, paint)?;
        writeln!(text)
    }

    /// Which pages may connect.
    fn pages(&self) -> String {
        match self.origins {
            [] => "only those that this server serves; --allowed-origins admits others".into(),
            origins => format!("those that this server serves, {}", first_of(origins)),
        }
    }

    fn write_warnings(&self, text: &mut String, paint: Paint) -> std::fmt::Result {
        let exposure = self.exposure().into_iter().chain(self.admin_exposure());
        for warning in exposure.chain(self.shortages()) {
            writeln!(text, "{}{warning}", paint.ink(Ink::WARNING, format!("  {:<11}", "warning")))?;
        }
        Ok(())
    }

    /// The warning about an open address, or about an `--allow-anyone` that may not do what was
    /// meant.
    fn exposure(&self) -> Option<String> {
        let Self { allows_anyone, .. } = self;
        let is_reachable = |address: &SocketAddr| !address.ip().to_canonical().is_loopback();
        // Clients that need a certificate are not everyone.
        let tls = self.tls.filter(|_| !self.demands_certificates).filter(is_reachable);
        let address = &tls.filter(|_| !is_reachable(&self.address)).unwrap_or(self.address);
        if self.keys != Keys::Missing {
            return allows_anyone
                .then(|| "--allow-anyone has no effect on a server with keys".into());
        }
        let what = if self.do_clients_publish { "read and publish" } else { "read" };
        if !address.ip().to_canonical().is_loopback() {
            return Some(format!(
                "others can reach {address}, and without keys everyone may {what}; `throng key` \
                 makes a key"
            ));
        }
        allows_anyone.then(|| {
            format!(
                "--allow-anyone lets proxies in, but only this machine can reach {address}; to \
                 listen on all addresses, add --listen 0.0.0.0:{}",
                address.port()
            )
        })
    }

    fn admin_exposure(&self) -> Option<String> {
        let admin = self.admin.filter(|admin| !admin.ip().to_canonical().is_loopback())?;
        (!matches!(self.keys, Keys::Server(_))).then(|| {
            format!(
                "others may reach the admin listener on {admin}, and without server keys everyone \
                 sees the status and publishes there: make sure that only operators can reach it"
            )
        })
    }

    /// The checks that the machine fails. If `max-connections` asks for many, also the checks that
    /// affect speed only.
    fn shortages(&self) -> Vec<String> {
        let is_many = self.requested.is_some_and(|count| count as u64 > preflight::MANY);
        let least = if is_many { CheckVerdict::Should } else { CheckVerdict::Must };
        let short = |check: &&Check| check.verdict >= least;
        let mut warnings: Vec<String> =
            self.preflight.checks.iter().filter(short).map(Check::message).collect();
        if !warnings.is_empty() {
            warnings.push(format!(
                "for the necessary changes: throng doctor --connections {}",
                Count(self.max_connections).short()
            ));
        }
        warnings
    }

    fn write_capacity(
        &self,
        text: &mut String,
        label: impl std::fmt::Display,
        no_label: impl std::fmt::Display,
    ) -> std::fmt::Result {
        let workers = self.workers as u64;
        let s = if workers == 1 { "" } else { "s" };
        writeln!(
            text,
            "{label}{} connections: {} worker{s}, {} descriptors each",
            count(self.max_connections as u64),
            count(workers),
            count(self.descriptors_max),
        )?;
        if (self.max_connections as u64) >= MANY {
            return Ok(());
        }
        let tables = TableDemand { threads_least: workers, ..TableDemand::server() };
        match tables.threads_for(MANY, self.descriptors_max) {
            Some(needed) => writeln!(
                text,
                "{no_label}--max-connections {} starts {} workers",
                Count(MANY as usize).short(),
                count(needed)
            ),
            None => writeln!(
                text,
                "{no_label}more with a higher limit: ulimit -n 20000 (service: LimitNOFILE=)"
            ),
        }
    }
}

/// The first entries of a list.
fn first_of(entries: &[String]) -> String {
    let shown = entries.get(..SHOWN_MAX).unwrap_or(entries).join(", ");
    match entries.len().saturating_sub(SHOWN_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// The address for clients on this machine.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use throng_host::preflight::{Capacity, Demand};

    use super::*;

    fn banner(address: &str, capacity: &Capacity, requested: Option<usize>) -> String {
        let banner = Banner {
            address: address.parse().unwrap(),
            admin: None,
            is_admin_tls: false,
            tls: None,
            demands_certificates: false,
            has_demo: true,
            has_docs: true,
            do_clients_publish: true,
            origins: &[],
            hosts: &[],
            workers: 2,
            descriptors_max: 20_000,
            max_connections: 39_000,
            preflight: &capacity.check(&Demand::server(39_000)),
            requested,
            allows_anyone: false,
            keys: Keys::Missing,
            apps: &[],
            dev_keys: None,
            dev_certificate: None,
        };
        banner.text(Paint::plain())
    }

    #[test]
    fn says_what_a_newcomer_needs() {
        let text = banner("127.0.0.1:8080", &Capacity::default(), None);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!(lines[0], concat!("throng ", env!("CARGO_PKG_VERSION")));
        assert_eq!(lines[1], "listening on http://127.0.0.1:8080");
        assert!(text.contains("http://127.0.0.1:8080/status\n"));
        assert!(text.contains("http://127.0.0.1:8080/docs/\n"));
        assert!(text.contains("curl -N http://127.0.0.1:8080/channels/news\n"));
        assert!(text.contains("39,000 connections: 2 workers, 20,000 descriptors each\n"));
        assert!(text.contains("--max-connections 1M starts 51 workers\n"));
        // Unknown values cause no warning.
        assert!(!text.contains("warning"), "{text}");
    }

    #[test]
    fn the_pages_and_hosts_that_may_connect_are_shown() {
        let text = banner("127.0.0.1:8080", &Capacity::default(), None);
        assert!(
            text.contains("  pages      only those that this server serves; --allowed-origins "),
            "{text}"
        );
        assert!(!text.contains("  hosts "), "{text}");
        let names: Vec<_> = (1..=7).map(|nth| format!("https://{nth}.example")).collect();
        assert_eq!(first_of(&names[..2]), "https://1.example, https://2.example");
        assert!(first_of(&names).ends_with("https://5.example and 2 more"));
    }

    #[test]
    fn examples_have_a_reachable_address() {
        let text = banner("[::]:80", &Capacity::default(), None);
        assert!(text.contains("listening on http://[::]:80\n"));
        assert!(text.contains("http://[::1]:80/chat\n"));
        assert!(!text.contains("/status"), "it would be refused");
    }

    #[test]
    fn the_banner_shows_pages_on_the_admin_listener() {
        let capacity = Capacity::default();
        let banner = Banner {
            address: "0.0.0.0:80".parse().unwrap(),
            admin: Some("0.0.0.0:9090".parse().unwrap()),
            is_admin_tls: false,
            tls: None,
            demands_certificates: false,
            has_demo: false,
            has_docs: false,
            do_clients_publish: false,
            origins: &[],
            hosts: &[],
            workers: 2,
            descriptors_max: 20_000,
            max_connections: 39_000,
            preflight: &capacity.check(&Demand::server(39_000)),
            requested: None,
            allows_anyone: true,
            keys: Keys::Missing,
            apps: &["app-key".to_owned()],
            dev_keys: None,
            dev_certificate: None,
        };
        let text = banner.text(Paint::plain());
        assert!(text.contains("  admin listener on http://0.0.0.0:9090\n"), "{text}");
        assert!(text.contains("http://127.0.0.1:9090/status\n"), "{text}");
        assert!(text.contains("curl -d hello http://127.0.0.1:9090/channels/news\n"), "{text}");
        assert!(text.contains("curl -N http://127.0.0.1:80/channels/news\n"), "{text}");
        assert!(text.contains("  pusher     ws://127.0.0.1:80/app/app-key\n"), "{text}");
        assert!(!text.contains("/chat") && !text.contains("/docs"), "{text}");
        assert!(text.contains("without keys everyone may read; "), "{text}");
        assert!(text.contains("others may reach the admin listener on 0.0.0.0:9090,"), "{text}");
    }

    #[test]
    fn slow_settings_are_reported_if_many_connections_are_requested() {
        let capacity = Capacity { somaxconn: Some(128), ..Capacity::default() };
        let text = banner("127.0.0.1:1", &capacity, Some(39_000));
        assert!(text.contains("sysctl -w net.core.somaxconn=4096\n"), "{text}");
        let last = text.trim_end().lines().last().unwrap();
        assert!(last.ends_with("throng doctor --connections 39k"), "{text}");
        for requested in [None, Some(10_000)] {
            let text = banner("127.0.0.1:1", &capacity, requested);
            assert!(!text.contains("warning"), "{text}");
        }
    }

    #[test]
    fn a_missing_capacity_is_always_reported() {
        let capacity = Capacity { files_max: Some(20_000), ..Capacity::default() };
        let text = banner("127.0.0.1:1", &capacity, None);
        assert!(text.contains("sysctl -w fs.file-max="), "{text}");
    }

    #[test]
    fn an_open_address_and_a_useless_flag_are_reported() {
        let exposed = "warning    others can reach 0.0.0.0:80, and without keys everyone may read";
        let useless = "warning    --allow-anyone has no effect on a server with keys";
        let (local, missing) = ("warning    --allow-anyone lets proxies in, but", Keys::Missing);
        for (address, allows_anyone, keys, expected) in [
            ("0.0.0.0:80", true, missing, Some(exposed)),
            ("127.0.0.1:80", true, missing, Some(local)),
            ("127.0.0.1:80", false, missing, None),
            ("[::1]:80", false, missing, None),
            ("0.0.0.0:80", false, Keys::Tokens, None),
            ("0.0.0.0:80", true, Keys::Server(ServerScopes::default()), Some(useless)),
        ] {
            let address = address.parse().unwrap();
            let preflight = &Capacity::default().check(&Demand::server(10));
            let (workers, descriptors_max, max_connections) = (1, 100, 10);
            let banner = Banner {
                address,
                admin: None,
                is_admin_tls: false,
                tls: None,
                demands_certificates: false,
                has_demo: true,
                has_docs: true,
                do_clients_publish: true,
                origins: &[],
                hosts: &[],
                workers,
                descriptors_max,
                max_connections,
                preflight,
                requested: None,
                allows_anyone,
                keys,
                apps: &[],
                dev_keys: None,
                dev_certificate: None,
            };
            let text = banner.text(Paint::plain());
            match expected {
                Some(expected) => assert!(text.contains(expected), "{text}"),
                None => assert!(!text.contains("warning"), "{text}"),
            }
        }
    }

    #[test]
    fn examples_show_what_counts() {
        let lines = |keys: Keys| [keys.shown_to_follow(), keys.shown_to_publish()];
        let none = ServerScopes::default();
        assert_eq!(lines(Keys::Missing), [Some(""); 2]);
        assert_eq!(lines(Keys::Apps), [None; 2]);
        assert_eq!(lines(Keys::Tokens), [Some(SHOWN_TOKEN); 2]);
        let of_app = ServerScopes { can_publish: true, ..none };
        assert_eq!(lines(Keys::Server(of_app)), [None, Some(SHOWN_KEY)]);
        let with_tokens = ServerScopes { has_tokens: true, ..of_app };
        assert_eq!(lines(Keys::Server(with_tokens)), [Some(SHOWN_TOKEN), Some(SHOWN_KEY)]);
        let of_monitoring = ServerScopes { can_administer: true, ..none };
        assert!(Keys::Server(of_monitoring).show_status());
        let others = [Keys::Missing, Keys::Tokens, Keys::Server(of_app)];
        assert!(!others.into_iter().any(Keys::show_status));
    }

    #[test]
    fn the_machine_check_counts_descriptors_like_the_workers() {
        use throng_edge::limits::WORKERS_MAX;
        use throng_edge::start::{DESCRIPTORS_APART, DESCRIPTORS_PER_WORKER};
        let tables = TableDemand::server();
        assert_eq!(tables.max_threads, WORKERS_MAX as u64);
        assert_eq!(tables.apart, DESCRIPTORS_APART);
        assert_eq!(tables.apart_per_thread, DESCRIPTORS_PER_WORKER);
    }
}
