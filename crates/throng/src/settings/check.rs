//! Which values of settings are possible, alone and together.

use std::time::Duration;

use throng_core::LagPolicy;
use throng_core::rules::{STALENESS_MS_MAX, STALENESS_MS_MIN};
use throng_data::storage::disk::BYTES_LIMIT_MIN;
use throng_data::sync_policy::SyncPolicy;
use throng_units::{Size, Value};
use throng_wire::subscribe::{PACE_MS_MAX, PACE_MS_MIN};

use super::channels::{ChannelTable, TABLES_MAX};
use super::table::{AccessOptions, Settings, SettingsError, row};
use super::values::{JournalChoice, LogPlace};
use super::{check_acme, check_nats, check_tls};

/// `erase-within` unless it is set.
const ERASE_WITHIN: Duration = Duration::from_secs(24 * 60 * 60);

/// The range of `resume-for`, in seconds: the shortest is what a client takes that comes back at
/// once, and the longest has a name and a place in memory for each that does not.
const RESUME_S_MIN: u64 = 1;
const RESUME_S_MAX: u64 = 60 * 60;

/// Rejects settings that cannot work, with a sentence that says what to change.
pub(super) fn check(settings: &Settings) -> Result<(), SettingsError> {
    let problem = address(settings)
        .or_else(|| admin(settings))
        .or_else(|| check_acme::acme(settings))
        .or_else(|| check_tls::tls(settings))
        .or_else(|| proxies(settings))
        .or_else(|| settings.fault())
        .or_else(|| message_size(settings))
        .or_else(|| channels(settings))
        .or_else(|| data(settings))
        .or_else(|| check_nats::nats(settings))
        .or_else(|| tokens(settings))
        .or_else(|| access_without_keys(settings));
    problem.map_or(Ok(()), |message| Err(SettingsError(message)))
}

fn address(settings: &Settings) -> Option<String> {
    let address = settings.listen;
    let is_reachable = !address.0.ip().to_canonical().is_loopback();
    let is_refused = is_reachable && !settings.has_keys() && !settings.allow_anyone.0;
    is_refused.then(|| {
        format!(
            "refusing to listen on {address}: others can reach it, and without keys everyone may \
             read and publish; run `throng key` and add the table that it prints to throng.toml, \
             or add --allow-anyone if everyone may"
        )
    })
}

fn admin(settings: &Settings) -> Option<String> {
    let has_server_keys = !settings.server_keys.is_empty();
    let Some(address) = settings.admin_listen.0 else {
        return (!settings.clients_publish.0 && !has_server_keys).then(|| {
            "clients-publish = false leaves no way to publish; add --admin-listen 127.0.0.1:9090, \
             on which your application can publish, or a key for it: `throng key` makes one"
                .into()
        });
    };
    if address == settings.listen.0 && address.port() != 0 {
        return Some(format!(
            "listen and admin-listen are both {address}; give one of them another port"
        ));
    }
    let is_reachable = !address.ip().to_canonical().is_loopback();
    let is_refused = is_reachable && !has_server_keys && !settings.admin_allow_anyone.0;
    is_refused.then(|| {
        format!(
            "refusing to listen on {address} for administration: others can reach it, and without \
             server keys everyone sees the status and publishes; run `throng key --scopes \
             administration` and add the table that it prints to throng.toml, or add \
             --admin-allow-anyone if a firewall or a private network keeps others out"
        )
    })
}

/// A warning about an origin that any page can have.
pub(crate) fn origin_warning(settings: &Settings) -> Option<String> {
    settings.allowed_origins.0.iter().any(|origin| origin == "null").then(|| {
        "allowed-origins has `null`: any page can have that origin, in a sandboxed frame".to_owned()
    })
}

/// A warning about a reachable admin listener that trusts everyone, although clients need
/// credentials elsewhere.
pub(crate) fn admin_warning(settings: &Settings) -> Option<String> {
    let address = settings.admin_listen.0?;
    let is_reachable = !address.ip().to_canonical().is_loopback();
    let trusts_everyone = settings.server_keys.is_empty() && settings.has_keys();
    (is_reachable && trusts_everyone).then(|| {
        format!(
            "the admin listener on {address} trusts every client that reaches it, because there \
             is no server key: without a credential, clients see the status, publish to all \
             channels and users, read all histories, close connections and revoke tokens; run \
             `throng key` and add the table that it prints, or keep others out with a firewall or \
             a network policy"
        )
    })
}

fn proxies(settings: &Settings) -> Option<String> {
    let header = settings.client_address_header;
    let setting = match header.0 {
        Some(_) if settings.proxy_protocol.0 => {
            return Some(format!(
                "proxy-protocol = always and client-address-header = {header} exclude each other; \
                 the client's address comes from one of them"
            ));
        }
        Some(_) => format!("client-address-header = {header}"),
        None if settings.proxy_protocol.0 => "proxy-protocol = always".into(),
        None => return None,
    };
    settings
        .trusted_proxies
        .0
        .is_empty()
        .then(|| format!("{setting} needs trusted-proxies: the addresses of the proxies to trust"))
}

/// A batch must be able to hold one message, and a subscriber must be allowed to lag by one.
fn message_size(settings: &Settings) -> Option<String> {
    let (message, batch) = (settings.max_message_bytes, settings.max_batch_bytes);
    if message > batch {
        return Some(format!(
            "max-message-bytes ({message}) is more than max-batch-bytes ({batch}); \
             a batch must be able to hold one message"
        ));
    }
    (settings.lag.max_bytes < message).then(|| {
        format!(
            "lag.max-bytes ({}) is less than max-message-bytes ({message}); \
             a subscriber must be allowed to lag by one message",
            settings.lag.max_bytes
        )
    })
}

fn data(settings: &Settings) -> Option<String> {
    let lacks = match settings.records.0 {
        Some(LogPlace::Disk) if settings.data.0.is_none() => Some("disk needs `data`"),
        Some(LogPlace::Nats) if !settings.engine.0 => Some("nats needs engine = nats"),
        _ => None,
    };
    if let Some(lacks) = lacks {
        return Some(format!("records = {lacks}; set it, or another journal"));
    }
    let limit = settings.data_max_bytes;
    if settings.data.0.is_none() {
        let set = [
            ("sync", settings.sync.0 != SyncPolicy::Always),
            ("data-max-bytes", limit.0 > 0),
            ("erase-within", settings.erase_within.0 != ERASE_WITHIN),
        ];
        let (key, _) = set.into_iter().find(|(_, is_set)| *is_set)?;
        return Some(format!(
            "{key} has no effect, because there is no data directory; set `data`"
        ));
    }
    (limit.0 > 0 && (limit.0 as u64) < BYTES_LIMIT_MIN).then(|| {
        format!(
            "data-max-bytes ({limit}) is less than {}, which the data directory may take without \
             any message; set it to at least that, or to 0 for no limit",
            Size(BYTES_LIMIT_MIN as usize)
        )
    })
}

/// Why the logs of a table's channels cannot be where it says.
fn journal_fault(settings: &Settings, table: &ChannelTable) -> Option<String> {
    if let (Some(durable), Some(journal)) = (table.durable, table.journal)
        && durable.0 != (journal.0 == LogPlace::Disk)
    {
        return Some(format!(
            "durable = {durable} and journal = {journal} contradict each other; journal is enough"
        ));
    }
    let journal = settings.journal_of(table);
    let (history, is_local) = (&settings.history, table.local.is_some_and(|local| local.0));
    let keeps_none = table.messages.unwrap_or(history.messages).0 == 0
        || table.bytes.unwrap_or(history.bytes).0 == 0
        || table.age.unwrap_or(history.age).0.is_zero();
    let must_exist = table.must_exist.is_some_and(|switch| switch.0);
    let fault = match journal {
        _ if must_exist && table.users.is_some() => {
            "must-exist is for channels; an inbox is there with its user"
        }
        _ if must_exist && keeps_none => {
            "channels that must exist keep messages; `messages`, `bytes` and `age` must be more \
             than 0"
        }
        LogPlace::Disk if settings.data.0.is_none() => {
            "durable channels need a directory; set `data`"
        }
        LogPlace::Disk if keeps_none => {
            "durable channels keep messages; `messages`, `bytes` and `age` must be more than 0"
        }
        LogPlace::Nats if !settings.engine.0 => {
            "journal = nats needs servers of NATS; set engine = nats, and nats"
        }
        LogPlace::Nats if is_local => {
            "local = true contradicts journal = nats, which all nodes share"
        }
        LogPlace::Memory | LogPlace::Disk if settings.engine.0 && !is_local => {
            return Some(format!(
                "with engine = nats, each node has channels of its own where journal = {}: others \
                 see neither their messages nor who follows them; add local = true if that is \
                 meant, or keep them in NATS",
                JournalChoice(journal)
            ));
        }
        _ => return None,
    };
    Some(fault.to_owned())
}

fn channels(settings: &Settings) -> Option<String> {
    if settings.channels.len() > TABLES_MAX {
        return Some(format!("there are more than {TABLES_MAX} tables [[channels]]"));
    }
    let message = settings.max_message_bytes;
    settings.channels.iter().zip(1..).find_map(|(table, nth)| {
        if let Some(fault) = table.fault() {
            return Some(format!("[[channels]] number {nth} {fault}"));
        }
        if let Some(fault) = out_of_range(table) {
            return Some(format!("[[channels]] number {nth}: {fault}"));
        }
        let fault = pace_fault(table).or_else(|| staleness_fault(settings, table));
        if let Some(fault) = fault.or_else(|| resume_fault(table)) {
            return Some(format!("[[channels]] number {nth}: {fault}"));
        }
        if let Some(fault) = journal_fault(settings, table) {
            return Some(format!("[[channels]] number {nth}: {fault}"));
        }
        let bytes = table.max_lag_bytes.filter(|bytes| *bytes < message)?;
        Some(format!(
            "[[channels]] number {nth}: max-lag-bytes ({bytes}) is less than \
             max-message-bytes ({message})"
        ))
    })
}

/// A pace has the range that clients may choose from, or is 0.
fn pace_fault(table: &ChannelTable) -> Option<String> {
    let pace = table.pace.filter(|pace| !pace.0.is_zero())?;
    let range_ms = u128::from(PACE_MS_MIN)..=u128::from(PACE_MS_MAX);
    let is_whole = pace.0.subsec_nanos() % 1_000_000 == 0;
    if is_whole && range_ms.contains(&pace.0.as_millis()) {
        return None;
    }
    Some(format!(
        "pace must be in whole milliseconds, between {PACE_MS_MIN}ms and {}s, or 0 for none, \
         not {pace}",
        PACE_MS_MAX / 1000
    ))
}

/// A place is kept for as long as a client may take to come back.
fn resume_fault(table: &ChannelTable) -> Option<String> {
    let time = table.resume_for?;
    let range_s = RESUME_S_MIN..=RESUME_S_MAX;
    if !range_s.contains(&time.0.as_secs()) {
        return Some(format!(
            "resume-for must be between {RESUME_S_MIN}s and {}m, not {time}",
            RESUME_S_MAX / 60
        ));
    }
    let has_resume = table.resume.is_some_and(|resume| resume.0.is_some());
    (!has_resume).then(|| "resume-for has no effect without resume".to_owned())
}

/// Only where older messages may be skipped can their age be bounded.
fn staleness_fault(settings: &Settings, table: &ChannelTable) -> Option<String> {
    let age = table.max_staleness.filter(|age| !age.0.is_zero())?;
    let range_ms = u128::from(STALENESS_MS_MIN)..=u128::from(STALENESS_MS_MAX);
    if !range_ms.contains(&age.0.as_millis()) {
        let most_s = STALENESS_MS_MAX / 1000;
        return Some(format!(
            "max-staleness must be between {STALENESS_MS_MIN}ms and {most_s}s, or 0 for none, \
             not {age}"
        ));
    }
    let policy = table.lag_policy.unwrap_or(settings.lag.policy).0;
    (policy != LagPolicy::Latest).then(|| {
        "max-staleness needs lag-policy = \"latest\": other subscribers get every message, \
         however old"
            .to_owned()
    })
}

/// The keys of a table have the ranges of the settings that they replace.
fn out_of_range(table: &ChannelTable) -> Option<String> {
    fn fault<T: Value>(key: &str, setting: &str, value: Option<T>) -> Option<String> {
        row(setting)?.fault_at(key, &value?)
    }
    fault("age", "history.age", table.age)
        .or_else(|| fault("max-lag-messages", "lag.max-messages", table.max_lag_messages))
        .or_else(|| fault("slow-timeout", "lag.slow-timeout", table.slow_timeout))
}

fn tokens(settings: &Settings) -> Option<String> {
    if settings.has_token_keys() {
        return None;
    }
    let set = [
        ("token-audience", !settings.token_audience.0.is_empty()),
        ("token-issuer", !settings.token_issuer.0.is_empty()),
        ("token-cookie", settings.token_cookie.0.is_some()),
        (
            "revocations-file",
            settings.revocations_file.0.is_some()
                && !settings.has_connect_callout()
                && settings.tls_client_user.0.is_none(),
        ),
    ];
    let (key, _) = set.into_iter().find(|(_, is_set)| *is_set)?;
    Some(format!(
        "{key} has no effect, because no key verifies tokens; add [[token-keys]] or token-key-urls"
    ))
}

/// Rules without keys would not hold: a server without keys is open.
fn access_without_keys(settings: &Settings) -> Option<String> {
    if settings.has_keys() {
        return None;
    }
    let why = "without keys everyone may do everything; add [[token-keys]], token-key-urls or \
               [[server-keys]]";
    if settings.access != AccessOptions::default().resolve() {
        return Some(format!("[access] has no effect: {why}"));
    }
    let nth = settings.channels.iter().position(ChannelTable::has_access)? + 1;
    Some(format!("[[channels]] number {nth} has access rules, which have no effect: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::file;

    fn problem(text: &str) -> Option<String> {
        let settings = file::read("throng.toml", text).unwrap().resolve();
        check(&settings).err().map(|error| error.to_string())
    }

    #[test]
    fn possible_settings_are_accepted() {
        for text in [
            "",
            "listen = '[::1]:0'",
            "listen = '127.9.9.9:80'",
            "listen = '0.0.0.0:80'\nallow-anyone = true",
            "admin-listen = '127.0.0.1:0'\nclients-publish = false",
            "admin-listen = '0.0.0.0:0'\nadmin-allow-anyone = true",
            "heartbeat = 0",
            "history = { messages = 0 }",
            "max-message-bytes = '1MiB'",
            "trusted-proxies = ['127.0.0.1']",
            "trusted-proxies = ['10.0.0.0/8', 'fd00::/8']\nproxy-protocol = 'always'",
            "trusted-proxies = ['::1']\nclient-address-header = 'x-forwarded-for'",
            "[[channels]]\nusers = '*'\nage = 0",
            "listen = '0.0.0.0:80'\n[[token-keys]]\nsecret-file = 'a'",
            "listen = '0.0.0.0:80'\ntoken-key-urls = 'https://a.example/keys'",
            "listen = '0.0.0.0:80'\nadmin-listen = '0.0.0.0:81'\n[[server-keys]]\nname = 'a'",
            "clients-publish = false\n[[server-keys]]\nname = 'a'",
            "access = { publish = 'user' }\n[[token-keys]]\nsecret-file = 'a'",
            "token-audience = 'a'\ntoken-cookie = 'b'\n[[token-keys]]\nsecret-file = 'a'",
        ] {
            assert_eq!(problem(text), None, "{text}");
        }
    }

    #[test]
    fn impossible_settings_are_rejected() {
        for (text, expected) in [
            ("listen = '0.0.0.0:8080'", "refusing to listen on 0.0.0.0:8080: others can reach it"),
            ("clients-publish = false", "clients-publish = false leaves no way to publish"),
            (
                "listen = '127.0.0.1:1'\nadmin-listen = 1",
                "listen and admin-listen are both 127.0.0.1:1; give one of them another port",
            ),
            (
                "admin-listen = '0.0.0.0:1'\nallow-anyone = true",
                "refusing to listen on 0.0.0.0:1 for administration: others can reach it",
            ),
            ("listen = '[::]:8080'", "refusing to listen on [::]:8080"),
            ("max-message-bytes = '9MiB'", "max-message-bytes (9MiB) is more than max-batch-bytes"),
            ("lag = { max-bytes = 1000 }", "lag.max-bytes (1000) is less than max-message-bytes"),
            (
                "presence = { max-named = 1001 }",
                "presence.max-named must be at most 1000, not 1001",
            ),
            ("[[channels]]\nage = 0", "[[channels]] number 1 has no pattern"),
            ("[[channels]]\nmatch = 'a'\nusers = 'b'", "[[channels]] number 1 has both"),
            ("[[channels]]\nmatch = ''", "[[channels]] number 1 has an empty pattern"),
            (
                "admin-listen = '0.0.0.0:81'\n[[token-keys]]\nsecret-file = 'a'",
                "refusing to listen on 0.0.0.0:81 for administration: others can reach it",
            ),
            (
                "[[channels]]\nmatch = 'a'\nage = 0\n[[channels]]\nmatch = '*'\npublish = 'user'",
                "[[channels]] number 2 has access rules, which have no effect: without keys",
            ),
            ("access = { publish = 'user' }", "[access] has no effect: without keys everyone may"),
            ("token-audience = 'a'", "token-audience has no effect, because no key verifies"),
            (
                "token-cookie = 'a'\n[[server-keys]]\nname = 'a'",
                "token-cookie has no effect, because no key verifies tokens; add [[token-keys]]",
            ),
            ("token-leeway = '1.5s'", "token-leeway must be in whole seconds, not 1500ms"),
            ("max-token-age = 0", "max-token-age must be between 1s and 366d, not 0"),
            ("max-cached-tokens = '1G'", "max-cached-tokens must be at most 10M, not 1000000000"),
            (
                "[[channels]]\nmatch = '*'\n[[channels]]\nusers = '*'\nmax-lag-bytes = 1",
                "[[channels]] number 2: max-lag-bytes (1) is less than max-message-bytes (64KiB)",
            ),
            (
                "[[channels]]\nmatch = '*'\npace = '9ms'",
                "[[channels]] number 1: pace must be in whole milliseconds, between 10ms and 60s",
            ),
            (
                "[[channels]]\nmatch = '*'\nresume-for = '1m'",
                "[[channels]] number 1: resume-for has no effect without resume",
            ),
            (
                "[[channels]]\nmatch = '*'\nresume = 'at-most-once'\nresume-for = '2h'",
                "[[channels]] number 1: resume-for must be between 1s and 60m",
            ),
            (
                "[[channels]]\nmatch = '*'\nmax-staleness = '1s'",
                "[[channels]] number 1: max-staleness needs lag-policy = \"latest\"",
            ),
            (
                "[[channels]]\nmatch = '*'\nlag-policy = 'latest'\nmax-staleness = '50ms'",
                "[[channels]] number 1: max-staleness must be between 100ms and 60s, or 0",
            ),
        ] {
            let found = problem(text).unwrap_or_default();
            assert!(found.starts_with(expected), "{text}: {found}");
        }
    }

    #[test]
    fn a_value_out_of_its_range_is_rejected() {
        for (text, expected) in [
            ("max-message-bytes = 0", "max-message-bytes must be between"),
            ("compression-level = 0", "compression-level must be between 1 and 6, not 0"),
            ("compression-level = 7", "compression-level must be between 1 and 6, not 7"),
            ("max-head-bytes = 100", "max-head-bytes must be between 1KiB and 64KiB, not 100"),
            ("max-head-bytes = \"65KiB\"", "max-head-bytes must be between 1KiB and 64KiB, not"),
            ("heartbeat = '500ms'", "heartbeat must be at least 1s, or 0 for none, not 500ms"),
            ("canary-interval = '2m'", "canary-interval must be between 100ms and 1m, or 0"),
            ("admission-wait = '31s'", "admission-wait must be between 100ms and 30s, or 0"),
            ("ping-interval = '500ms'", "ping-interval must be at least 1s, or 0 for none, not"),
            ("head-timeout = 0", "head-timeout must be at least 1ms, not 0: connections without"),
            ("max-channels-per-connection = 0", "max-channels-per-connection must be between"),
            ("lag = { max-messages = 0 }", "lag.max-messages must be at least 1"),
            ("token-leeway = '11m'", "token-leeway must be at most 10m, not 11m"),
            (
                "tls-ticket-lifetime = '8d'",
                "tls-ticket-lifetime must be between 1m and 7d, or 0 for no tickets, not 8d",
            ),
            ("max-memory = '1MiB'", "max-memory must be at least 32MiB, not 1MiB"),
            ("head-timeout = '1.5ms'", "head-timeout must be in whole milliseconds, not 1500us"),
            ("[history]\nage = '10us'", "history.age must be in whole milliseconds, not 10us"),
            (
                "[[channels]]\nmatch = '*'\nage = '1.5ms'",
                "[[channels]] number 1: age must be in whole milliseconds, not 1500us",
            ),
            ("max-buffered-bytes = '1k'", "max-buffered-bytes must be at least 1MiB, not 1KiB"),
            ("workers = 1_000_000", "workers must be at most 1024, not 1000000"),
        ] {
            let found = problem(text).unwrap_or_default();
            assert!(found.starts_with(expected), "{text}: {found}");
        }
    }

    #[test]
    fn settings_of_the_data_directory_need_one() {
        for (text, key) in [
            ("sync = 'never'", "sync"),
            ("data-max-bytes = '1GiB'", "data-max-bytes"),
            ("erase-within = '1h'", "erase-within"),
        ] {
            let expected =
                format!("{key} has no effect, because there is no data directory; set `data`");
            assert_eq!(problem(text), Some(expected), "{text}");
            assert_eq!(problem(&format!("data = '/d'\n{text}")), None);
        }
    }

    #[test]
    fn a_journal_has_what_it_needs() {
        let nats = "engine = 'nats'\nnats = 'a'\ndata = '/d'\n[[channels]]\nmatch = 'a'\n";
        let disk = "data = '/d'\n[[channels]]\nmatch = 'a'\n";
        for (head, table, expected) in [
            (
                "[[channels]]\nmatch = 'a'\n",
                "journal = 'disk'",
                "durable channels need a directory",
            ),
            ("[[channels]]\nmatch = 'a'\n", "durable = true", "durable channels need a directory"),
            (disk, "journal = 'disk'\nage = 0", "durable channels keep messages"),
            (disk, "journal = 'nats'", "journal = nats needs servers of NATS"),
            (disk, "journal = 'memory'\ndurable = true", "durable = true and journal = memory"),
            (disk, "journal = 'disk'\ndurable = false", "durable = false and journal = disk"),
            (nats, "journal = 'memory'", "with engine = nats, each node has channels of its own"),
            (nats, "durable = true", "with engine = nats, each node has channels of its own"),
            (nats, "journal = 'nats'\nlocal = true", "local = true contradicts journal = nats"),
            (nats, "local = true", "local = true contradicts journal = nats"),
        ] {
            let found = problem(&format!("{head}{table}")).unwrap_or_default();
            let expected = format!("[[channels]] number 1: {expected}");
            assert!(found.starts_with(&expected), "{table}: {found}");
        }
        for (head, table) in [
            (disk, "journal = 'disk'\ndurable = true"),
            (disk, "journal = 'memory'\nlocal = true"),
            (nats, "journal = 'disk'\nlocal = true"),
            (nats, "journal = 'memory'\ndurable = false\nlocal = true"),
            (nats, "journal = 'nats'"),
        ] {
            assert_eq!(problem(&format!("{head}{table}")), None, "{table}");
        }
        for (text, expected) in [
            ("records = 'disk'", "records = disk needs `data`"),
            ("records = 'nats'", "records = nats needs engine = nats"),
        ] {
            let found = problem(text).unwrap_or_default();
            assert!(found.starts_with(expected), "{text}: {found}");
        }
    }

    #[test]
    fn a_slow_subscriber_is_given_a_second_at_least() {
        for (text, key) in [
            ("[lag]\nslow-timeout = '500ms'", "lag.slow-timeout"),
            (
                "[[channels]]\nmatch = '*'\nslow-timeout = 0.5",
                "[[channels]] number 1: slow-timeout",
            ),
        ] {
            let expected = format!("{key} must be at least 1s, or 0 for none, not 500ms");
            assert_eq!(problem(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn proxies_have_to_be_listed() {
        for (text, expected) in [
            ("proxy-protocol = 'always'", "proxy-protocol = always needs trusted-proxies"),
            (
                "client-address-header = 'forwarded'",
                "client-address-header = forwarded needs trusted-proxies",
            ),
            (
                "trusted-proxies = ['::1']\nproxy-protocol = 'always'\n\
                 client-address-header = 'forwarded'",
                "proxy-protocol = always and client-address-header = forwarded exclude each other",
            ),
        ] {
            let found = problem(text).unwrap_or_default();
            assert!(found.starts_with(expected), "{text}: {found}");
        }
    }
}
