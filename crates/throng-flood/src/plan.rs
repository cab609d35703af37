//! What a run does: the target, its clients, what is published, and what must hold at the end.
//!
//! Flags and a TOML file are read into [`Options`], where everything is optional; flags win. A
//! [`Profile`] fills in how to speak to a known server, and the outcome is a [`Plan`], checked and
//! complete.
//!
//! # Layout
//!
//! | module | contents |
//! |---|---|
//! | `model` | [`Plan`] and its parts |
//! | [`options`] | every option: TOML key, flag, default and help; `option_table` makes them |
//! | `option_value` | how options of each type are read and written as TOML |
//! | `values` | how the values of options are parsed and printed |
//! | `sources` | local addresses: a list, a network or an interface |
//! | `server_process` | the server's processes, given or found by their port |
//! | [`file`](mod@file) | options from TOML, with line and column of each error; `toml_reader` |
//! | `phases` | the phases of a file, and those that flags ask for |
//! | [`profile`] | the known servers |
//! | `resolve` | from options to a plan |
//! | `check` | contradictions in a plan, and what cannot be done |
//! | [`show`] | a plan as TOML |

mod check;
pub(crate) mod file;
mod model;
mod option_table;
mod option_value;
mod options;
mod phases;
mod profile;
mod resolve;
mod server_process;
pub(crate) mod show;
mod sources;
mod toml_reader;
mod values;

pub use model::*;
pub use options::{LoadOptions, Options, PublishOptions, SourceOptions, TargetOptions};
pub use server_process::ServerProcess;
pub(crate) use server_process::listeners;
pub use sources::LocalAddresses;
pub use values::{Header, PortRange, PublishTransport, Share, UrlTable, ValueTable};
