//! The life of a control connection, from the worker's hand-off to the close or the way back.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `connection` | drives hyper on one socket and decides how the connection ends |
//! | `request_boundary` | the socket as hyper sees it: one request at a time, no subscription |
//! | `stream`, `tls_stream` | the socket, with or without TLS |
//! | `handshake` | TLS handshakes of the admin listener |
//! | `inspect` | which plane serves the next request, and where it ends |
//! | `deadlines` | head and idle timeouts |
//! | `close` | hand-back to a worker, final response, lingering close |
//! | `connection_set` | all open connections, and which one is evicted for a new one |

pub(crate) mod close;
pub(crate) mod connection;
pub(crate) mod connection_set;
mod deadlines;
pub(crate) mod handshake;
mod inspect;
mod request_boundary;
mod stream;
mod tls_stream;
