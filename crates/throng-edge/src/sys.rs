//! The kernel's side of the data plane. All `unsafe` of the data plane is below this module, in one
//! small file per reason.
//!
//! | module | reason for `unsafe` |
//! |---|---|
//! | `private_table` | a thread gets a descriptor table of its own |
//! | `heap` | one function of the C library |
//! | `ring` | io_uring is told addresses |
//! | `aio` | so is Linux AIO |
//! | `options` | socket options that no library sets |
//! | `listener`, `poll`, `hand_over`, `sockets` | none |

#[allow(unsafe_code, reason = "see the module's doc")]
pub(crate) mod aio;
#[allow(unsafe_code, reason = "see the module's doc")]
pub(crate) mod heap;
#[allow(unsafe_code, reason = "see the module's doc")]
mod options;
#[allow(unsafe_code, reason = "see the module's doc")]
mod private_table;
#[allow(unsafe_code, reason = "see the module's doc")]
pub(crate) mod ring;

pub(crate) mod hand_over;
pub(crate) mod listener;
pub(crate) mod poll;
pub(crate) mod sockets;

pub(crate) use private_table::unshare;
