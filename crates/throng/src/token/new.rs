//! `throng token new`: signs a token.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Map, Value, json};
use throng_access::pattern::Pattern;
use throng_access::{Grants, Permission};
use throng_core::name::Kind;
use throng_units::Time;
use throng_wire::member::member_info_of;

use super::signing_key::{KeyArguments, SigningKey};
use crate::access::{AccessSettings, OfflineVerifier, now_s};
use crate::settings::{self, Options};
use crate::terminal;

const EXAMPLES: &str = "\
Signs with the first secret of [[token-keys]] in the settings (throng.toml and the THRONG_*
variables), or with the key that a flag names, which may be an application's. In production, your
application signs the tokens.

In patterns, `*` stands for any text and `{user}` for the user of the token.

Examples:
  throng token new --user ann --subscribe 'rooms/*' --publish 'rooms/*'
  throng token new --user ann --subscribe 'private/{user}' --expires-in 15m
  throng token new --private-key-file login.key --key-id 2026-11 --user ann
  throng token new --key-id app-key --user shop/ann --subscribe '*'
  THRONG_TOKEN=$(throng token new --subscribe '*') throng tail news";

/// Arguments of `throng token new`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// The user (`sub`)
    #[arg(long, value_name = "USER")]
    user: Option<String>,

    /// A JSON object about the user, which other members of channels see (`info`)
    #[arg(long, value_name = "JSON", value_parser = info)]
    info: Option<Value>,

    /// Grant following matching channels; may be repeated, like the other grants
    #[arg(long, value_name = "PATTERN", value_parser = pattern)]
    subscribe: Vec<String>,

    /// Grant publishing to matching channels
    #[arg(long, value_name = "PATTERN", value_parser = pattern)]
    publish: Vec<String>,

    /// Grant reading the history of matching channels
    #[arg(long, value_name = "PATTERN", value_parser = pattern)]
    history: Vec<String>,

    /// Grant seeing the followers of matching channels
    #[arg(long, value_name = "PATTERN", value_parser = pattern)]
    presence: Vec<String>,

    /// Grant erasing messages of matching channels
    #[arg(long, value_name = "PATTERN", value_parser = pattern)]
    erase: Vec<String>,

    /// Grant replacing messages of others in matching channels
    #[arg(long, value_name = "PATTERN", value_parser = pattern)]
    edit: Vec<String>,

    /// Grant setting and removing keys of the states of matching channels
    #[arg(long, value_name = "PATTERN", value_parser = pattern)]
    state: Vec<String>,

    /// Grant ending matching channels and opening them again
    #[arg(long, value_name = "PATTERN", value_parser = pattern)]
    end: Vec<String>,
    /// Grant choosing what the user shows to the other members of matching channels
    #[arg(long, value_name = "PATTERN", value_parser = pattern)]
    update: Vec<String>,
    /// Grant creating matching channels
    #[arg(long, value_name = "PATTERN", value_parser = pattern)]
    create: Vec<String>,

    /// The whole claim `throng` in JSON, such as {"publish":[{"users":"*"}]}
    #[arg(long, value_name = "JSON", value_parser = grants)]
    #[arg(conflicts_with_all = Permission::ALL.map(Permission::word))]
    grants: Option<Value>,

    /// Time until the token expires (`exp`)
    #[arg(long, value_name = "TIME", default_value = "1h", allow_negative_numbers = true)]
    expires_in: Time,

    /// The token's id (`jti`), with which it can be revoked
    #[arg(long, value_name = "ID")]
    token_id: Option<String>,

    /// The audience (`aud`) [default: the first value of token-audience]
    #[arg(long, value_name = "TEXT")]
    audience: Option<String>,

    /// The issuer (`iss`) [default: the first value of token-issuer]
    #[arg(long, value_name = "TEXT")]
    issuer: Option<String>,

    #[command(flatten)]
    key: KeyArguments,

    /// Read settings from this file [default: ./throng.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

fn pattern(text: &str) -> Result<String, String> {
    Pattern::new(Kind::Channel, text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

fn grants(json: &str) -> Result<Value, String> {
    Grants::from_claim(json).map_err(|error| error.to_string())?;
    serde_json::from_str(json).map_err(|error| error.to_string())
}

fn info(json: &str) -> Result<Value, String> {
    let info = member_info_of(json).map_err(|error| format!("it {error}"))?;
    serde_json::from_str(&info).map_err(|error| error.to_string())
}

pub(super) fn new(arguments: &Arguments) -> Result<()> {
    let config = arguments.config.as_deref();
    let settings = settings::load(Options::default(), std::env::vars_os(), config)?;
    let access = AccessSettings::load(&settings)?;
    if arguments.expires_in.0.is_zero() {
        bail!("--expires-in must be more than 0");
    }
    let key = SigningKey::find(&arguments.key, &settings)?;
    let now_s = now_s();
    let first = |values: &[String]| values.first().cloned();
    let audience = arguments.audience.clone().or_else(|| first(&settings.token_audience.0));
    let issuer = arguments.issuer.clone().or_else(|| first(&settings.token_issuer.0));
    let claims = claims(arguments, audience, issuer, now_s);
    let token = key.sign(&Value::Object(claims).to_string())?;
    if arguments.info.is_some() {
        info_notes(arguments).into_iter().for_each(terminal::print_note);
    }
    if settings.has_token_keys()
        && let Err(reason) = OfflineVerifier::new(&access, &settings, now_s)?.verify(&token, now_s)
    {
        terminal::print_note(&format!("a server with these settings refuses this token: {reason}"));
    }
    Ok(terminal::print(&format!("{token}\n"))?)
}

/// Why nobody may see the `info` of the token.
fn info_notes(arguments: &Arguments) -> Vec<&'static str> {
    let mut notes = Vec::new();
    if arguments.user.is_none() {
        notes.push(
            "--info without --user is shown only where each connection is a member, because the \
             token has no user",
        );
    }
    if throng_claim(arguments).is_none() {
        notes.push(
            "this token grants nothing, so it shows --info only in channels that the rules of the \
             server let the client follow: add --subscribe",
        );
    }
    notes
}

fn claims(
    arguments: &Arguments,
    audience: Option<String>,
    issuer: Option<String>,
    now_s: u64,
) -> Map<String, Value> {
    let mut claims = Map::new();
    let texts = [
        ("sub", &arguments.user),
        ("iss", &issuer),
        ("aud", &audience),
        ("jti", &arguments.token_id),
    ];
    for (name, text) in texts {
        if let Some(text) = text {
            claims.insert(name.into(), text.as_str().into());
        }
    }
    if let Some(info) = &arguments.info {
        claims.insert("info".into(), info.clone());
    }
    claims.insert("iat".into(), now_s.into());
    claims.insert("exp".into(), (now_s + arguments.expires_in.0.as_secs().max(1)).into());
    if let Some(claim) = throng_claim(arguments) {
        claims.insert("throng".into(), claim);
    }
    claims
}

/// The claim `throng`; `None` if it grants nothing.
fn throng_claim(arguments: &Arguments) -> Option<Value> {
    if arguments.grants.is_some() {
        return arguments.grants.clone();
    }
    let lists = [
        ("subscribe", &arguments.subscribe),
        ("publish", &arguments.publish),
        ("history", &arguments.history),
        ("presence", &arguments.presence),
        ("erase", &arguments.erase),
        ("edit", &arguments.edit),
        ("state", &arguments.state),
        ("end", &arguments.end),
        ("update", &arguments.update),
        ("create", &arguments.create),
    ];
    let granted = lists.into_iter().filter(|(_, list)| !list.is_empty());
    let claim: Map<_, _> = granted.map(|(name, list)| (name.to_owned(), json!(list))).collect();
    (!claim.is_empty()).then_some(Value::Object(claim))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[test]
    fn what_nobody_would_see_is_noted() {
        let notes = |words: &[&str]| {
            let words = ["new", "--info", "{}"].iter().chain(words);
            info_notes(&Line::try_parse_from(words).unwrap().arguments).len()
        };
        assert_eq!(notes(&[]), 2);
        assert_eq!(notes(&["--user", "ann"]), 1);
        assert_eq!(notes(&["--subscribe", "a"]), 1);
        assert_eq!(notes(&["--user", "ann", "--subscribe", "a"]), 0);
    }
}
