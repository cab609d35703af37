//! What the server serves, as documents for programs: OpenAPI for HTTP, AsyncAPI for WebSockets and
//! streams.
//!
//! The code and the documents share what can be shared: the control plane knows the parameters of a
//! query by [`query`], and limits and error codes are those of `throng-wire`. [`check()`] compares
//! the rest with each answer of the control plane, in debug builds.
//!
//! # Layout
//!
//! Each module uses only modules of the rows below its own.
//!
//! | module | what it is |
//! |---|---|
//! | `check` | whether an answer is documented |
//! | `asyncapi` | the document for WebSockets and streams |
//! | `openapi` | the document for HTTP |
//! | `operation` | one method of one path |
//! | [`query`] | the query parameters of each path |
//! | `schema` | the forms of JSON bodies |

mod asyncapi;
mod check;
mod openapi;
mod operation;
pub mod query;
mod schema;

pub use asyncapi::asyncapi;
pub use check::{Undocumented, check, methods_at};
pub use openapi::{Route, openapi, routes};
pub use query::Parameter;
