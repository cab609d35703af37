//! Every setting, defined once: a flag, a `THRONG_*` variable and a key of `throng.toml`.
//!
//! Each source is read into [`Options`], which holds only the settings that the source sets. Flags
//! override variables, variables override the file, and the file overrides the defaults.
//! [`Settings`] is the checked result. Nothing here binds, starts or changes anything.
//!
//! # Layout
//!
//! | module | contents |
//! |---|---|
//! | `table` | the settings, with flag, type, default, range and help |
//! | `row` | the grammar of the table: ranges, and how a running server takes over a new value |
//! | `app_tables` | the `[[apps]]` tables of the file |
//! | `callout_tables` | the `[[callouts]]` tables of the file |
//! | `certificate_tables` | the `[[certificates]]` tables of the file |
//! | `channels` | the `[[channels]]` tables of the file |
//! | `key_tables` | the `[[token-keys]]` and `[[server-keys]]` tables of the file |
//! | `secret` | a secret in the file |
//! | `environment`, `file` | the other two sources |
//! | `facts` | what the settings mean together |
//! | `values`, `lists` | types of values that only the server has |
//! | `clients` | the settings of proxies and limits, as both planes use them |
//! | `check`, `check_acme`, `check_nats`, `check_tls` | which values are possible together |
//! | `rules` | the settings of channels as rules for the channels and the workers |

mod acme_values;
mod app_tables;
mod callout_tables;
mod certificate_tables;
mod channels;
mod check;
mod check_acme;
mod check_nats;
mod check_tls;
mod clients;
mod environment;
mod facts;
mod file;
mod key_tables;
mod lists;
mod nats_values;
mod row;
mod rules;
mod secret;
mod table;
mod values;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;

pub(crate) use app_tables::{AppKeyTable, AppTable};
pub(crate) use callout_tables::CalloutTable;
pub(crate) use channels::{ChannelTable, covered_tables};
pub(crate) use check::{admin_warning, origin_warning};
pub(crate) use check_acme::missing_state;
pub(crate) use clients::{
    address_warning, app_limits, channel_limits, clients, has_limits, limits, limits_of,
};
pub(crate) use file::in_use as file_in_use;
pub(crate) use key_tables::{ServerKeyTable, TokenKeyTable};
pub(crate) use nats_values::{NatsPrefix, NatsReplicas, NatsServers};
pub(crate) use row::{Change, Row};
pub(crate) use rules::rules;
pub(crate) use secret::Secret;
pub(crate) use table::{Options, Settings, SettingsError, row};
pub(crate) use values::{ControlChoice, LogPlace};

/// The sources of settings, except variables.
#[derive(Debug, Args)]
pub(crate) struct Sources {
    /// Read settings from this file [default: ./throng.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// The settings given as flags.
    #[command(flatten)]
    pub(crate) options: Options,
}

/// Loads and checks the settings. The file is `named`, or else `throng.toml` in the working
/// directory, if it exists.
pub(crate) fn load(
    flags: Options,
    variables: impl Iterator<Item = (OsString, OsString)>,
    named: Option<&Path>,
) -> Result<Settings, SettingsError> {
    load_and(flags, variables, named, |_| Ok(()))
}

/// What should be changed about the variables of this process, although it works.
pub(crate) fn variable_warnings() -> Vec<String> {
    environment::warnings(std::env::vars_os())
}

/// The settings as [`load`] finds them, not checked, with paths that mean the same from everywhere.
pub(crate) fn absolute(flags: Options, named: Option<&Path>) -> Result<Settings, SettingsError> {
    let environment = environment::read(std::env::vars_os())?;
    let file = file::find_and_read(named)?;
    let here = std::env::current_dir().unwrap_or_default();
    // What stands in a file is relative to it, as far as this directory.
    let all = flags.or(environment).or(file).placed(&here.join("throng.toml"));
    Ok(all.resolve())
}

/// What the sources say of where a server is. `None` for what none of them sets.
pub(crate) struct Whereabouts {
    pub(crate) listen: Option<SocketAddr>,
    /// True if only the file says so, which may have changed since the start.
    pub(crate) is_listen_of_file: bool,
    pub(crate) control: Option<ControlChoice>,
}

/// Where the server of these sources is. Its other settings need not be possible: it may have been
/// started with flags that are not known here.
pub(crate) fn whereabouts(
    flags: Options,
    named: Option<&Path>,
) -> Result<Whereabouts, SettingsError> {
    let environment = environment::read(std::env::vars_os())?;
    let given = flags.or(environment);
    let is_listen_of_file = given.listen().is_none();
    let options = given.or(file::find_and_read(named)?);
    let (listen, control) = (options.listen(), options.control().cloned());
    Ok(Whereabouts { listen, is_listen_of_file, control })
}

/// As [`load`], but lets `change` change the settings before they are checked.
pub(crate) fn load_and(
    flags: Options,
    variables: impl Iterator<Item = (OsString, OsString)>,
    named: Option<&Path>,
    change: impl FnOnce(&mut Settings) -> Result<(), SettingsError>,
) -> Result<Settings, SettingsError> {
    let environment = environment::read(variables)?;
    let file = file::find_and_read(named)?;
    let mut settings = flags.or(environment).or(file).resolve();
    change(&mut settings)?;
    check::check(&settings)?;
    Ok(settings)
}

/// The settings of a text, as if it stood in `throng.toml`.
#[cfg(test)]
pub(crate) fn read_text(text: &str) -> Result<Settings, SettingsError> {
    file::read("throng.toml", text).map(Options::resolve)
}

#[cfg(test)]
mod tests;
