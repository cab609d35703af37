//! The control plane over real sockets: `serve` with the real engine, a made-up data plane, and
//! clients that speak raw bytes.
//!
//! Nothing here measures time. Where a deadline is the matter, it is set small, and the test waits
//! for what follows from it.

mod any_request;
mod batch;
mod client;
mod drain;
mod hand_back;
mod history;
mod keep_alive;
mod limits;
mod methods;
mod origins;
mod pages;
mod presence;
mod publish;
mod server;
mod smuggling;
mod status;
