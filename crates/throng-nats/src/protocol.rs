//! The protocol of NATS between a client and a server: bytes in, operations out, and the reverse.
//! No I/O.
//!
//! Only what this crate needs: subscriptions without queue groups, publications with headers, and
//! requests, which are publications whose answers come to a subscription of the client's own.

pub mod decoder;
pub mod encoder;
pub mod headers;
