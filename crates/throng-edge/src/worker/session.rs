//! What a connection goes through, from its accept to its last request, and what it may ask.

mod accept;
mod command;
pub(super) mod frames;
mod hand_off;
pub(super) mod presence;
mod receive;
mod subscribe;
