//! A new process takes over from this one, with all connections and logs: SIGUSR2.
//!
//! | module | contents |
//! |---|---|
//! | `binary` | which binary is started, found when the server starts |
//! | `upgrader` | the running server's side |
//! | `arrival` | the new process's side |
//! | `ahead` | logs that come before the pause, in memory that both processes map |
//! | `requests` | what asks for an upgrade, and the end of the process that has been replaced |
//! | `parent` | the first process stays as a small parent, where its end would end the service |
//! | `reloads` | what becomes of reloads meanwhile |
//! | `start` | what is different in the start of the new process |
//! | `victim` | which of the two processes is ended if memory is short |
//! | `parts` | what is moved beside workers: logs, kept subscriptions, admin connections |

mod ahead;
mod arrival;
mod binary;
pub(crate) mod parent;
mod parts;
mod reloads;
mod requests;
pub(crate) mod start;
mod upgrader;
mod victim;

pub(crate) use arrival::Arrival;
pub(crate) use binary::SuccessorBinary;
pub(crate) use reloads::Reloads;
pub(crate) use requests::{Asking, Ending, Requests};
pub(crate) use upgrader::{Running, Upgrader};
