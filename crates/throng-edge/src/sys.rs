//! The kernel's side of the data plane. All `unsafe` of the data plane is below this module, in one
//! small file per reason.
//!
//! | module | reason for `unsafe` |
//! |---|---|
//! | `process` | one function of the C library |
//! | `io_uring`, `linux_aio` | the kernel is given addresses |
//! | `key_pages`, `sealed` | memory that does not come from the allocator |
//! | `options` | socket options that no library sets |
//! | `batch`, `copies`, `epoll`, `handoff`, `listener`, `sockets` | none |

#[allow(unsafe_code, reason = "see the module's doc")]
pub(crate) mod io_uring;
#[allow(unsafe_code, reason = "see the module's doc")]
pub(crate) mod key_pages;
#[allow(unsafe_code, reason = "see the module's doc")]
pub(crate) mod linux_aio;
#[allow(unsafe_code, reason = "see the module's doc")]
mod options;
#[allow(unsafe_code, reason = "see the module's doc")]
pub(crate) mod process;
#[allow(unsafe_code, reason = "see the module's doc")]
pub(crate) mod sealed;

mod batch;
pub(crate) mod copies;
pub(crate) mod epoll;
pub(crate) mod handoff;
pub(crate) mod listener;
pub(crate) mod sockets;
