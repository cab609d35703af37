//! Socket options, and queries, that rustix does not have; and the options that a system may lack.
//!
//! # Why `unsafe`
//!
//! `setsockopt`, `getsockopt` and `ioctl` take a pointer: here always to a live value of the
//! expected type. A BPF program is such a value with a pointer to its instructions, which live as
//! long.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The options without which the server goes on, and has said so.
static MISSING: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());

/// Goes on without an option that could not be set, and says so once.
pub(crate) fn optional(name: &'static str, set: Result<(), impl Into<io::Error>>) {
    let Err(error) = set else { return };
    let mut missing = MISSING.lock().unwrap_or_else(PoisonError::into_inner);
    if !missing.contains(&name) {
        missing.push(name);
        let error = error.into();
        tracing::warn!("the socket option {name} cannot be set, so it is left out: {error}");
    }
}

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

/// The size of a send buffer that holds little unread data (`SO_SNDBUF`, socket(7)). The kernel
/// doubles it, for its own overhead.
const BOUNDED_BYTES: usize = 32 << 10;

/// The bytes of it that may be unsent.
const BOUNDED_UNSENT_BYTES: u32 = 8 << 10;

/// Bounds what the kernel holds for a connection whose client should get nothing that is old.
pub(crate) fn bound_unread(socket: impl AsFd) {
    let buffer = rustix::net::sockopt::set_socket_send_buffer_size(&socket, BOUNDED_BYTES);
    optional("SO_SNDBUF", buffer);
    bound_unsent(socket);
}

/// Bounds what the kernel holds unsent for a connection, whatever it has on its way.
pub(crate) fn bound_unsent(socket: impl AsFd) {
    optional("TCP_NOTSENT_LOWAT", set_not_sent_low_water(&socket, BOUNDED_UNSENT_BYTES));
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

/// The time since a peer last sent something, or since its connection was made (`TCP_INFO`,
/// tcp(7)). Zero if the kernel does not say.
pub(crate) fn silence(socket: impl AsFd) -> Duration {
    let info = tcp_info(socket);
    info.map_or(Duration::ZERO, |info| Duration::from_millis(info.tcpi_last_data_recv.into()))
}

/// The number of connections that wait to be accepted at a listener; 0 if the kernel does not say.
pub(crate) fn queued(listener: impl AsFd) -> u32 {
    // The meaning of this field for a listener (`tcp_get_info` in the kernel).
    tcp_info(listener).map_or(0, |info| info.tcpi_unacked)
}

fn tcp_info(socket: impl AsFd) -> Option<libc::tcp_info> {
    // SAFETY: a struct of numbers, for which zeros are values.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the descriptor is borrowed for the call, the kernel writes at most `length` bytes to
    // `info`, which lives as long.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    (result == 0).then_some(info)
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
