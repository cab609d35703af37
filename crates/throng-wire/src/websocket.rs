//! WebSocket frames (RFC 6455): reading and writing for servers, and a small client side.
//!
//! A worker keeps a [`Reader`] only for a connection that is in the middle of a message. Load
//! generators and tools use [`write_masked_frame`] and [`parse_server_frame`].
//!
//! # Invariants
//!
//! * Events and violations depend on the bytes, not on how they are split into reads.
//! * Memory between two reads is bounded: [`UNCONSUMED_BYTES_MAX`] in the caller, the message limit
//!   in the reader.

pub mod close_code;

mod accept;
mod frame;
mod reader;
mod utf8;
mod violation;

pub(crate) use accept::ACCEPT_BYTES;
pub use accept::accept_key;
pub use frame::{
    Opcode, ServerFrame, parse_server_frame, write_close, write_frame, write_frame_head,
    write_masked_frame,
};
pub use reader::{Event, HalfFrame, HalfRead, Reader, Step, UNCONSUMED_BYTES_MAX};
pub use violation::Violation;
