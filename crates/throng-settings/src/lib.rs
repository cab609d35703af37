//! Reads settings from TOML: typed values, the place of each error, and what was meant.
//!
//! The server's `throng.toml` and the plans of the laboratory are both read with it.
//!
//! # Layout
//!
//! | module | contents |
//! |---|---|
//! | `document` | [`Document`]: a file that says line and column of an error |
//! | `reader` | [`Reader`] and [`Section`]: tables, typed, with all errors at once |
//! | [`toml_value`] | a [`Value`](throng_units::Value) as TOML |

mod document;
mod reader;
pub mod toml_value;

pub use document::{Document, read_bytes, read_text};
pub use reader::{KnownTables, Reader, Section, position};
