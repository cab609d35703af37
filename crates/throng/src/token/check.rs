//! `throng token check`: verifies a token as the server does.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use throng_access::{Identity, Permission};
use throng_core::name::Kind;
use throng_units::paint::sanitized;

use super::given::GivenToken;
use super::moment::moment;
use crate::access::{AccessSettings, OfflineVerifier, now_s};
use crate::settings::{self, Options};
use crate::terminal::{self, EXIT_RUNTIME};

const EXAMPLES: &str = "\
Reads the settings of the server: throng.toml and the THRONG_* variables. Fetches the key sets of
token-key-urls and reports the result. Exits with 1 if the server would refuse the token. To see
what a token may do on a channel, use: throng check --token TOKEN --channel CHANNEL

Examples:
  throng token check --config /etc/throng.toml < token
  throng token new --user ann | throng token check";

/// Arguments of `throng token check`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    token: GivenToken,

    /// Read settings from this file [default: ./throng.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(super) fn check(arguments: &Arguments) -> Result<ExitCode> {
    let config = arguments.config.as_deref();
    let settings = settings::load(Options::default(), std::env::vars_os(), config)?;
    let access = AccessSettings::load(&settings)?;
    let token = arguments.token.read()?;
    let now_s = now_s();
    let verifier = OfflineVerifier::new(&access, &settings, now_s)?;
    verifier.notes.iter().for_each(|note| terminal::print_note(note));
    match verifier.verify(&token, now_s) {
        Ok(identity) => {
            terminal::print(&describe(&identity, now_s))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(reason) => {
            terminal::print_error(&format!("the server refuses this token: {reason}"));
            Ok(EXIT_RUNTIME.into())
        }
    }
}

/// The claims of a valid token, in words.
pub(super) fn describe(identity: &Identity, now_s: u64) -> String {
    let user = identity
        .user()
        .map_or_else(|| "no user".into(), |user| format!("user {}", sanitized(user)));
    let expires = moment(identity.expires_s().into(), now_s);
    let mut text = format!("valid: {user}; refused from {expires}\n");
    for permission in Permission::ALL {
        let patterns = identity.grants().patterns(permission).map(|pattern| {
            let kind = if pattern.kind() == Kind::User { "users " } else { "" };
            format!("{kind}{}", sanitized(pattern.text()))
        });
        let patterns: Vec<_> = patterns.collect();
        let patterns = if patterns.is_empty() { "nothing".into() } else { patterns.join(", ") };
        text += &format!("  {:<11}{patterns}\n", permission.word());
    }
    let max_channels = identity.grants().max_channels();
    if max_channels > 0 {
        text += &format!("  up to {max_channels} channels per connection\n");
    }
    text
}
