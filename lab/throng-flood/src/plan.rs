//! The plan of a run: its target, clients, messages and assertions.
//!
//! Flags and a TOML file are read into [`Options`], where everything is optional; flags win. A
//! [`Profile`] is options as well: how to speak to a known server. All of them, laid over one
//! another and over the defaults, are compiled into a [`Plan`], which is checked and complete.
//!
//! # Layout
//!
//! | module | contents |
//! |---|---|
//! | `model` | [`Plan`] and its parts |
//! | [`options`] | every option: TOML key, flag, default and help; `option_table` makes them |
//! | `option_value` | how options of each type are read and written as TOML |
//! | `values` | the types of options, and how their values are parsed and printed |
//! | `files` | files that options name: tables of URLs, values and tokens; secrets |
//! | `sources` | local addresses: a list, a network or an interface |
//! | `server_process` | the server's processes, given or found by their port |
//! | [`file`](mod@file) | options from TOML, with line and column of each error |
//! | `phases` | [`Phase`]: those of a file, and those that flags ask for |
//! | [`profile`] | the options for known servers |
//! | `resolve` | from options to a plan, and a plan as TOML |
//! | `tokens` | the tokens that clients show |
//! | `check` | contradictions in a plan, and what cannot be done |

mod check;
pub(crate) mod file;
mod files;
mod model;
mod option_table;
mod option_value;
mod options;
mod phases;
mod profile;
mod resolve;
mod server_process;
mod sources;
mod tokens;
mod values;

pub use files::{CertificateFile, SecretFile, TokenTable, UrlTable, ValueTable};
pub use model::*;
pub(crate) use options::around;
pub use options::{Options, PublishOptions, SourceOptions, TargetOptions, TokenOptions};
pub use phases::{LoadOptions, Phase, Publishing};
pub use server_process::ServerProcess;
pub(crate) use server_process::listeners;
pub use sources::LocalAddresses;
pub use values::{
    Header, Network, Node, Pattern, Ping, PortRange, Profile, PublishTransport, Share, Streams,
    Subscribed, TokenPlace, Transport,
};
