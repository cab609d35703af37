//! A client for HTTP/1.1 and TLS, for few requests to few endpoints.
//!
//! It follows no redirect, uses no proxy, asks for no compression, and bounds the size and the time
//! of every response.
//!
//! | module | what it is |
//! |---|---|
//! | `trust` | the certificates that TLS trusts |
//! | `connect` | opens a connection, with TLS or without |
//! | `race` | connects to the address of a name that answers first |
//! | `error` | why a request has no response |
//! | `origin` | an endpoint, and the connections to it that are kept |

mod connect;
mod error;
mod origin;
mod race;
mod trust;

pub(crate) use error::RequestError;
pub(crate) use origin::{Origin, OutgoingRequest};
pub use trust::Trust;

#[cfg(test)]
mod tests;
