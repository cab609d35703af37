//! Delivers messages to subscribers, and keeps connections alive that get none.

mod answer;
pub(super) mod batch;
mod deliver;
mod evict;
mod fan_out;
pub(super) mod heartbeat;
mod in_order;
mod long_poll;
pub(super) mod notice;
mod writable;
