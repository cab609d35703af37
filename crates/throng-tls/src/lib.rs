//! TLS without I/O, for connections that are parked by the million.
//!
//! rustls shakes hands. Then keys and secrets are taken out of it, its object of 8 KB is dropped,
//! and 168 bytes are left: two halves, [`Outgoing`] and [`Incoming`], which seal and open records.
//!
//! ```text
//! Acceptor ─► Handshake: records in, records out ─► Established ─┬─ Outgoing, 56 bytes: seals
//!                                                                └─ Incoming, 112 bytes: opens
//! content ─► Outgoing::seal ─► record ─► socket ─► Outgoing::settle: how much of it was written
//! socket ─► buffer of records ─► Incoming::open ─► content, in the same buffer
//! ```
//!
//! The two are separate because a delivery touches only the first. Neither owns a buffer: what is
//! half read or half written stays with the caller. A client is the same with [`Connector`]; one of
//! very many puts its two halves into a [`ClientSession`].
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `suite` | the six cipher suites, and how many records a key may seal |
//! | `alert` | what the peer is told, and what it tells |
//! | `keys` | record keys and traffic secrets; zeros when they are dropped |
//! | `record` | one record: header, sealing, opening, padding; no state |
//! | `outgoing` | the sending half, and the fate of each record |
//! | `incoming` | the receiving half, and all that is not data |
//! | `compact` | the receiving half at rest, in 80 bytes |
//! | `session` | both halves of a client's connection, in 112 bytes |
//! | `frozen` | both halves as bytes, for another process or plane |
//! | `secrets` | catches the secrets that rustls derives |
//! | `tickets` | one session ticket for a client that resumes |
//! | `handshake` | drives rustls; the only file that does |
//! | `config` | the configurations of handshakes |
//! | `self_test` | whether this and rustls agree, before TLS is offered |
//! | `testing` | both sides of handshakes, for tests of other crates |
//! | `speed` | how many handshakes a second this machine can do |
//! | `known_answers`, `nonces` | tests: the traces of RFC 8448; no number is used twice |
//!
//! # What it costs
//!
//! | | bytes |
//! |---|---|
//! | a parked connection | 136, and no buffer; 168 with secrets of SHA-384 |
//! | a client's connection as a [`ClientSession`] | 112, and no buffer |
//! | a handshake under way | about 8,000 |
//! | a record, besides its content | 22 with TLS 1.3, 29 or 21 with TLS 1.2 |
//!
//! ring's key object has 544 bytes and is made for each record, in 125 ns.
//!
//! # Limits
//!
//! | limit | why | what happens |
//! |---|---|---|
//! | [`CONTENT_BYTES_MAX`] | the protocol's | a longer record is refused: `record_overflow` |
//! | [`WITHOUT_DATA_MAX`] | key updates and empty records cost time | `unexpected_message` |
//! | [`GCM_RECORDS_MAX`], [`CHACHA_RECORDS_MAX`] | a key wears out | key update; TLS 1.2: close |
//! | [`HANDSHAKE_BYTES_MAX`], [`HANDSHAKE_RECORDS_MAX`] | strangers cost time | `TooLong` |
//!
//! The time that a handshake may take is the caller's to limit, and so is the number of unfinished
//! ones.
//!
//! # Invariants
//!
//! * **No two records that leave the process have the same key and number.** A record takes its
//!   number when it is sealed; only a record of which no byte was written gives it back, and
//!   nothing is sealed before its fate is known. The halves move and cannot be copied, also when
//!   they are frozen. Never restore a process from a snapshot of its memory: that is a copy.
//! * rustls gets one record at a time, so that it never sees a record of the record layer.
//! * Keys that were derived here are compared with those of rustls, for every connection, and at
//!   start by [`self_test`].
//! * Keys and secrets are zeros after they are dropped, and no error or debug output contains
//!   them.
//! * What peers send does not panic, and each call does an amount of work that its input bounds.
//! * The end of a stream without `close_notify` is [`StreamEnd::Truncated`], never the end of what
//!   was sent.

mod alert;
mod compact;
mod config;
mod frozen;
mod handshake;
mod incoming;
mod keys;
#[cfg(test)]
mod known_answers;
#[cfg(test)]
mod nonces;
mod outgoing;
mod record;
mod secrets;
mod self_test;
mod session;
mod speed;
mod suite;
#[cfg(feature = "testing")]
pub mod testing;
mod tickets;

pub use alert::{Alert, alert_name};
pub use compact::CompactIncoming;
pub use config::{Acceptor, Connector, LeastVersion, provider};
pub use frozen::{FROZEN_BYTES_MAX, FrozenError, FrozenTls, VERSION, freeze, thaw};
pub use handshake::{
    CertificateFlaw, CertifiedUser, Established, HANDSHAKE_BYTES_MAX, HANDSHAKE_RECORDS_MAX,
    Handshake, HandshakeError, HandshakeProgress, Peer, UserOf,
};
pub use incoming::{End, Incoming, Opened, Role, StreamEnd, WITHOUT_DATA_MAX};
pub use outgoing::{Outgoing, RecordFate, SealError, SealedRecord};
pub use record::{CONTENT_BYTES_MAX, HEADER_BYTES, RECORD_BYTES_MAX};
pub use self_test::{SelfTestError, self_test};
pub use session::ClientSession;
pub use speed::{TimedHandshake, handshakes_per_second};
pub use suite::{CHACHA_RECORDS_MAX, GCM_RECORDS_MAX, Suite};
pub use tickets::SessionTicket;
