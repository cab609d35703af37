//! The dialogue of a running server and its successor, while the successor takes over.
//!
//! The two processes are connected by a pair of sockets, which the successor inherits. Each worker
//! has a pair of its own beside it, so that connections travel from worker to worker in parallel.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | [`phase`] | the order of messages, without I/O: who serves at any moment |
//! | [`message`] | the messages as bytes |
//! | [`channel`] | messages and descriptors over a socket |
//! | [`memory`] | memory with frozen state that both processes share |
//! | [`records`] | frozen state as records, each connection's with its socket |
//!
//! # Invariants
//!
//! * At no moment do both processes serve.
//! * Until [`Message::Commit`](message::Message::Commit) is sent, the predecessor can go on as if
//!   nothing had been. From then on it decides nothing.
//! * The successor acts on nothing that it was given before it has received that message: state
//!   that is used twice discloses what TLS has sealed.

pub mod channel;
pub mod memory;
pub mod message;
pub mod phase;
pub mod records;
