//! The control plane: everything in the HTTP reference that is not a long-lived subscription.
//!
//! A worker of the data plane that reads a request which does not subscribe gives the socket to
//! [`serve()`], with the bytes it has read. Here hyper speaks HTTP on it for as long as the client
//! keeps the connection; when the client asks to subscribe, the socket goes back.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | `admin` | the admin listener and its connections |
//! | [`control`] | settings, and what all connections share |
//! | [`edge`] | what is needed of the data plane, as two traits |
//! | `serve` | takes sockets in; shutdown |
//! | `connection` | one socket's life |
//! | `caller` | who asks |
//! | `deadlines` | what must have happened by when |
//! | `drain` | the shutdown, as requests see it |
//! | `farewell` | the way back to a worker, last words, the end |
//! | `gate` | the socket as hyper sees it |
//! | `guests` | all connections, and which of them gives way |
//! | `framing` | whose the next request is, and where it ends |
//! | `service` | which answer to which request |
//! | `api` | publish, batch, history, presence, `HEAD`, `OPTIONS` |
//! | `pages`, `metrics` | everything that is not the API |
//! | `status` | what the server tells about itself, once a second |
//! | `answer`, `origin` | answers, refusals, CORS |
//! | `body`, `names`, `query` | reading requests |
//! | `pot` | memory that many requests share |
//! | `figures` | what is counted |
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

mod admin;
mod answer;
mod api;
mod body;
mod caller;
mod connection;
mod deadlines;
mod drain;
mod farewell;
mod figures;
mod framing;
mod gate;
mod guests;
mod metrics;
mod names;
mod origin;
mod pages;
mod pot;
mod query;
mod serve;
mod service;
mod status;

pub use control::{Control, Settings};
pub use edge::{Arrival, Arrivals, Edge, WorkerFigures};
pub use serve::serve;
