//! The HTTP vocabulary that all endpoints share.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `body` | request bodies, limited in size, time and total memory |
//! | `origin` | origin and host checks, CORS response headers |
//! | `names` | the resources of the API, and the paths that name them |
//! | `query` | query parameters |
//! | `query_names` | names that stand in the query |
//! | `cursor` | where the next page of a list begins, as text |
//! | `large_answer` | responses whose memory is limited until clients have read them |
//! | `dialect` | requests of other dialects, and their answers |
//! | `file` | responses with a file |
//! | `gzip` | compressed responses, and which may be compressed |
//! | `request_id` | the ids of requests, in answers and in the log |
//! | `answer` | responses and error responses |
//! | `caller` | which listener and client a request comes from |

pub(crate) mod answer;
pub(crate) mod body;
pub(crate) mod caller;
pub(crate) mod cursor;
pub(crate) mod dialect;
pub(crate) mod file;
pub(crate) mod gzip;
pub(crate) mod large_answer;
pub(crate) mod names;
pub(crate) mod origin;
pub(crate) mod query;
pub(crate) mod query_names;
pub(crate) mod request_headers;
pub(crate) mod request_id;
