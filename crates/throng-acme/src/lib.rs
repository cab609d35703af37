//! Certificates that the server obtains and renews by itself, by ACME (RFC 8555).
//!
//! A certificate authority validates each name over the TLS listener (`tls-alpn-01`, RFC 8737): it
//! connects to port 443 of the name, and is shown a certificate that only the owner of the account
//! can make. So no other port has to be open, and no other program to run.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `settings` | names, account, authority |
//! | `error` | why there is no certificate, as sentences, and how soon to try again |
//! | `schedule` | when to renew, and when to try again after a failure |
//! | `store` | the account, the certificates and the failures, in a directory |
//! | `client` | the way to the authority |
//! | `validation` | the proof that the authority is shown |
//! | `server` | the server's TLS, as this crate needs it |
//! | `order` | one certificate, from the order to its file |
//! | `window` | when the authority wants a certificate to be renewed |
//! | `progress` | how each name stands, for metrics and status |
//! | `renewal` | the task that does it all |
//!
//! # Invariants
//!
//! * A certificate is replaced by a newer one that is whole, in one step, and by nothing else.
//! * Keys and the account are in files of mode 0600, in a directory of mode 0700.
//! * There is one order at a time. After a failure the next is seconds away if the authority was
//!   not reached, and at least 15 minutes if it refused; longer with each failure, never sooner
//!   than it asks for, and also after a restart.

mod client;
mod error;
mod order;
mod progress;
mod renewal;
mod schedule;
mod server;
mod settings;
mod store;
mod validation;
mod window;

pub use error::StoreError;
pub use progress::{NameState, Progress};
pub use renewal::{Renewal, Renewer};
pub use server::ChallengeResponder;
pub use settings::{AcmeSettings, LETS_ENCRYPT, LETS_ENCRYPT_STAGING};
pub use store::Store;
pub use validation::ChallengeCertificate;
