//! What a connection goes through, from its accept to its last request, and what it may ask.

mod accept;
mod command;
mod frames;
mod hand_off;
mod presence;
pub(super) mod presence_scan;
mod receive;
mod subscribe;
