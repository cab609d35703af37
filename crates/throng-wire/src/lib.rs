//! Wire formats without I/O: bytes in, bytes out.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | [`name`] | names of channels and users |
//! | [`head`] | HTTP request heads: parsing and strict checks |
//! | [`subscribe`] | requests that subscribe: channels, start, transport |
//! | [`credential`] | where a request shows a token, and when a cookie counts as one |
//! | [`origin`] | the policy for `Origin` and `Host` |
//! | [`prefer`] | preferences of a request |
//! | [`request_id`] | the ids of requests |
//! | [`proxied`] | requests that came through a proxy |
//! | [`error`] | the errors that clients see: codes, messages, responses |
//! | [`response`] | response heads of subscriptions; their refusal for now |
//! | `header`, `json` | what the writers above and below share |
//! | [`date`] | the header `Date` |
//! | [`websocket`] | frames, both roles |
//! | [`sse`], [`chunk`] | server-sent events, chunked transfer coding |
//! | [`percent`] | percent-decoding of paths and queries |
//! | [`unknown`] | error messages for unknown parameters and fields |
//! | [`interchange`] | what JSON must be so that every parser reads it |
//! | [`envelope`] | a message as one JSON object |
//! | [`labels`] | the event and the tags of a message |
//! | [`v1`], [`batch`] | the commands of `throng.v1`, the lines of a batch |
//!
//! # Invariants
//!
//! * No input makes a parser panic or buffer more than its limits allow.
//! * A parser's result does not depend on how its input is split into reads.

pub mod batch;
pub mod chunk;
pub mod credential;
pub mod date;
pub mod envelope;
pub mod error;
pub mod head;
mod header;
pub mod interchange;
mod json;
pub mod labels;
pub mod log;
pub mod member;
pub mod name;
pub mod origin;
pub mod page_range;
pub mod percent;
pub mod prefer;
pub mod proxied;
pub mod request_id;
pub mod response;
pub mod sse;
pub mod subscribe;
pub mod unknown;
pub mod v1;
pub mod websocket;

pub use date::{CurrentDate, Date};
pub use error::{ErrorCode, ErrorResponse, RetryAfter};
pub use labels::Labels;
pub use member::MemberClaim;
pub use name::{Kind, NameError, Target, check_name, check_target_name};
pub use origin::{OriginPolicy, is_local, is_loopback_origin};
