//! The HTTP vocabulary that all endpoints share.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `answer` | responses and error responses |
//! | `body` | request bodies, limited in size, time and total memory |
//! | `caller` | which listener and client a request comes from |
//! | `names` | the resources that paths name |
//! | `origin` | origin and host checks, CORS response headers |
//! | `query` | query parameters |

pub(crate) mod answer;
pub(crate) mod body;
pub(crate) mod caller;
pub(crate) mod names;
pub(crate) mod origin;
pub(crate) mod query;
