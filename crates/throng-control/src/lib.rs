//! The control plane: everything in the HTTP reference that is not a long-lived subscription.
//!
//! A worker of the data plane that reads a request which does not subscribe gives the socket to
//! [`serve()`], with the bytes it has read. Here hyper speaks HTTP on it for as long as the client
//! keeps the connection; when the client asks to subscribe, the socket goes back.
//!
//! # Layout
//!
//! Each module uses only modules of the rows below its own.
//!
//! | module | what it is |
//! |---|---|
//! | [`fn@serve`], `serve/admin` | the two listeners, their connection limits, shutdown |
//! | `service` | routes each request to the API or a page |
//! | `api` | publish, batch, history, presence, `HEAD`, `OPTIONS` |
//! | `pages` | static pages, the JavaScript client, health, `/metrics` |
//! | `socket` | the life of a control connection |
//! | `status` | the sampler behind the status page |
//! | [`control`] | what all connections share |
//! | `http` | responses, error responses, bodies, names, queries, origins |
//! | `drain`, `metrics`, `memory_quota` | shutdown state, counters, memory that requests share |
//! | [`edge`] | what the control plane needs of the data plane, as two traits |
//!
//! # Invariants
//!
//! * A request that subscribes never reaches hyper, and no byte of it is lost on the way back.
//! * What a client says last is answered before its connection goes anywhere.
//! * Every refusal has a code of the reference, and is counted under it.
//! * What may become large is counted against a limit of all connections together: bodies until
//!   they are worked off, answers until they are taken.

pub mod control;
pub mod edge;

mod api;
mod drain;
mod http;
mod memory_quota;
mod metrics;
mod pages;
mod serve;
mod service;
mod socket;
mod status;

pub use control::{Control, Settings};
pub use edge::{Arrival, Arrivals, Edge, WorkerFigures};
pub use serve::serve;
