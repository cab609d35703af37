//! Profiles: how to subscribe and publish at known servers.
//!
//! A profile turns a URL, and perhaps a transport and the name of a channel, into a
//! [`Target`](super::Target). Options override what it says.
//!
//! The profiles of Centrifugo, Mercure and Pusher follow the documented protocols.

mod input;
mod servers;

pub(super) use input::{ProfileError, ProfileInput};

#[cfg(test)]
mod tests;
