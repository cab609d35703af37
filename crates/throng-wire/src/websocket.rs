//! WebSocket frames (RFC 6455): reading and writing for servers, and a small client side; and
//! messages compressed by themselves (RFC 7692).
//!
//! A worker keeps a [`Reader`] only for a connection that is in the middle of a message. Load
//! generators and tools use [`write_masked_frame`] and [`parse_server_frame`].
//!
//! # Invariants
//!
//! * Events and violations depend on the bytes, not on how they are split into reads.
//! * Memory between two reads is bounded: [`UNCONSUMED_BYTES_MAX`] in the caller, the message limit
//!   in the reader; a compressed message is inflated once it is complete.

pub mod close_code;
pub mod deflate;
pub mod extension;

mod accept;
mod frame;
mod reader;
mod utf8;
mod violation;

pub(crate) use accept::ACCEPT_BYTES;
pub use accept::accept_key;
pub use frame::{
    Opcode, ServerFrame, parse_deflate_frame, parse_server_frame, write_close,
    write_compressed_frame, write_frame, write_frame_head, write_masked_frame,
};
pub use reader::{Event, HalfFrame, HalfRead, MessageLimits, Reader, Step, UNCONSUMED_BYTES_MAX};
pub use violation::Violation;
