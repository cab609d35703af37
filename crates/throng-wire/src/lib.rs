//! Wire formats without I/O: bytes in, bytes out.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | [`name`] | what a channel or user may be called |
//! | [`head`] | request heads: where one ends, whether it is well-formed |
//! | [`subscribe`] | what a request that subscribes asks for |
//! | [`origin`] | whose pages may talk to the server, and under which names |
//! | [`error`] | the errors that clients see: codes, messages, responses |
//! | [`response`] | the heads of subscriptions |
//! | [`date`] | when an answer was made |
//! | [`websocket`] | frames, both roles |
//! | [`sse`], [`chunk`] | server-sent events, chunked transfer coding |
//! | [`percent`] | percent-decoding of paths and queries |
//! | [`unknown`] | names of parameters and fields that nothing knows |
//! | [`envelope`] | a message as one JSON object |
//! | [`v1`], [`batch`] | the commands of `throng.v1`, the lines of a batch |
//!
//! # Invariants
//!
//! * No input makes a parser panic, and none makes it hold more than its limits say.
//! * How the input is cut into pieces does not change what is read from it.

pub mod batch;
pub mod chunk;
pub mod date;
pub mod envelope;
pub mod error;
pub mod head;
pub mod log;
pub mod name;
pub mod origin;
pub mod percent;
pub mod response;
pub mod sse;
pub mod subscribe;
pub mod unknown;
pub mod v1;
pub mod websocket;

pub use date::{CurrentDate, Date};
pub use error::{ErrorCode, ErrorResponse, RetryAfter};
pub use name::{Kind, NameError, Target, check_name};
pub use origin::{OriginPolicy, is_local};
