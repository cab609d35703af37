//! `IP_BIND_ADDRESS_NO_PORT`, which rustix does not have.
//!
//! A socket that is bound to an address and port 0 gets a local port at once, and no other socket
//! of that address has it, whatever the destination. With this option the port is chosen by
//! `connect`, which knows the destination: each destination address and port has the whole range.
#![allow(unsafe_code)]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

/// Leaves the choice of the local port to `connect`.
pub(super) fn choose_port_late(socket: impl AsFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the descriptor is borrowed for the call, and the kernel reads `size_of(on)` bytes at
    // the address of `on`, which lives until the call has returned.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            std::ptr::from_ref(&on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
