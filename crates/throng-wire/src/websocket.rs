//! WebSocket frames (RFC 6455) without I/O: the server's two directions, and the client's writing.
//!
//! A worker keeps a [`Reader`] only for a connection that is in the middle of a message; an idle
//! connection has none. Load generators and tools use [`write_masked_frame`] and
//! [`parse_server_frame`].
//!
//! # Invariants
//!
//! * Which events come out, and which violation, depends on the bytes and not on how they were cut.
//! * What is kept between two reads is bounded: [`UNCONSUMED_BYTES_MAX`] by the caller, the message
//!   limit by the reader.

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
pub use reader::{Event, Reader, Step, UNCONSUMED_BYTES_MAX};
pub use violation::Violation;
