//! The sub-protocol `throng.v1`: what clients may ask for and what they are told.
//!
//! A worker parses each text frame with [`parse`], and appends one answer with a function of
//! this module. The bodies that HTTP shares with it are written by the functions that end in
//! `_body`.

mod answer;
mod command;
mod publication;

pub use answer::{
    error, error_body, gap, greeting, history, history_body, pong, presence, presence_body,
    published, published_body, subscribed, unsubscribed, welcome,
};
pub use command::{Command, LIMIT_MAX, Received, parse};
pub use publication::{CONTENT_TYPE_BYTES_MAX, KEY_BYTES_MAX, Publication};
/// The form of a `ref`: a JSON text.
pub use serde_json::value::RawValue;

pub(crate) use command::Fields;

#[cfg(test)]
mod tests;
