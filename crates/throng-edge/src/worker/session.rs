//! Handles the input of a connection: from its accept to its last request.

mod accept;
mod command;
mod frames;
mod hand_off;
mod presence;
pub(super) mod presence_scan;
mod receive;
mod subscribe;
