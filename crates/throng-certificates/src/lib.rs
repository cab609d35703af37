//! A server's TLS: certificates by name, tickets, client certificates.
//!
//! [`ServerTls`] reads the files that the settings name, and makes an [`Acceptor`] of them. When
//! the files change it reads them again: what is whole replaces what was there, for the next
//! handshakes; what is broken changes nothing.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `error` | what can be wrong with the files, as sentences |
//! | `facts` | what a certificate says: names, expiry, kind of key, users |
//! | `pair` | a certificate with its key, from their files |
//! | `by_name` | which certificate a client is shown |
//! | `clients` | whose certificates clients may show |
//! | `tickets` | session tickets, and the keys that seal them |
//! | `own` | the certificate that this process shows as a client |
//! | `validations` | what authorities are shown that validate a name |
//! | `server` | all of it together, and the reload |
//!
//! # Invariants
//!
//! * Nothing is replaced by something broken: a key that does not match, a file that is missing or
//!   half written, an expired certificate in place of a valid one. The error is returned once for
//!   each state of the files.
//! * Sessions of clients with certificates are never resumed: each of their connections is checked
//!   against the certificates and the revocation lists of today.
//! * Secrets are overwritten with zeros when they are dropped, and no error quotes a file.
//!
//! [`Acceptor`]: throng_tls::Acceptor

mod by_name;
mod clients;
mod error;
mod facts;
mod own;
mod pair;
mod server;
mod tickets;
mod validations;

pub use error::CertificateError;
pub use facts::UserField;
pub use own::own_certificate;
pub use server::{
    CertificateFiles, CertificateState, ClientSettings, Prepared, Reload, Reloads, ServerTls,
    TlsSettings,
};
pub use validations::Validation;
