//! `throng check`: checks the settings and prints them, or says what a client may do on a channel
//! and why.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail};
use clap::Args;
use throng_access::policy::Credentials;
use throng_access::{ChannelAccess, Denial, Grants, Identity, Permission, ServerKey, Who, may};
use throng_core::ChannelName;
use throng_core::name::Kind;
use throng_outbound::Asks;
use throng_units::paint::{Ink, Paint, sanitized};
use throng_wire::name::check_name;

use crate::access::{AccessSettings, OfflineVerifier, now_s};
use crate::docs;
use crate::journals;
use crate::outbound;
use crate::settings::{self, CalloutTable, ChannelTable, Settings, Sources};
use crate::terminal;
use crate::tls;
use crate::token::{moment, refuse_key};

const EXAMPLES: &str = "\
Accepts the flags of `throng serve`, reads the same variables and file, and prints the effective
settings as a file for --config, without secrets. Exits with 78 if a setting is wrong.

With --channel or --inbox, prints instead what a client may do there, and why. The client has the
token of --token or THRONG_TOKEN, the server key of THRONG_KEY, or neither. For a token, fetches the
key sets of token-key-urls. Exits with 1 if the server would refuse the token or key.

Examples:
  throng check
  throng check --config /etc/throng.toml
  throng check --token TOKEN --channel rooms/lobby
  throng check --inbox ann";

/// Arguments of `throng check`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Show what a client may do on this channel
    #[arg(long, value_name = "CHANNEL", help_heading = "A client", conflicts_with = "inbox")]
    channel: Option<String>,

    /// Show what a client may do on the inbox of this user
    #[arg(long, value_name = "USER", help_heading = "A client")]
    inbox: Option<String>,

    /// The client's token
    #[arg(long, value_name = "TOKEN", help_heading = "A client", env = "THRONG_TOKEN")]
    #[arg(hide_env_values = true)]
    token: Option<String>,

    /// File and flags with settings.
    #[command(flatten)]
    sources: Sources,
}

pub(crate) fn check(arguments: Arguments) -> Result<ExitCode> {
    let Arguments { channel, inbox, token, sources } = arguments;
    let printed = settings::absolute(sources.options.clone(), sources.config.as_deref());
    let settings = settings::load(sources.options, std::env::vars_os(), sources.config.as_deref())?;
    let printed = printed?;
    let access = AccessSettings::load(&settings)?;
    for warning in settings::variable_warnings().iter().chain(&access.warnings) {
        terminal::print_note(warning);
    }
    outbound::check(&settings)?;
    docs::site(&settings)?;
    journals::check(&settings)?.iter().for_each(|warning| terminal::print_note(warning));
    if let Some(settings_of_tls) = tls::tls_settings(&settings) {
        let loaded = tls::check(settings_of_tls)?;
        tls::warnings(&settings, &loaded).iter().for_each(|warning| terminal::print_note(warning));
    }
    for warning in outbound::warnings(&settings).iter().chain(&settings::admin_warning(&settings)) {
        terminal::print_note(warning);
    }
    if let Some(missing) = settings::missing_state(&settings) {
        terminal::print_note(&format!(
            "`throng serve` would not start as things are here: {missing}"
        ));
    }
    let name = match (&channel, &inbox) {
        (None, None) => {
            terminal::print(&toml::to_string(&printed)?)?;
            return Ok(ExitCode::SUCCESS);
        }
        (Some(name), _) => (Kind::Channel, name),
        (None, Some(name)) => (Kind::User, name),
    };
    let (kind, text) = name;
    let what = if kind == Kind::User { "user" } else { "channel" };
    if let Err(error) = check_name(text, what) {
        bail!("{} is no name of a {what}: {error}", sanitized(text));
    }
    let name = ChannelName::new(kind, text);
    let client = client(token.as_deref(), &access, &settings)?;
    let text = explain(&client, &name, &access, &settings);
    terminal::print(&text.text(Paint::on(&std::io::stdout())))?;
    Ok(ExitCode::SUCCESS)
}

/// The client that asks.
enum Client {
    Anonymous,
    /// The application says who it is; here, nobody in particular.
    Told(Grants),
    WithToken(Identity),
    WithKey(Arc<ServerKey>),
}

impl Client {
    fn credentials(&self) -> Credentials<'_> {
        match self {
            Client::Anonymous => Credentials::Anonymous,
            Client::Told(grants) => Credentials::Known { user: None, grants },
            Client::WithToken(identity) => {
                Credentials::Known { user: identity.user(), grants: identity.grants() }
            }
            Client::WithKey(key) => Credentials::Known { user: None, grants: key.grants() },
        }
    }

    fn describe(&self, now_s: u64) -> String {
        match self {
            Client::Anonymous => "no token and no key".into(),
            Client::Told(_) => {
                "no token and no key; the application identifies it (`connect`)".into()
            }
            Client::WithToken(identity) => {
                let user = identity.user().map_or_else(
                    || "a token without a user".into(),
                    |user| format!("user {}", sanitized(user)),
                );
                format!("{user}, until {}", moment(identity.expires_s().into(), now_s))
            }
            Client::WithKey(key) => format!("the server key {}", key.name()),
        }
    }
}

fn client(token: Option<&str>, access: &AccessSettings, settings: &Settings) -> Result<Client> {
    if let Some(token) = token {
        refuse_key(token.trim())?;
        let now_s = now_s();
        let verifier = OfflineVerifier::new(access, settings, now_s)?;
        verifier.notes.iter().for_each(|note| terminal::print_note(note));
        return match verifier.verify(token.trim(), now_s) {
            Ok(identity) => Ok(Client::WithToken(identity)),
            Err(reason) => bail!("the server refuses this token: {reason}"),
        };
    }
    match std::env::var("THRONG_KEY") {
        Ok(key) => match access.server_keys.find(key.trim()) {
            Ok(key) => Ok(Client::WithKey(key)),
            Err(reason) => bail!("the server refuses the key in THRONG_KEY: {reason}"),
        },
        Err(_) if settings.has_connect_callout() => Ok(Client::Told(Grants::default())),
        Err(_) => Ok(Client::Anonymous),
    }
}

/// A client's permissions, with reasons.
struct Explanation {
    /// Facts before the table: a label and a text.
    facts: Vec<(&'static str, String)>,
    /// For each permission, whether the client has it, and why.
    rows: Vec<(Permission, Result<String, String>)>,
}

impl Explanation {
    fn text(&self, paint: Paint) -> String {
        let label = |text: &str| paint.ink(Ink::Dim, format!("{text:<11}")).to_string();
        let facts = self.facts.iter().map(|(name, text)| format!("{}{text}\n", label(name)));
        let rows = self.rows.iter().map(|(permission, decision)| {
            let (word, reason) = match decision {
                Ok(reason) => (paint.ink(Ink::GOOD, "yes"), reason),
                Err(reason) => (paint.ink(Ink::BAD, "no "), reason),
            };
            format!("{}{word}  {reason}\n", label(permission.word()))
        });
        facts.chain(rows).collect()
    }
}

fn explain(
    client: &Client,
    name: &ChannelName,
    access: &AccessSettings,
    settings: &Settings,
) -> Explanation {
    let what = if name.kind() == Kind::User { "inbox" } else { "channel" };
    let mut facts = vec![
        ("client", client.describe(now_s())),
        (what, format!("{}; {}", sanitized(name.name()), rule(name, settings))),
    ];
    let asked = asked(client, name, settings);
    if !asked.is_empty() {
        let text = format!("{}; the application may refuse what is granted here", asked.join(", "));
        facts.push(("callouts", text));
    }
    let rule = access.rules.find(name);
    let rows = Permission::ALL.map(|permission| {
        let reads = [Permission::Subscribe, Permission::History, Permission::Presence];
        let is_key = matches!(client, Client::WithKey(_));
        let decision = if !reads.contains(&permission) && !settings.clients_publish.0 && !is_key {
            Err("clients may not publish (clients-publish)".into())
        } else {
            decide(client, &rule, permission, name)
        };
        (permission, decision)
    });
    Explanation { facts, rows: rows.into() }
}

/// The rule that applies to a channel or inbox, as it stands in the settings.
fn rule(name: &ChannelName, settings: &Settings) -> String {
    if !settings.has_keys() {
        return "there are no keys, so every client may do everything".into();
    }
    let applies = |table: &ChannelTable| {
        let (kind, pattern) = match (&table.channels, &table.users) {
            (_, Some(users)) => (Kind::User, users.as_str()),
            (channels, None) => (Kind::Channel, channels.as_deref().unwrap_or_default()),
        };
        let pattern = crate::access::pattern("", kind, pattern).ok()?;
        pattern.matches(name, None).then(|| sanitized(pattern.text()))
    };
    let found = settings.channels.iter().zip(1..).find_map(|(table, nth)| {
        applies(table).map(|pattern| format!("[[channels]] number {nth} ({pattern}) applies"))
    });
    found.unwrap_or_else(|| "no [[channels]] matches, so [access] applies".into())
}

/// The questions that the application is asked about this client and channel, and that can take
/// away what keys and rules grant.
fn asked(client: &Client, name: &ChannelName, settings: &Settings) -> Vec<&'static str> {
    let is_asked = |table: &CalloutTable, asks: Asks| {
        let is_about = match asks {
            Asks::Connect => matches!(client, Client::WithToken(_)) && table.tokens == Some(true),
            Asks::Subscribe | Asks::Publish => outbound::is_about(table, name),
        };
        is_about && table.decides.iter().any(|word| word == asks.word())
    };
    if matches!(client, Client::WithKey(_)) {
        return Vec::new();
    }
    let is_asked = |asks: &Asks| settings.callouts.iter().any(|table| is_asked(table, *asks));
    Asks::ALL.into_iter().filter(is_asked).map(Asks::word).collect()
}

fn decide(
    client: &Client,
    rule: &ChannelAccess,
    permission: Permission,
    name: &ChannelName,
) -> Result<String, String> {
    let credentials = client.credentials();
    may(rule, credentials, permission, name).map_err(|denial| match denial {
        Denial::NotGranted if matches!(client, Client::Told(_)) => {
            "only if the application's answer grants it".into()
        }
        Denial::NotGranted => "the token does not grant it".into(),
        Denial::NeedsToken | Denial::NeedsAnyToken => "this needs a token".into(),
        Denial::KeysOnly => "only server keys may".to_owned(),
        Denial::OutOfScope => "the scopes and patterns of the key do not include it".into(),
    })?;
    if let Client::WithKey(key) = client {
        return Ok(format!("the key {} has the scope", key.name()));
    }
    let granted = match credentials {
        Credentials::Known { user, grants } => grants.matching(permission, name, user),
        _ => None,
    };
    Ok(match (rule.who(permission), granted) {
        (Who::Anyone, _) => "anyone may".into(),
        (Who::User, _) if matches!(client, Client::Told(_)) => {
            "every client that the application admits".into()
        }
        (Who::User, _) => "every client with a valid token may".into(),
        (Who::Granted, Some(pattern)) => format!("the token grants {}", sanitized(pattern.text())),
        (Who::Granted | Who::Nobody, _) => "users may always follow their own inbox".into(),
    })
}

#[cfg(test)]
mod tests {
    use throng_access::token::Signer;

    use super::*;
    use crate::settings::read_text;

    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    fn ask(settings: &str, grants: Option<&str>, name: ChannelName) -> String {
        let text = format!("{settings}\n[[token-keys]]\nsecret = '{SECRET}'");
        let settings = read_text(&text).unwrap();
        let access = AccessSettings::load(&settings).unwrap();
        let algorithm = throng_access::algorithm::Algorithm::Hs256;
        let signer = Signer::new(None, algorithm, SECRET.as_bytes()).unwrap();
        let token = grants.map(|grants| {
            let expires_s = now_s() + 60;
            signer.sign(&format!(r#"{{"sub": "ann", "exp": {expires_s}, "throng": {grants}}}"#))
        });
        let client = match &token {
            Some(token) => client(Some(token), &access, &settings).unwrap(),
            None => Client::Anonymous,
        };
        explain(&client, &name, &access, &settings).text(Paint::plain())
    }

    #[test]
    fn each_decision_has_its_reason() {
        let settings = "
            access = { publish = 'nobody', presence = 'user' }
            [[channels]]
            match = 'rooms/*'
            publish = 'granted'
            history = 'anyone'";
        let grants = Some(r#"{"subscribe": ["rooms/*"]}"#);
        let text = ask(settings, grants, ChannelName::channel("rooms/a"));
        assert!(text.starts_with("client     user ann, until "), "{text}");
        let expected = "channel    rooms/a; [[channels]] number 1 (rooms/*) applies\n\
                        subscribe  yes  the token grants rooms/*\n\
                        publish    no   the token does not grant it\n\
                        history    yes  anyone may\n\
                        presence   yes  every client with a valid token may\n\
                        erase      no   the token does not grant it\n\
                        edit       no   the token does not grant it\n\
                        state      no   the token does not grant it\n\
                        end        no   the token does not grant it\n\
                        update     no   the token does not grant it\n\
                        create     no   the token does not grant it\n";
        assert!(text.ends_with(expected), "{text}");
        let text = ask(settings, grants, ChannelName::user("ann"));
        let expected = "inbox      ann; no [[channels]] matches, so [access] applies\n\
                        subscribe  yes  users may always follow their own inbox\n\
                        publish    no   only server keys may\n\
                        history    no   the token does not grant it\n\
                        presence   yes  every client with a valid token may\n\
                        erase      no   the token does not grant it\n\
                        edit       no   the token does not grant it\n\
                        state      no   the token does not grant it\n\
                        end        no   the token does not grant it\n\
                        update     no   the token does not grant it\n\
                        create     no   the token does not grant it\n";
        assert!(text.ends_with(expected), "{text}");
        let text = ask(settings, None, ChannelName::channel("rooms/a"));
        assert!(text.starts_with("client     no token and no key\n"), "{text}");
        assert!(text.contains("subscribe  no   this needs a token\n"), "{text}");
        let connect = "access = { publish = 'user' }\n[[callouts]]\ndecides = ['connect']";
        let settings = read_text(connect).unwrap();
        let access = AccessSettings::load(&settings).unwrap();
        let client = client(None, &access, &settings).unwrap();
        let name = ChannelName::channel("rooms/a");
        let text = explain(&client, &name, &access, &settings).text(Paint::plain());
        assert!(text.contains("the application identifies it"), "{text}");
        assert!(text.contains("subscribe  no   only if the application's answer grants"), "{text}");
        assert!(text.contains("publish    yes  every client that the application"), "{text}");
        let tables = "
            [[callouts]]
            decides = ['connect']
            tokens = true
            [[callouts]]
            decides = ['subscribe', 'publish']
            match = 'rooms/*'";
        for (grants, name, expected) in [
            (grants, "rooms/a", Some("connect, subscribe, publish; the application may refuse")),
            (grants, "other", Some("connect; the application may refuse")),
            (None, "rooms/a", Some("subscribe, publish; the application may refuse")),
            (None, "other", None),
        ] {
            let text = ask(tables, grants, ChannelName::channel(name));
            let said = text.lines().find_map(|line| line.strip_prefix("callouts   "));
            assert_eq!(said.is_some(), expected.is_some(), "{text}");
            assert!(said.unwrap_or_default().starts_with(expected.unwrap_or_default()), "{text}");
        }
        let text = ask("clients-publish = false", None, ChannelName::channel("a"));
        assert!(text.contains("publish    no   clients may not publish"), "{text}");
    }
}
