//! Handles the input of a connection: from its accept to its last request.

mod accept;
mod admission;
mod ask;
mod client;
mod command;
mod evict;
pub(super) mod fetch;
mod frames;
mod identify;
mod kept;
pub(super) mod kept_change;
mod limit;
mod poll;
mod presence;
mod presence_events;
pub(super) mod presence_scan;
pub(super) mod questions;
mod receive;
mod refresh;
mod resume;
mod shown;
mod subscribe;
mod writable;
