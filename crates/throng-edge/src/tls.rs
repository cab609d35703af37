//! TLS below the workers.
//!
//! | module | what it is |
//! |---|---|
//! | `connection` | a TLS connection without its socket, as it travels |

mod connection;

pub(crate) use connection::Carried;
pub use connection::TlsConnection;
