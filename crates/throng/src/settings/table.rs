//! The table of settings: names, type, default, range and help of each, and how a running server
//! takes over a new value.

use std::net::SocketAddr;
use std::path::Path;

use throng_settings::{KnownTables, Section, toml_value};
use throng_units::{Address, Count, Size, Switch, Time, Value};

use super::acme_values::{AcmeDirectory, Email};
use super::app_tables::AppTable;
use super::callout_tables::CalloutTable;
use super::certificate_tables::CertificateTable;
use super::channels::ChannelTable;
use super::key_tables::{ServerKeyTable, TokenKeyTable};
use super::lists::{ClaimValues, Hosts, KeyUrls, Origins, Proxies};
use super::nats_values::{NatsPrefix, NatsReplicas, NatsServers};
use super::row::{Change, Row, hyphenated, is_boolean, settings};
use super::values::{
    AddressHeaderChoice, AutoCount, AutoSize, ClientCertificateChoice, ClientUserChoice,
    ControlChoice, CookieName, DemoChoice, EngineChoice, IoUringChoice, LagPolicyChoice,
    LogFormatChoice, LogLevel, MembersChoice, OptionalAddress, OptionalPath, ProxyProtocolChoice,
    RecordsChoice, SyncChoice, TlsVersionChoice, WhoChoice,
};
use super::{app_tables, callout_tables, certificate_tables, channels, key_tables};

/// One sentence: what is wrong with the settings, where, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct SettingsError(pub(crate) String);

/// The flags that a newcomer needs: `-h` shows only these.
const BASIC: [&str; 13] = [
    "listen",
    "allow-anyone",
    "allowed-origins",
    "tls-listen",
    "tls-cert",
    "tls-key",
    "admin-listen",
    "control",
    "max-connections",
    "history-messages",
    "max-message-bytes",
    "data",
    "log",
];

settings! {
    /// All settings of the server.
    Options => Settings, keys "", change Upgrade
    in "Address" {
        "listen" listen: Address = "127.0.0.1:8080",
            "Address and port to listen on; a port alone means 127.0.0.1";
        "allow-anyone" allow_anyone: Switch = "false",
            "Without keys, allow non-loopback --listen addresses, and requests through proxies";
        "allowed-origins" allowed_origins: Origins = "none" [change = Change::Reload],
            "Origins whose web pages may connect, comma-separated; `*` for any";
        "allowed-hosts" allowed_hosts: Hosts = "none" [change = Change::Reload],
            "Host names the server answers to, comma-separated; `*` for any";
        "clients-publish" clients_publish: Switch = "true",
            "Let clients publish; if false, only the admin listener accepts messages";
        "demo" demo: DemoChoice = "auto",
            "Serve the chat at / and /chat: on, off, or auto (if clients publish over loopback)";
        "docs" docs: OptionalPath = "none",
            "Documentation directory to serve at /docs, as packages install it";
    }
    in "TLS" {
        "tls-listen" tls_listen: OptionalAddress = "none" [change = Change::UpgradeOfListener],
            "Address and port of a listener for https and wss, in addition to --listen";
        "redirect-http" redirect_http: OptionalAddress = "none",
            "Address and port of a listener that only redirects from http to https";
        "redirect-port" redirect_port: AutoCount = "auto" [max = "65535"],
            "HTTPS port that clients are redirected to; auto: the port of --tls-listen";
        "tls-cert" tls_cert: OptionalPath = "none" [change = Change::ReloadCertificates],
            "Server certificate and its chain (PEM); [[certificates]] in the file adds more";
        "tls-key" tls_key: OptionalPath = "none" [change = Change::ReloadCertificates],
            "Private key of --tls-cert (PEM, not encrypted)";
        "acme" acme: Hosts = "none",
            "Names to obtain certificates for by ACME, comma-separated; accepts the CA's terms";
        "acme-email" acme_email: Email = "none",
            "Contact address for the certificate authority";
        "acme-directory" acme_directory: AcmeDirectory = "letsencrypt",
            "Certificate authority: letsencrypt, letsencrypt-staging, or a directory URL";
        "acme-ca" acme_ca: OptionalPath = "none",
            "CA certificates (PEM) for connecting to --acme-directory; none: the system's";
        "state" state: OptionalPath = "none",
            "Directory for the ACME account and certificates; none: systemd's StateDirectory=";
        "tls-min-version" tls_min_version: TlsVersionChoice = "1.2",
            "Lowest TLS version to accept: 1.2 or 1.3";
        // A shorter lifetime would be useless to clients that reconnect; a longer one is against
        // TLS 1.3 (RFC 8446, section 4.6.1).
        "tls-ticket-lifetime" tls_ticket_lifetime: Time = "12h"
            [step = "1s", min = "1m", max = "7d", zero = "no tickets"],
            "How long clients may resume a TLS session; 0: never";
        "tls-ticket-keys" tls_ticket_keys: OptionalPath = "none",
            "File of session ticket keys to share between servers; none: keys of its own";
        "tls-client-ca" tls_client_ca: OptionalPath = "none",
            "CA certificates (PEM) for client certificates; none: clients are not asked for one";
        "tls-client-auth" tls_client_auth: ClientCertificateChoice = "required",
            "With --tls-client-ca, whether a client certificate is required or optional";
        "tls-client-user" tls_client_user: ClientUserChoice = "none",
            "Field of a client certificate that names its user: cn, dns, email, uri, or none";
        "tls-client-crl" tls_client_crl: OptionalPath = "none",
            "Revocation lists for client certificates (PEM)";
    }
    in "Admin listener" {
        "admin-listen" admin_listen: OptionalAddress = "none",
            "Address and port of a second listener, for the status page, metrics and publishing";
        "admin-allow-anyone" admin_allow_anyone: Switch = "false",
            "Without server keys, allow non-loopback --admin-listen addresses";
        "admin-tls" admin_tls: Switch = "false",
            "Serve TLS on the admin listener, with the server's certificates";
    }
    in "Control socket" {
        "control" control: ControlChoice = "auto",
            "Unix socket for commands like `throng reload`; auto: by the address; or none";
    }
    in "Proxies" {
        "trusted-proxies" trusted_proxies: Proxies = "none",
            "Addresses or networks of proxies trusted to name the client, comma-separated";
        "proxy-protocol" proxy_protocol: ProxyProtocolChoice = "never",
            "Whether client connections begin with a PROXY header: always or never";
        "client-address-header" client_address_header: AddressHeaderChoice = "none",
            "Header in which trusted proxies name the client: forwarded, x-forwarded-for or none";
    }
    in "Connections" {
        "max-connections" max_connections: AutoCount = "auto" [change = Change::UpgradeOfWorkers],
            "Maximum number of open connections; auto: as many as one worker per core can hold";
        "workers" workers: AutoCount = "auto" [max = "1024", change = Change::UpgradeOfWorkers],
            "Minimum number of worker threads; auto: one per core";
        "io-uring" io_uring: IoUringChoice = "auto",
            "Send through io_uring: on (required), off, or auto (if kernel 6.1 or later allows it)";
        // Scanning the timers of all connections takes time.
        "heartbeat" heartbeat: Time = "25s" [min = "1s", zero = "none"],
            "Send a heartbeat after this much silence on a connection; 0: no heartbeats or pings";
        "ping-interval" ping_interval: Time = "225s" [min = "1s", zero = "none"],
            "Time between pings; a WebSocket that does not answer one is closed; 0: no pings";
        "welcome" welcome: Switch = "false",
            "Begin each subscription with a welcome line or event";
        "head-timeout" head_timeout: Time = "10s"
            [min = "1ms", why = ": connections without a request would pile up"],
            "Time limit for receiving a request head";
        "idle-timeout" idle_timeout: Time = "75s"
            [min = "1ms", why = ": connections without a request would pile up"],
            "Close a kept-alive connection after this long without a request";
        // A busy server always has shorter waits, and clients have no patience for longer ones.
        "admission-wait" admission_wait: Time = "600ms" [min = "100ms", max = "30s", zero = "none"],
            "Accept-queue delay after which new clients get a retry time; 0: never";
        "admission-rate" admission_rate: AutoCount = "auto",
            "Clients per second to schedule retries for; auto: nine tenths of the recent rate";
        "drain-delay" drain_delay: Time = "0",
            "On shutdown, time to keep serving normally while /health/ready fails";
        "drain-window" drain_window: Time = "10s",
            "On shutdown, window over which the clients' reconnect times are spread";
        "drain-timeout" drain_timeout: Time = "10s",
            "On shutdown, time limit for incoming requests and undelivered messages";
    }
    in "Limits" {
        // Ordinary browsers send more than a smaller limit would allow.
        "max-head-bytes" max_head_bytes: Size = "16KiB" [min = "1KiB", max = "64KiB"],
            "Maximum size of the request line and headers together; at most 64KiB";
        // Half of a worker's queue (64 MiB), because a message is queued as one piece.
        "max-message-bytes" max_message_bytes: Size = "64KiB" [min = "1", max = "32MiB"],
            "Maximum size of a message; at most 32MiB";
        "max-batch-bytes" max_batch_bytes: Size = "8MiB",
            "Maximum size of a batch of messages";
        // A position lists an id for every channel, and must fit into a request head.
        "max-channels-per-connection" max_channels_per_connection: Count = "128"
            [min = "1", max = "10000"],
            "Maximum number of channels per connection";
        // The program needs most of it before the first connection.
        "max-memory" max_memory: AutoSize = "auto" [min = "32MiB"],
            "Memory limit; auto: the limit of the control group, or the machine's memory";
        // Room for one response of ordinary size.
        "max-buffered-bytes" max_buffered_bytes: Size = "1GiB" [min = "1MiB"],
            "Total of incomplete requests and unread responses; beyond it the largest are closed";
    }
    in "Compression" {
        "compression" compression: Switch = "true",
            "Compress messages (permessage-deflate) and history (gzip) for clients that ask for it";
        "compression-min-bytes" compression_min_bytes: Size = "1KiB",
            "Minimum size of a message or response to compress";
        // Higher levels take twice a worker's time for less than one byte in a hundred.
        "compression-level" compression_level: Count = "2" [min = "1", max = "6"],
            "Compression level of messages: 1 (fastest) to 6 (smallest)";
    }
    in "Tokens" {
        "token-key-urls" token_key_urls: KeyUrls = "none",
            "URLs of key sets (JWKS) that verify tokens, comma-separated";
        "token-audience" token_audience: ClaimValues = "none" [change = Change::ReloadTokenKeys],
            "Accepted values of a token's `aud`, comma-separated; none: tokens without `aud`";
        "token-issuer" token_issuer: ClaimValues = "none" [change = Change::ReloadTokenKeys],
            "Accepted values of a token's `iss`, comma-separated; none: any";
        // A larger leeway would make the expiry of tokens meaningless.
        "token-leeway" token_leeway: Time = "10s" [step = "1s", max = "10m"],
            "Clock skew to allow between token issuer and server; at most 10m";
        // Revocations are kept for as long as a token can live.
        "max-token-age" max_token_age: Time = "1d" [step = "1s", min = "1s", max = "366d"],
            "Maximum time from `iat` to `exp` of a token";
        "token-cookie" token_cookie: CookieName = "none",
            "Name of a cookie that may carry the token";
        "max-cached-tokens" max_cached_tokens: Count = "100000" [max = "10M"],
            "Maximum number of verified tokens to cache, about 200 bytes each";
        "revocations-file" revocations_file: OptionalPath = "none",
            "File that keeps token revocations; none: in --data, else nothing can be revoked";
        // Each takes some 100 bytes of memory, and a line of a file that is read at the start.
        "max-revocations" max_revocations: Count = "100000" [max = "10M"],
            "Maximum number of revocations in force";
    }
    in "Data" {
        "data" data: OptionalPath = "none" [change = Change::Restart],
            "Directory for data that survives a restart; none: all is in memory only";
        "sync" sync: SyncChoice = "always",
            "When a message of a durable channel is acknowledged: always, interval or never";
        "data-max-bytes" data_max_bytes: Size = "0",
            "Size of the data directory at which durable channels refuse messages; 0: no limit";
        "erase-within" erase_within: Time = "1d" [min = "1s", zero = "none"],
            "Time within which no file of the data directory has what was erased; 0: no such time";
        "records" records: RecordsChoice = "auto" [change = Change::Restart],
            "Where kept subscriptions and revocations are: auto, memory, disk or nats";
    }
    in "Several nodes" {
        "engine" engine: EngineChoice = "memory" [change = Change::Restart],
            "Where logs are that no rule has elsewhere: memory, or nats (shared by several nodes)";
        "nats" nats: NatsServers = "none",
            "NATS servers with JetStream, comma-separated, like tls://nats.example.com:4222";
        "nats-login" nats_login: OptionalPath = "none",
            "File with the NATS login: .creds, nkey seed, USER:PASSWORD, or token";
        "nats-ca" nats_ca: OptionalPath = "none",
            "CA certificates (PEM) for NATS servers, which must then use TLS; none: the system's";
        "nats-cert" nats_cert: OptionalPath = "none",
            "Client certificate (PEM) for NATS servers, which must then use TLS";
        "nats-key" nats_key: OptionalPath = "none",
            "Private key of --nats-cert (PEM)";
        "nats-tls-first" nats_tls_first: Switch = "false",
            "Start the TLS handshake at once, as NATS servers with handshake_first expect";
        "nats-prefix" nats_prefix: NatsPrefix = "throng",
            "Prefix of stream and subject names; the same on all nodes";
        "nats-replicas" nats_replicas: NatsReplicas = "1",
            "Number of replicas to create the stream with: 1, 3 or 5";
    }
    in "Requests to other servers" {
        "ca-file" ca_file: OptionalPath = "none",
            "CA certificates (PEM) for requests to key sets and callouts; none: the system's";
    }
    in "Health" {
        // Shorter ones would load the server; after longer ones its connections would owe pongs.
        "canary-interval" canary_interval: Time = "5s" [min = "100ms", max = "1m", zero = "none"],
            "Time between test messages that the server sends to itself; 0: none";
    }
    in "Log" {
        "log" log: LogLevel = "info" [change = Change::Reload],
            "Lowest level to log to stderr: error, warn, info, debug or trace";
        "log-format" log_format: LogFormatChoice = "text",
            "Log format: text for people, or json for programs, one object per line";
        "log-connections" log_connections: Switch = "false",
            "Log the end of each WebSocket, SSE and stream connection at level info";
    }
    tables {
        history: HistoryOptions => History,
        lag: LagOptions => Lag,
        presence: PresenceOptions => Presence,
        access: AccessOptions => Access,
        per_address: AddressLimitOptions => AddressLimits,
        per_user: UserLimitOptions => UserLimits,
        per_key: KeyLimitOptions => KeyLimits,
    }
    lists {
        /// Settings for the channels that match a pattern.
        channels: ChannelTable, keys channels::KEYS, change ReloadAccess;
        /// Keys that verify tokens.
        token_keys: TokenKeyTable, keys key_tables::TOKEN_KEYS, change ReloadTokenKeys;
        /// Keys that applications show.
        server_keys: ServerKeyTable, keys key_tables::SERVER_KEYS, change ReloadServerKeys;
        /// Certificates besides that of `tls-cert`.
        certificates: CertificateTable, keys certificate_tables::CERTIFICATES,
            change ReloadCertificates;
        /// Endpoints of the application that decide or are notified.
        callouts: CalloutTable, keys callout_tables::CALLOUTS, change Upgrade;
        /// Applications whose clients speak the Pusher protocol.
        apps: AppTable, keys app_tables::APPS, change ReloadApps;
    }
}

settings! {
    /// Who may do what on channels without a rule of their own, once there are keys.
    AccessOptions => Access, keys "access.", change ReloadAccess
    in "Access, once there are keys" {
        "access-subscribe" subscribe: WhoChoice = "granted",
            "Who may follow channels: anyone, user, granted (by the token), nobody (keys only)";
        "access-publish" publish: WhoChoice = "granted",
            "Who may publish";
        "access-history" history: WhoChoice = "granted",
            "Who may read a channel's history";
        "access-presence" presence: WhoChoice = "granted",
            "Who may see a channel's followers";
        "access-erase" erase: WhoChoice = "granted",
            "Who may erase messages";
        "access-edit" edit: WhoChoice = "granted",
            "Who may replace messages of others";
        "access-state" state: WhoChoice = "granted",
            "Who may set and remove keys of a channel's state";
        "access-end" end: WhoChoice = "granted",
            "Who may end channels and open them again";
        "access-update" update: WhoChoice = "granted",
            "Who may choose what they show of themselves to other members";
        "access-create" create: WhoChoice = "granted",
            "Who may create channels";
    }
    tables {}
    lists {}
}

settings! {
    /// How much of each channel is kept.
    HistoryOptions => History, keys "history.", change Upgrade
    in "History" {
        "history-messages" messages: Count = "100",
            "Number of messages kept per channel";
        "history-bytes" bytes: Size = "1MiB",
            "Total size of the messages kept per channel";
        "history-age" age: Time = "1h",
            "How long messages are kept";
        "history-keys" keys: Count = "10000",
            "Number of keys of a channel's state; 0: messages with a key are refused";
        "history-key-bytes" key_bytes: Size = "16MiB",
            "Total size of the newest messages of all keys of a channel";
        "history-total-bytes" total_bytes: Size = "1GiB",
            "Total size of the messages in all channels; beyond it the oldest are dropped";
    }
    tables {}
    lists {}
}

settings! {
    /// How far a subscriber may lag behind its channel, and what happens beyond that.
    LagOptions => Lag, keys "lag.", change Upgrade
    in "Slow subscribers" {
        "max-lag-messages" max_messages: Count = "1000"
            [min = "1", why = ": subscribers would get no messages"],
            "Maximum number of messages a subscriber may lag behind";
        "max-lag-bytes" max_bytes: Size = "1MiB",
            "Maximum size of the messages a subscriber may lag behind";
        "lag-policy" policy: LagPolicyChoice = "close",
            "Beyond either limit: close, skip with a gap message, or latest: send only the newest";
        // Connections are looked at once a second.
        "slow-timeout" slow_timeout: Time = "0" [min = "1s", zero = "none"],
            "Close a subscriber that has not caught up for this long; 0: no time limit";
    }
    tables {}
    lists {}
}

settings! {
    /// Whether clients are told who begins and ceases to follow a channel.
    PresenceOptions => Presence, keys "presence.", change Upgrade
    in "Presence events" {
        "presence-events" events: Switch = "false",
            "Send presence events (who joins and leaves) to clients that ask for them";
        "presence-grace" grace: Time = "10s",
            "How long a user stays present after the last connection ends";
        // As many users as the answer to a query names.
        "presence-max-named" max_named: Count = "100" [max = "1000"],
            "Connections in a channel up to which presence events name users; 0: never";
        "presence-members" members: MembersChoice = "none",
            "Keep a list of the members of each channel, with what they show of themselves";
        // As clients may choose for a channel. Shorter ones cost more than they join.
        "presence-pace" pace: Time = "50ms" [min = "10ms", max = "60s", zero = "none"],
            "Least time between two deliveries of what changes among members; 0: at once";
    }
    tables {}
    lists {}
}

settings! {
    /// The limits of each address; 0 for none.
    AddressLimitOptions => AddressLimits, keys "per_address.", change ReloadLimits
    in "Limits per address" {
        "max-connections-per-address" max_connections: Count = "0",
            "Maximum number of connections per address; 0: no limit";
        "connect-rate-per-address" connect_rate: Count = "0",
            "Maximum number of new connections per second and address; 0: no limit";
        "max-subscriptions-per-address" max_subscriptions: Count = "0",
            "Maximum number of subscriptions per address; 0: no limit";
        "publish-rate-per-address" publish_rate: Count = "0",
            "Maximum number of messages published per second and address; 0: no limit";
        "publish-byte-rate-per-address" publish_byte_rate: Size = "0",
            "Maximum bytes published per second and address; 0: no limit";
        "read-byte-rate-per-address" read_byte_rate: Size = "0",
            "Maximum bytes of history and presence read per second and address; 0: no limit";
        "bad-token-rate-per-address" bad_token_rate: AutoCount = "auto",
            "Bad tokens to verify per second and address; auto: 10, no limit on loopback";
        "max-questions-per-address" max_questions: AutoCount = "auto",
            "Pending decisions per address; auto: 256 or more, no limit on loopback";
    }
    tables {}
    lists {}
}

settings! {
    /// The limits of each user; 0 for none.
    UserLimitOptions => UserLimits, keys "per_user.", change ReloadLimits
    in "Limits per user" {
        "max-connections-per-user" max_connections: Count = "0",
            "Maximum number of subscribed connections per user; 0: no limit";
        "connect-rate-per-user" connect_rate: Count = "0",
            "Maximum number of new subscribed connections per second and user; 0: no limit";
        "max-subscriptions-per-user" max_subscriptions: Count = "0",
            "Maximum number of subscriptions per user; 0: no limit";
        "publish-rate-per-user" publish_rate: Count = "0",
            "Maximum number of messages published per second and user; 0: no limit";
        "publish-byte-rate-per-user" publish_byte_rate: Size = "0",
            "Maximum bytes published per second and user; 0: no limit";
        "read-byte-rate-per-user" read_byte_rate: Size = "0",
            "Maximum bytes of history and presence read per second and user; 0: no limit";
    }
    tables {}
    lists {}
}

settings! {
    /// The limits of each server key; 0 for none.
    KeyLimitOptions => KeyLimits, keys "per_key.", change ReloadLimits
    in "Limits per server key" {
        "max-connections-per-key" max_connections: Count = "0",
            "Maximum number of subscribed connections per server key; 0: no limit";
        "connect-rate-per-key" connect_rate: Count = "0",
            "Maximum number of new subscribed connections per second and server key; 0: no limit";
        "max-subscriptions-per-key" max_subscriptions: Count = "0",
            "Maximum number of subscriptions per server key; 0: no limit";
        "publish-rate-per-key" publish_rate: Count = "0",
            "Maximum number of messages published per second and server key; 0: no limit";
        "publish-byte-rate-per-key" publish_byte_rate: Size = "0",
            "Maximum bytes published per second and server key; 0: no limit";
        "read-byte-rate-per-key" read_byte_rate: Size = "0",
            "Maximum bytes of history and presence read per second and server key; 0: no limit";
    }
    tables {}
    lists {}
}

impl Options {
    /// The setting `listen` of this source.
    pub(super) fn listen(&self) -> Option<SocketAddr> {
        self.listen.map(|address| address.0)
    }

    /// The setting `control` of this source.
    pub(crate) fn control(&self) -> Option<&ControlChoice> {
        self.control.as_ref()
    }
}

/// The three names of a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Names {
    /// The flag, with its two hyphens.
    pub(crate) flag: String,
    /// The variable, which begins with `THRONG_`.
    pub(crate) variable: String,
    /// The key in the file; a key of a table has the table's name and a dot before it.
    pub(crate) key: String,
}

/// The names of every setting, in the order of definition.
pub(super) fn names() -> Vec<Names> {
    let rows = Settings::rows().into_iter().filter(|row| !row.flag.is_empty());
    let names = rows.map(|row| Names {
        flag: format!("--{}", row.flag),
        variable: format!("THRONG_{}", row.flag.to_ascii_uppercase().replace('-', "_")),
        key: row.key(),
    });
    names.collect()
}

/// The row with this key.
pub(crate) fn row(key: &str) -> Option<&'static Row> {
    Settings::rows().into_iter().find(|row| row.key() == key)
}
