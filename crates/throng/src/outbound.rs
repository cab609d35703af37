//! The server's own requests: key sets at URLs, callouts and webhooks.

mod secrets;
mod webhooks;

use std::sync::Arc;
use std::time::Duration;

use throng_access::connect::PASSED_NAMES_MAX;
use throng_access::keys::Key;
use throng_access::pattern::Pattern;
use throng_access::{Clients, Passed};
use throng_control::{Ailment, MetricSource, OtherMetric, OtherValue};
use throng_core::ChannelName;
use throng_core::name::Kind;
use throng_outbound::{
    Asks, CalloutMetrics, CalloutSettings, Callouts, DeliveryMetrics, Endpoint, KeySetError,
    KeySetMetrics, Notifies, Trust, fetch_key_set,
};
use throng_units::{Size, Time};

use crate::access::pattern;
use crate::settings::{CalloutTable, Settings, SettingsError};

/// The deadline of a callout. Clients wait for a decision for five seconds at most.
const TIMEOUT: Duration = Duration::from_secs(2);
const TIMEOUT_MAX: Duration = Duration::from_secs(4);
const TIMEOUT_MIN: Duration = Duration::from_millis(1);

/// Questions that an endpoint is asked at a time: each takes a connection.
const IN_FLIGHT: usize = 32;
const IN_FLIGHT_MAX: usize = 1_000;

/// Questions or events that wait: each takes a few hundred bytes.
const QUEUED: usize = 10_000;
const QUEUED_MAX: usize = 1_000_000;

/// Answers that are remembered: each takes some 100 bytes.
const CACHED: usize = 10_000;
const CACHED_MAX: usize = 10_000_000;

/// Content in a question: all questions that wait have 16 MiB together.
const CONTENT_BYTES_MAX: usize = 1 << 20;

/// The most `[[callouts]]` tables.
const TABLES_MAX: usize = 16;

/// The certificates that TLS trusts. Nothing is read unless a URL needs it.
pub(crate) fn trust(settings: &Settings) -> Result<Trust, SettingsError> {
    let callouts = settings.callouts.iter().filter_map(|table| table.url.as_deref());
    let webhooks = settings.apps.iter().filter_map(|app| app.webhook.as_deref());
    let mut urls =
        callouts.chain(webhooks).chain(settings.token_key_urls.0.iter().map(String::as_str));
    let is_needed = urls.any(|url| url.to_ascii_lowercase().starts_with("https:"));
    let trust = match settings.ca_file.0.as_deref() {
        Some(file) => Trust::load(Some(file)),
        None if is_needed => Trust::load(None),
        None => Ok(Trust::none()),
    };
    trust.map_err(|error| SettingsError(error.to_string()))
}

/// Checks everything that the server would use.
pub(crate) fn check(settings: &Settings) -> Result<(), SettingsError> {
    key_set_urls(settings)?;
    webhooks::settings(settings)?;
    callouts(settings, &trust(settings)?, &Arc::default()).map(drop)
}

/// The endpoints of `token-key-urls`.
pub(crate) fn key_set_urls(settings: &Settings) -> Result<Vec<Endpoint>, SettingsError> {
    let parse = |url: &String| endpoint("token-key-urls", url);
    settings.token_key_urls.0.iter().map(parse).collect()
}

/// The result of fetching the key set at a URL: its keys, and how many others it has.
pub(crate) type FetchedSet = (Endpoint, Result<(Vec<Arc<Key>>, usize), KeySetError>);

/// Fetches the key sets of `token-key-urls` once, all at the same time.
///
/// # Errors
///
/// A URL or a certificate of the settings cannot be used.
pub(crate) fn fetch_key_sets(settings: &Settings) -> anyhow::Result<Vec<FetchedSet>> {
    let (urls, trust) = (key_set_urls(settings)?, trust(settings)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let fetches: Vec<_> = urls
        .into_iter()
        .map(|url| (url.clone(), runtime.spawn(fetch_key_set(url, trust.clone()))))
        .collect();
    fetches.into_iter().map(|(url, fetch)| Ok((url, runtime.block_on(fetch)?))).collect()
}

/// The callouts of `[[callouts]]`. `clients` limits how many questions of an address are open.
pub(crate) fn callouts(
    settings: &Settings,
    trust: &Trust,
    clients: &Arc<Clients>,
) -> Result<Callouts, SettingsError> {
    if settings.callouts.len() > TABLES_MAX {
        let message = format!("there are more than {TABLES_MAX} tables [[callouts]]");
        return Err(SettingsError(message));
    }
    check_connect(&settings.callouts)?;
    let tables = settings.callouts.iter().map(|table| callout(table, settings));
    Ok(Callouts::new(tables.collect::<Result<_, _>>()?, trust, Arc::clone(clients)))
}

fn endpoint(at: &str, url: &str) -> Result<Endpoint, SettingsError> {
    url.parse().map_err(|error| SettingsError(format!("{at}: {error}")))
}

/// One table, checked.
fn callout(table: &CalloutTable, settings: &Settings) -> Result<CalloutSettings, SettingsError> {
    let at = &table.at;
    let fault = |message: &str| SettingsError(format!("{at} {message}"));
    let url = table.url.as_deref().ok_or_else(|| {
        fault("has no url; add one, like url = \"https://app.example.com/throng\"")
    })?;
    let (asks, notifies) = (asks(table)?, notifies(table)?);
    if asks.is_empty() && notifies.is_empty() {
        return Err(fault(
            "is for nothing; add what the endpoint `decides` (connect, subscribe, publish) or what \
             it `notifies` of (connected, disconnected, occupied, vacated)",
        ));
    }
    let time = table.timeout.map_or(TIMEOUT, |time| time.0);
    if !(TIMEOUT_MIN..=TIMEOUT_MAX).contains(&time) {
        let (least, most) = (Time(TIMEOUT_MIN), Time(TIMEOUT_MAX));
        return Err(fault(&format!("has a timeout that is not between {least} and {most}")));
    }
    let count = |key: &str, value: Option<throng_units::Count>, usual, least, most| {
        let value = value.map_or(usual, |count| count.0);
        let is_possible = (least..=most).contains(&value);
        let message = format!("has a {key} that is not between {least} and {most}");
        if is_possible { Ok(value) } else { Err(fault(&message)) }
    };
    Ok(CalloutSettings {
        endpoint: endpoint(at, url)?,
        secrets: secrets::of(table)?,
        asks,
        passed: passed(table)?,
        decides_tokens: decides_tokens(table)?,
        notifies,
        pattern: table_pattern(table)?,
        timeout: time,
        max_in_flight: count("max-in-flight", table.max_in_flight, IN_FLIGHT, 1, IN_FLIGHT_MAX)?,
        max_queued: count("max-queued", table.max_queued, QUEUED, 1, QUEUED_MAX)?,
        max_cached: count("max-cached", table.max_cached, CACHED, 0, CACHED_MAX)?,
        max_content_bytes: max_content_bytes(table)?,
        max_message_bytes: settings.max_message_bytes.0,
    })
}

/// The most bytes of content in its questions about publications.
fn max_content_bytes(table: &CalloutTable) -> Result<usize, SettingsError> {
    let Some(Size(bytes)) = table.max_content else { return Ok(0) };
    let fault = |message: &str| Err(SettingsError(format!("{} {message}", table.at)));
    if !table.decides.iter().any(|word| word == Asks::Publish.word()) {
        return fault("has `max-content`, which needs `publish`; add \"publish\" to `decides`");
    }
    if bytes > CONTENT_BYTES_MAX {
        return fault("has a max-content that is more than 1MiB");
    }
    Ok(bytes)
}

/// Whether it decides `connect` for clients with a token as well.
fn decides_tokens(table: &CalloutTable) -> Result<bool, SettingsError> {
    match table.tokens {
        Some(_) if !table.decides_connect() => Err(SettingsError(format!(
            "{} has `tokens`, which needs `connect`; add \"connect\" to `decides`, or remove it",
            table.at
        ))),
        tokens => Ok(tokens.unwrap_or(false)),
    }
}

/// The parts of requests that its endpoint gets.
fn passed(table: &CalloutTable) -> Result<Passed, SettingsError> {
    let at = &table.at;
    if table.headers.len() > PASSED_NAMES_MAX {
        return Err(SettingsError(format!("{at} lists more than {PASSED_NAMES_MAX} `headers`")));
    }
    let name = |text: &String| {
        let is_mark = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
        let is_name = !text.is_empty() && text.len() <= 100 && text.as_bytes().iter().all(is_mark);
        is_name.then(|| text.to_ascii_lowercase().into_boxed_str()).ok_or_else(|| {
            SettingsError(format!("{at}: `headers` has {text:?}, which is no name of a header"))
        })
    };
    let mut headers = table.headers.iter().map(name).collect::<Result<Vec<_>, _>>()?;
    headers.sort_unstable();
    headers.dedup();
    let address = table.address.unwrap_or(false);
    Ok(Passed { headers: headers.into(), address, ..Passed::default() })
}

/// A client connects to no channel, so that only one table can decide about it.
fn check_connect(tables: &[CalloutTable]) -> Result<(), SettingsError> {
    let mut deciding = tables.iter().filter(|table| table.decides_connect());
    let Some(first) = deciding.next() else { return Ok(()) };
    if let Some(second) = deciding.next() {
        return Err(SettingsError(format!(
            "{} decides `connect`, as does an earlier one; one endpoint says who clients are",
            second.at
        )));
    }
    let has_pattern = first.channels.is_some() || first.users.is_some();
    if has_pattern && first.decides.len() == 1 && first.notifies.is_empty() {
        return Err(SettingsError(format!(
            "{} decides `connect`, which is about no channel; remove `match` or `users`",
            first.at
        )));
    }
    Ok(())
}

/// Faults of the callouts that do not keep the server from starting: one sentence each.
pub(crate) fn warnings(settings: &Settings) -> Vec<String> {
    settings.callouts.iter().filter_map(secrets::warning).collect()
}

fn asks(table: &CalloutTable) -> Result<Vec<Asks>, SettingsError> {
    let words = Asks::ALL.map(Asks::word);
    let parse = |word: &String| Asks::ALL.into_iter().find(|asks| asks.word() == word);
    let parse = |word| parse(word).ok_or_else(|| unknown(table, "decides", word, &words));
    table.decides.iter().map(parse).collect()
}

fn notifies(table: &CalloutTable) -> Result<Vec<Notifies>, SettingsError> {
    let words = Notifies::ALL.map(Notifies::word);
    let parse = |word: &String| Notifies::ALL.into_iter().find(|kind| kind.word() == word);
    let parse = |word| parse(word).ok_or_else(|| unknown(table, "notifies", word, &words));
    table.notifies.iter().map(parse).collect()
}

fn unknown(table: &CalloutTable, key: &str, word: &str, words: &[&str]) -> SettingsError {
    let words = words.join(", ");
    SettingsError(format!("{}: `{key}` has the unknown word {word:?}; use {words}", table.at))
}

fn table_pattern(table: &CalloutTable) -> Result<Option<Pattern>, SettingsError> {
    match (&table.channels, &table.users) {
        (Some(_), Some(_)) => Err(SettingsError(format!(
            "{} has both `match` and `users`; write one table for each of them",
            table.at
        ))),
        (Some(text), None) => pattern(&table.at, Kind::Channel, text).map(Some),
        (None, Some(text)) => pattern(&table.at, Kind::User, text).map(Some),
        (None, None) => Ok(None),
    }
}

/// True if a table is about a channel. A table with a wrong pattern is about none.
pub(crate) fn is_about(table: &CalloutTable, name: &ChannelName) -> bool {
    table_pattern(table).is_ok_and(|pattern| pattern.is_none_or(|found| found.matches(name, None)))
}

pub(crate) use webhooks::{tallied, webhooks};

/// Counters for `/metrics`.
pub(crate) struct OutboundMetrics {
    /// Of webhooks; `None` if there are none.
    pub(crate) webhooks: Option<Arc<DeliveryMetrics>>,
    /// Of callouts; `None` if there are none.
    pub(crate) callouts: Option<Arc<CalloutMetrics>>,
    /// Of key sets; `None` if there are no URLs.
    pub(crate) key_sets: Option<Arc<KeySetMetrics>>,
}

impl MetricSource for OutboundMetrics {
    fn metrics(&self) -> Vec<OtherMetric> {
        let callouts = self.callouts.as_deref().map(callout_metrics);
        let key_sets = self.key_sets.as_deref().map(key_set_metrics);
        let webhooks = self.webhooks.as_deref().map(webhooks::metrics);
        callouts.into_iter().chain(key_sets).chain(webhooks).flatten().collect()
    }

    fn ailments(&self) -> Vec<Ailment> {
        let has_open_breaker =
            self.callouts.as_deref().is_some_and(|callouts| callouts.breakers_open() > 0);
        let is_failing = self.key_sets.as_deref().is_some_and(KeySetMetrics::is_failing);
        let callouts = has_open_breaker.then(|| {
            let message = "an endpoint of a callout fails repeatedly: it is not asked for now";
            Ailment::new("callouts", message)
        });
        let key_sets = is_failing.then(|| {
            let message = "a key set cannot be fetched: tokens with newer keys are refused";
            Ailment::new("key_sets", message)
        });
        callouts.into_iter().chain(key_sets).collect()
    }
}

fn callout_metrics(metrics: &CalloutMetrics) -> Vec<OtherMetric> {
    let by_outcome = |counts: Vec<_>| OtherValue::CountersBy("outcome", counts);
    let metric = |name, help, value| OtherMetric { name, help, value };
    vec![
        metric(
            "callout_decisions_total",
            "Decisions asked of the application, by outcome.",
            by_outcome(metrics.decisions().collect()),
        ),
        metric(
            "callout_decisions_waiting",
            "Pending decisions of the application.",
            OtherValue::Gauge(metrics.decisions_waiting()),
        ),
        metric(
            "callout_breakers_open",
            "Callouts that decide nothing for now because their endpoints fail.",
            OtherValue::Gauge(metrics.breakers_open()),
        ),
        metric(
            "callout_duration_seconds",
            "Time from asking the application for a decision to its answer.",
            OtherValue::Histogram(metrics.durations()),
        ),
        metric(
            "callout_events_total",
            "Events for the application, by outcome.",
            by_outcome(metrics.events().collect()),
        ),
        metric(
            "callout_events_waiting",
            "Undelivered events.",
            OtherValue::Gauge(metrics.events_waiting()),
        ),
        metric(
            "callout_deliveries_total",
            "Requests with events to the application, by outcome.",
            by_outcome(metrics.deliveries().collect()),
        ),
    ]
}

fn key_set_metrics(metrics: &KeySetMetrics) -> Vec<OtherMetric> {
    let fetches = OtherMetric {
        name: "key_set_fetches_total",
        help: "Requests for key sets, by outcome.",
        value: OtherValue::CountersBy("outcome", metrics.outcomes().collect()),
    };
    // Before every set was fetched once, the age is not known.
    let age = metrics.age_s().map(|age_s| OtherMetric {
        name: "key_set_age_seconds",
        help: "Time since the oldest of the key sets was fetched.",
        value: OtherValue::Gauge(age_s),
    });
    [fetches].into_iter().chain(age).collect()
}
