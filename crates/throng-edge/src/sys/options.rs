//! Socket options that no library in use sets.
//!
//! # Why `unsafe`
//!
//! `setsockopt` takes a pointer; here always to a live integer, with its size.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

fn set(socket: impl AsFd, name: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: the descriptor is borrowed for the call, the pointer is to `value`, the length its
    // size.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            name,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Bounds the bytes that the kernel holds unsent for a connection before it counts as not writable
/// (`TCP_NOTSENT_LOWAT`, tcp(7)).
pub(crate) fn set_not_sent_low_water(socket: impl AsFd, bytes: u32) -> io::Result<()> {
    set(socket, libc::TCP_NOTSENT_LOWAT, bytes as c_int)
}

/// A listener hands out connections that have sent something, or after `seconds` any
/// (`TCP_DEFER_ACCEPT`, tcp(7)).
pub(crate) fn set_defer_accept(socket: impl AsFd, seconds: u32) -> io::Result<()> {
    set(socket, libc::TCP_DEFER_ACCEPT, seconds as c_int)
}
