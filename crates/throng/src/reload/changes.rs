//! Which settings have changed, and which of them a reload can replace.

use std::collections::BTreeSet;

use crate::settings::{self, Change, ChannelTable, LogPlace, Row, Settings};
use crate::tls::tls_settings;

/// What new settings come to in a server that runs.
pub(super) struct Changes {
    /// The settings that hold from now on: those of before, with what a reload replaces.
    pub(super) effective: Settings,
    /// The settings that wait for an upgrade or a restart, as `throng.toml` names them.
    pub(super) pending: Vec<String>,
}

impl Changes {
    /// Settings that were `current`, in a server that was started with `started`.
    pub(super) fn new(started: &Settings, current: &Settings, new: &Settings) -> Changes {
        let has_certificate = new.tls_cert.0.is_some() && new.tls_key.0.is_some()
            || !new.certificates.is_empty()
            // Those of ACME are obtained by what runs since the start.
            || !current.acme.0.is_empty();
        let reloads = |row: &Row| match row.change {
            Change::Restart
            | Change::Upgrade
            | Change::UpgradeOfWorkers
            | Change::UpgradeOfListener => false,
            Change::Reload => true,
            // Rules of settings without keys say nothing: everything would be open.
            Change::ReloadAccess => new.has_keys() == current.has_keys(),
            // With the first key, or without the last one, it would be another server: what is
            // open to whom, what the banner says, and whom the admin listener trusts.
            Change::ReloadTokenKeys => new.token_keys.is_empty() == current.token_keys.is_empty(),
            Change::ReloadServerKeys => {
                new.server_keys.is_empty() == current.server_keys.is_empty()
            }
            Change::ReloadCertificates => has_certificate && tls_settings(current).is_some(),
            Change::ReloadApps => hindrances_of_apps(started, current, new).is_empty(),
            Change::ReloadLimits => settings::limits(new).limits_same(&settings::limits(current)),
        };
        // Of the channels, the engine keeps the rules of the start; those of access are replaced.
        let mut effective = current.clone();
        effective.take(new, &reloads);
        let mut pending = differing(&effective, new);
        if messages(started) != messages(new) {
            pending.insert("channels (history and lag)".to_owned());
        }
        if journals(started) != journals(new) {
            pending.insert("channels (journal)".to_owned());
        }
        // Their secrets are not written, so that `differing` does not see them.
        if started.callouts != new.callouts {
            pending.insert("callouts".to_owned());
        }
        // Their secrets are not written either.
        if pending.remove("apps") || effective.apps != new.apps {
            let why = hindrances_of_apps(started, current, new);
            pending.extend(why.into_iter().map(|why| format!("apps ({why})")));
        }
        Changes { effective, pending: pending.into_iter().collect() }
    }
}

/// How a running server takes over the new value of a pending setting.
pub(super) fn change_of(setting: &str) -> Change {
    settings::row(setting).map_or(Change::Upgrade, |row| row.change)
}

/// The keys whose values differ, those of tables with the table's name and a dot before them.
fn differing(effective: &Settings, new: &Settings) -> BTreeSet<String> {
    let [effective, new] = [effective, new].map(|settings| {
        // Settings that cannot be written would be a fault of the table of settings, which a test
        // of `throng check` finds.
        toml::Table::try_from(settings).unwrap_or_default()
    });
    let mut keys = BTreeSet::new();
    for key in effective.keys().chain(new.keys()) {
        match (effective.get(key), new.get(key)) {
            (Some(toml::Value::Table(one)), Some(toml::Value::Table(other))) => {
                let all = one.keys().chain(other.keys());
                let differ = all.filter(|inner| one.get(*inner) != other.get(*inner));
                keys.extend(differ.map(|inner| format!("{key}.{inner}")));
            }
            (one, other) if one == other => {}
            _ => {
                keys.insert(key.clone());
            }
        }
    }
    keys
}

/// What the tables `[[channels]]` say about messages, without those that say nothing.
fn messages(settings: &Settings) -> Vec<ChannelTable> {
    let tables = settings.channels.iter().map(ChannelTable::without_access);
    let tables =
        tables.map(|table| ChannelTable { durable: None, journal: None, local: None, ..table });
    tables.filter(|table| !table.is_bare()).collect()
}

/// The tables that decide where the logs of channels and inboxes are. The first one that matches
/// does, so their order matters up to the last one that names another journal than channels without
/// a table have.
fn journals(settings: &Settings) -> Vec<(Option<&str>, Option<&str>, LogPlace)> {
    let journal = |table: &ChannelTable| settings.journal_of(table);
    let is_named = |table: &ChannelTable| journal(table) != settings.default_journal();
    let end = settings.channels.iter().rposition(is_named).map_or(0, |last| last + 1);
    let tables = settings.channels[..end].iter();
    let patterns =
        tables.map(|table| (table.channels.as_deref(), table.users.as_deref(), journal(table)));
    patterns.collect()
}

/// Whether the rules of access differ.
pub(super) fn are_access_rules_new(current: &Settings, new: &Settings) -> bool {
    let rules = |settings: &Settings| {
        let rules = settings.channels.iter().map(|table| {
            let ChannelTable { channels, users, subscribe, publish, history, presence, .. } = table;
            (channels.clone(), users.clone(), [*subscribe, *publish, *history, *presence])
        });
        rules.collect::<Vec<_>>()
    };
    // Without keys everything is open.
    new.has_keys() && (current.access != new.access || rules(current) != rules(new))
}

/// What of the applications a reload cannot replace, for which all of them wait. The rules of their
/// channels are those of the start, and so is what is counted of them.
fn hindrances_of_apps(
    started: &Settings,
    current: &Settings,
    new: &Settings,
) -> BTreeSet<&'static str> {
    let mut all = BTreeSet::new();
    let mut note = |is_other: bool, what| {
        if is_other {
            all.insert(what);
        }
    };
    // With the first secret of tokens, or without the last one, it would be another server.
    note(new.has_keys() != current.has_keys(), "without keys");
    note(new.has_token_keys() != current.has_token_keys(), "token-secret");
    for app in &new.apps {
        let Some(known) = started.apps.iter().find(|known| known.is_same_app(app)) else {
            note(true, "new");
            continue;
        };
        let (before, after) = (settings::limits_of(known), settings::limits_of(app));
        note(!before.limits_same(&after), "a limit that begins or ends");
        let are_counted = [known, app].map(|app| app.max_channels.is_some());
        note(are_counted[0] != are_counted[1], "max-channels");
        note(known.subscription_counts != app.subscription_counts, "subscription-counts");
        note(known.watchlists != app.watchlists, "watchlists");
        let webhooks = [known, app].map(|app| (&app.webhook, &app.webhook_events));
        note(webhooks[0] != webhooks[1], "webhook");
    }
    all
}

/// Whether an application of `current` is gone.
pub(super) fn has_lost_apps(current: &Settings, new: &Settings) -> bool {
    let is_gone = |app: &settings::AppTable| !new.apps.iter().any(|kept| kept.is_same_app(app));
    current.apps.iter().any(is_gone)
}

/// Whether other pages or names are allowed.
pub(super) fn are_pages_new(current: &Settings, new: &Settings) -> bool {
    (&current.allowed_origins, &current.allowed_hosts) != (&new.allowed_origins, &new.allowed_hosts)
}

/// The names of the server keys of `current` that `new` does not have as they were.
pub(super) fn ended_keys(current: &Settings, new: &Settings) -> Vec<String> {
    let is_kept = |table: &&settings::ServerKeyTable| {
        !new.server_keys.iter().any(|other| other.is_same_key(table))
    };
    let ended = current.server_keys.iter().filter(is_kept);
    ended.filter_map(|table| table.name.as_deref().map(str::to_owned)).collect()
}
