//! The webhooks of `[[apps]]`.

use std::sync::Arc;
use std::time::Duration;

use throng_access::AccessControl;
use throng_control::{OtherMetric, OtherValue};
use throng_core::TallyWant;
use throng_outbound::{DeliveryMetrics, Trust, Webhook, WebhookSettings, Webhooks};

use crate::settings::{AppTable, Settings, SettingsError};

/// The deadline of a request. Nobody waits for its answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The events that wait for an application.
const QUEUED: usize = 10_000;

/// The webhooks of applications that `access` has.
pub(crate) fn webhooks(
    settings: &Settings,
    trust: &Trust,
    access: &Arc<AccessControl>,
) -> Result<Webhooks, SettingsError> {
    Ok(Webhooks::new(self::settings(settings)?, access, trust))
}

/// The webhooks of the tables, checked.
pub(super) fn settings(settings: &Settings) -> Result<Vec<WebhookSettings>, SettingsError> {
    let all = settings.apps.iter().map(|app| webhook(app, settings.engine.0));
    Ok(all.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

fn webhook(app: &AppTable, has_nodes: bool) -> Result<Option<WebhookSettings>, SettingsError> {
    let fault = |message: &str| Err(SettingsError(format!("{} {message}", app.at)));
    let Some(url) = &app.webhook else {
        return match app.webhook_events {
            Some(_) => fault("has `webhook-events` without a URL; add `webhook`, or remove it"),
            None => Ok(None),
        };
    };
    let words = app.webhook_events.as_deref();
    let wants = match words {
        None => usual(),
        Some(words) => words.iter().map(|word| read(app, word)).collect::<Result<Vec<_>, _>>()?,
    };
    if wants.is_empty() {
        return fault("has a webhook that is told of nothing; remove it, or name `webhook-events`");
    }
    Ok(Some(WebhookSettings {
        app: app.id.clone().unwrap_or_default(),
        endpoint: url.parse().map_err(|error| SettingsError(format!("{}: {error}", app.at)))?,
        wants,
        timeout: TIMEOUT,
        max_queued: QUEUED,
        has_nodes,
    }))
}

/// The channels that nodes count together; none on one node.
pub(crate) fn tallied(settings: &Settings) -> Result<Vec<TallyWant>, SettingsError> {
    let mut wants = Vec::new();
    for app in settings.apps.iter().filter(|_| settings.engine.0) {
        let webhook = webhook(app, true)?;
        let is_told = |of: Webhook| webhook.as_ref().is_some_and(|own| own.wants.contains(&of));
        let tells_clients = app.subscription_counts == Some(true);
        let is_counted = app.watchlists == Some(true) || app.max_channels.is_some();
        if tells_clients || is_counted || webhook.as_ref().is_some_and(WebhookSettings::is_of_all) {
            wants.push(TallyWant {
                prefix: app.prefix(),
                counts: tells_clients || is_told(Webhook::SubscriptionCount),
                members: is_told(Webhook::MemberAdded) || is_told(Webhook::MemberRemoved),
            });
        }
    }
    Ok(wants)
}

/// All but the numbers of subscribers, which change with each of them.
fn usual() -> Vec<Webhook> {
    Webhook::ALL.into_iter().filter(|webhook| *webhook != Webhook::SubscriptionCount).collect()
}

fn read(app: &AppTable, word: &str) -> Result<Webhook, SettingsError> {
    let found = Webhook::ALL.into_iter().find(|webhook| webhook.word() == word);
    found.ok_or_else(|| {
        let words = Webhook::ALL.map(Webhook::word).join(", ");
        let at = &app.at;
        SettingsError(format!("{at}: `webhook-events` has the unknown word {word:?}; use {words}"))
    })
}

pub(super) fn metrics(metrics: &DeliveryMetrics) -> Vec<OtherMetric> {
    let by_outcome = |counts: Vec<_>| OtherValue::CountersBy("outcome", counts);
    let metric = |name, help, value| OtherMetric { name, help, value };
    vec![
        metric(
            "webhook_events_total",
            "Events for applications of the Pusher protocol, by outcome.",
            by_outcome(metrics.events().collect()),
        ),
        metric(
            "webhook_events_waiting",
            "Undelivered events for applications of the Pusher protocol.",
            OtherValue::Gauge(metrics.waiting()),
        ),
        metric(
            "webhook_events_not_repeated_total",
            "Events that another node sends, of which there were too many for a copy here.",
            OtherValue::Counter(metrics.not_repeated()),
        ),
        metric(
            "webhook_deliveries_total",
            "Requests with such events, by outcome.",
            by_outcome(metrics.deliveries().collect()),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use throng_core::TallyWant;

    use crate::settings::read_text;

    #[test]
    fn a_webhook_names_a_url_and_events() {
        let app = "[[apps]]\nid = '1'\nkey = 'a'\nsecret = '0123456789abcdef'\n";
        let of = |head: &str, rest: &str| {
            super::settings(&read_text(&format!("{head}{app}{rest}")).unwrap())
                .map_err(|error| error.to_string())
        };
        let url = "webhook = 'http://127.0.0.1:1/hook'\n";
        let counts =
            |rest: &str| of("", rest).unwrap().iter().map(|one| one.wants.len()).sum::<usize>();
        assert_eq!([counts(""), counts(url)], [0, 6]);
        assert_eq!(counts(&format!("{url}webhook-events = ['subscription_count']")), 1);
        for (head, rest, expected) in [
            ("", "webhook-events = ['client_event']", "without a URL"),
            ("", "webhook = 'http://10.0.0.1/'", "`http` is for loopback only"),
            ("", &format!("{url}webhook-events = ['x']"), "unknown word \"x\"; use channel_occ"),
            ("", &format!("{url}webhook-events = []"), "told of nothing"),
        ] {
            let error = of(head, rest).unwrap_err();
            assert!(
                error.contains(expected) && error.starts_with("throng.toml, [[apps]]"),
                "{error}"
            );
        }
    }

    #[test]
    fn nodes_count_together_what_an_application_is_told_of() {
        let of = |head: &str, rest: &str| {
            let app = "[[apps]]\nid = '1'\nkey = 'a'\nsecret = '0123456789abcdef'\n";
            super::tallied(&read_text(&format!("{head}{app}{rest}")).unwrap()).unwrap()
        };
        let nodes = "engine = 'nats'\nnats = '127.0.0.1:4222'\n";
        let hook = |events: &str| {
            format!("webhook = 'http://127.0.0.1:1/hook'\nwebhook-events = ['{events}']\n")
        };
        assert_eq!(of("", &hook("channel_occupied")), [], "it is alone");
        for (rest, expected) in [
            (String::new(), None),
            (hook("client_event"), None),
            (hook("channel_vacated"), Some((false, false))),
            (hook("member_added"), Some((false, true))),
            (hook("subscription_count"), Some((true, false))),
            ("subscription-counts = true".to_owned(), Some((true, false))),
            ("watchlists = true".to_owned(), Some((false, false))),
            ("watchlists = false".to_owned(), None),
            ("max-channels = 9".to_owned(), Some((false, false))),
        ] {
            let want = |(counts, members)| TallyWant { prefix: "1/".to_owned(), counts, members };
            assert_eq!(of(nodes, &rest), Vec::from_iter(expected.map(want)), "{rest}");
        }
    }
}
