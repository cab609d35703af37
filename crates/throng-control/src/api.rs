//! The endpoints of the API, one module for each kind of request.

pub(crate) mod batch;
pub(crate) mod connections;
mod count;
pub(crate) mod creation;
pub(crate) mod edit;
pub(crate) mod end;
pub(crate) mod erase;
pub(crate) mod erase_user;
pub(crate) mod head;
pub(crate) mod history;
pub(crate) mod kept;
mod limit;
pub(crate) mod listing;
mod log;
pub(crate) mod login;
pub(crate) mod newest_page;
pub(crate) mod options;
mod parameters;
mod permit;
pub(crate) mod presence;
pub(crate) mod publish;
pub(crate) mod pusher;
pub(crate) mod read;
mod receipt;
pub(crate) mod revocations;
pub(crate) mod share;
pub(crate) mod state;
