//! Socket options, and a query, that rustix does not have.
//!
//! # Why `unsafe`
//!
//! `setsockopt` and `ioctl` take a pointer: here always to a live value of the expected type. A BPF
//! program is such a value with a pointer to its instructions, which live as long.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Sets an option to a value of the type that it takes.
fn set<T>(socket: impl AsFd, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    // SAFETY: the descriptor is borrowed for the call, the pointer is to `value`, the length its
    // size.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            size_of_val(value) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Bounds the bytes that the kernel holds unsent for a connection before it counts as not writable
/// (`TCP_NOTSENT_LOWAT`, tcp(7)).
pub(crate) fn set_not_sent_low_water(socket: impl AsFd, bytes: u32) -> io::Result<()> {
    set(socket, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, &(bytes as c_int))
}

/// Makes a listener report a connection only once it has sent something, or after `seconds`
/// (`TCP_DEFER_ACCEPT`, tcp(7)).
pub(crate) fn set_defer_accept(socket: impl AsFd, seconds: u32) -> io::Result<()> {
    set(socket, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, &(seconds as c_int))
}

/// The number of bytes that a socket has taken and its peer has not acknowledged (`SIOCOUTQ`,
/// tcp(7)); 0 if the kernel does not say.
pub(crate) fn unacknowledged_bytes(socket: impl AsFd) -> usize {
    let mut bytes: c_int = 0;
    // SAFETY: the descriptor is borrowed for the call, and the kernel writes one `int`.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result == 0 { usize::try_from(bytes).unwrap_or(0) } else { 0 }
}

/// Of the sockets that share a port, lets `count` take all new connections: from the `first`, in
/// the order in which they began to listen (`SO_ATTACH_REUSEPORT_CBPF`, socket(7)).
pub(crate) fn set_reuseport_range(socket: impl AsFd, first: u32, count: u32) -> io::Result<()> {
    use libc::{BPF_A, BPF_ABS, BPF_ADD, BPF_ALU, BPF_K, BPF_LD, BPF_MOD, BPF_RET, BPF_W};
    let step = |code, k| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let random = (libc::SKF_AD_OFF + libc::SKF_AD_RANDOM) as u32;
    let mut program = [
        step(BPF_LD | BPF_W | BPF_ABS, random),
        step(BPF_ALU | BPF_MOD | BPF_K, count),
        step(BPF_ALU | BPF_ADD | BPF_K, first),
        step(BPF_RET | BPF_A, 0),
    ];
    let len = program.len() as u16;
    let program = libc::sock_fprog { len, filter: program.as_mut_ptr() };
    set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, &program)
}
