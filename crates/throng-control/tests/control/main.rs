//! The control plane over real sockets: `serve` with the real engine, a fake data plane, and
//! clients that send and read raw bytes.
//!
//! Nothing here measures time. A test of a timeout sets it small and waits for the effect.

mod any_request;
mod batch;
mod client;
mod contract;
mod creation;
mod credentials;
mod dialect;
mod drain;
mod end;
mod erase;
mod handoff;
mod history;
mod keep_alive;
mod limits;
mod listing;
mod methods;
mod operators;
mod origins;
mod pages;
mod presence;
mod publish;
mod read;
mod receipts;
mod server;
mod smuggling;
mod state;
mod status;
mod stored;
mod tls;
