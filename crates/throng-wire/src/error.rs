//! The errors that clients see: their codes, and how each transport writes them.
//!
//! Parsers return an [`ErrorResponse`]; the owner of the socket counts it and writes it. The codes
//! are one vocabulary for HTTP, `throng.v1` and the lines of a batch; `docs/reference/http.md`
//! lists them.

mod code;
mod response;
mod retry;

pub use code::ErrorCode;
pub(crate) use response::push_options;
pub use response::{ErrorResponse, ResponseOptions, write_answer};
pub use retry::{Retry, RetryAfter};
