//! Hands sockets off between descriptor tables, with the bytes already read from them and what is
//! known about them. The bytes of a TLS connection begin with its state, `tls/connection.rs`.
//!
//! One packet of a `SOCK_SEQPACKET` socket pair carries all of it: `SCM_RIGHTS` (unix(7)) makes the
//! kernel install the descriptor in the receiver's table. Both ends exist before any worker leaves
//! the process's table, so every thread can send to every other.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::net::HandoffHeader;
use crate::settings::HEAD_BYTES_MAX;
use rustix::cmsg_space;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, recvmsg, sendmsg, shutdown,
    socketpair, sockopt,
};
use throng_core::Listener;

use super::options::optional;

/// The maximum number of bytes that go with a socket: the longest head, and the input behind it.
const BYTES_MAX: usize = 2 * HEAD_BYTES_MAX;

/// The size of the send buffer. A sender that has filled it is refused. Enough for a burst, and far
/// from the limit of descriptors in flight (`RLIMIT_NOFILE`, unix(7)).
const BUFFER_BYTES: usize = 4 << 20;

/// Bits of a packet's first byte.
const ADMIN: u8 = 1;
const PLACE: u8 = 1 << 1;
const AWAITS_PROXY_HEADER: u8 = 1 << 2;
const ADDRESS: u8 = 1 << 3;
const CANARY: u8 = 1 << 4;
const TLS: u8 = 1 << 5;
const NEW: u8 = 1 << 6;
const CHANNEL: u8 = 1 << 7;

/// The bytes of an address, which follows the first byte of a packet that has one. IPv4 addresses
/// are written as IPv6 addresses (RFC 4291 section 2.5.5.2).
const ADDRESS_BYTES: usize = 16;

/// The most bytes before those that were read from the socket.
const LEAD_BYTES_MAX: usize = 1 + ADDRESS_BYTES;

/// The sending end. May be used from any thread.
#[derive(Debug, Clone)]
pub(crate) struct HandoffSender(Arc<OwnedFd>);

/// The receiving end. Only one thread reads it.
#[derive(Debug, Clone)]
pub(crate) struct HandoffReceiver(Arc<OwnedFd>);

/// Opens a channel for sockets.
pub(crate) fn pair() -> io::Result<(HandoffSender, HandoffReceiver)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (sender, receiver) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    // Only a privileged process may exceed `net.core.wmem_max`; any other gets that maximum.
    if sockopt::set_socket_send_buffer_size_force(&sender, BUFFER_BYTES).is_err() {
        optional("SO_SNDBUF", sockopt::set_socket_send_buffer_size(&sender, BUFFER_BYTES));
    }
    Ok((HandoffSender(Arc::new(sender)), HandoffReceiver(Arc::new(receiver))))
}

impl HandoffSender {
    /// Sends `socket` and the bytes that were read from it, which may be none. The caller's own
    /// descriptor stays open.
    pub(crate) fn send(
        &self,
        header: HandoffHeader,
        socket: BorrowedFd<'_>,
        bytes: &[u8],
    ) -> io::Result<()> {
        if bytes.len() > BYTES_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let sockets = [socket];
        control.push(SendAncillaryMessage::ScmRights(&sockets));
        // The first byte also keeps the packet from being empty: a receiver takes an empty one for
        // the end.
        let (lead, length) = lead(header);
        let slices = [IoSlice::new(&lead[..length]), IoSlice::new(bytes)];
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.0, &slices, &mut control, flags)?;
        Ok(())
    }
}

impl HandoffReceiver {
    /// Makes further sends fail. Sockets that were sent before can still be received.
    pub(crate) fn close(&self) -> io::Result<()> {
        Ok(shutdown(&self.0, Shutdown::Read)?)
    }

    /// Receives the next socket and the bytes read from it; `None` while none waits. If this
    /// thread's table has no free descriptor, the kernel has closed the socket, and it is missing.
    pub(crate) fn receive(
        &self,
        buffer: &mut Vec<u8>,
    ) -> io::Result<Option<(HandoffHeader, Option<OwnedFd>)>> {
        buffer.resize(BYTES_MAX + LEAD_BYTES_MAX, 0);
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = match recvmsg(&self.0, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            // Each packet has at least one byte: the channel is closed.
            Ok(received) if received.bytes == 0 => return Ok(None),
            Ok(received) => received.bytes,
            Err(rustix::io::Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        buffer.truncate(received);
        let (header, length) = header_of(buffer);
        buffer.drain(..length);
        let socket = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut sockets) => sockets.next(),
            _ => None,
        });
        Ok(Some((header, socket)))
    }
}

/// Encodes the beginning of a packet. Returns it and its length.
fn lead(header: HandoffHeader) -> ([u8; LEAD_BYTES_MAX], usize) {
    let HandoffHeader { listener, has_place, address, .. } = header;
    let HandoffHeader { awaits_proxy_header, is_canary, is_new, is_tls, is_channel, .. } = header;
    let mut lead = [0; LEAD_BYTES_MAX];
    lead[0] = (u8::from(listener == Listener::Admin) * ADMIN)
        | (u8::from(has_place) * PLACE)
        | (u8::from(awaits_proxy_header) * AWAITS_PROXY_HEADER)
        | (u8::from(is_canary) * CANARY)
        | (u8::from(is_new) * NEW)
        | (u8::from(is_tls) * TLS)
        | (u8::from(is_channel) * CHANNEL)
        | (u8::from(address.is_some()) * ADDRESS);
    let Some(address) = address else { return (lead, 1) };
    let address = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    lead[1..].copy_from_slice(&address.octets());
    (lead, LEAD_BYTES_MAX)
}

/// Decodes the beginning of a packet, which a thread of this process has encoded and which is not
/// empty. Returns its length, too.
fn header_of(packet: &[u8]) -> (HandoffHeader, usize) {
    let facts = packet[0];
    let listener = if facts & ADMIN != 0 { Listener::Admin } else { Listener::Public };
    let octets = packet.get(1..).and_then(<[u8]>::first_chunk::<ADDRESS_BYTES>);
    let octets = octets.filter(|_| facts & ADDRESS != 0);
    let address = octets.map(|octets| IpAddr::V6(Ipv6Addr::from(*octets)).to_canonical());
    let header = HandoffHeader {
        listener,
        has_place: facts & PLACE != 0,
        awaits_proxy_header: facts & AWAITS_PROXY_HEADER != 0,
        is_canary: facts & CANARY != 0,
        is_new: facts & NEW != 0,
        is_tls: facts & TLS != 0,
        is_channel: facts & CHANNEL != 0,
        address,
    };
    (header, if address.is_some() { LEAD_BYTES_MAX } else { 1 })
}

impl AsFd for HandoffReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    const PUBLIC: HandoffHeader = HandoffHeader::between_planes(Listener::Public);

    /// The kernel leaves the socket out if the receiver's table is full.
    #[test]
    fn a_handoff_without_its_socket_still_has_its_header() {
        let (sender, receiver) = pair().unwrap();
        let slices = [IoSlice::new(&[PLACE])];
        sendmsg(&sender.0, &slices, &mut SendAncillaryBuffer::default(), SendFlags::empty())
            .unwrap();
        let (header, socket) = receiver.receive(&mut Vec::new()).unwrap().unwrap();
        assert!(header == HandoffHeader::TO_WORKER && socket.is_none());
    }

    #[test]
    fn what_is_known_about_a_socket_goes_with_it() {
        let (sender, receiver) = pair().unwrap();
        let (_near, far) = UnixStream::pair().unwrap();
        for address in [None, Some("192.0.2.1"), Some("2001:db8::1"), Some("::")] {
            let address = address.map(|text| text.parse().unwrap());
            for awaits_proxy_header in [false, true] {
                let (is_canary, is_tls) = (!awaits_proxy_header, awaits_proxy_header);
                let header =
                    HandoffHeader { awaits_proxy_header, is_canary, is_tls, address, ..PUBLIC };
                let header = HandoffHeader { is_new: is_canary, is_channel: is_tls, ..header };
                for bytes in [&b""[..], b"GET / HTTP/1.1\r\n"] {
                    sender.send(header, far.as_fd(), bytes).unwrap();
                    let mut received = Vec::new();
                    let (there, _) = receiver.receive(&mut received).unwrap().unwrap();
                    assert_eq!((there, &received[..]), (header, bytes));
                }
            }
        }
    }

    #[test]
    fn closing_the_receiver_loses_no_socket_under_way() {
        let (sender, receiver) = pair().unwrap();
        let (_near, far) = UnixStream::pair().unwrap();
        sender.send(PUBLIC, far.as_fd(), b"before").unwrap();
        receiver.close().unwrap();
        sender.send(PUBLIC, far.as_fd(), b"after").unwrap_err();
        let mut bytes = Vec::new();
        assert!(receiver.receive(&mut bytes).unwrap().is_some());
        assert_eq!(bytes, b"before");
        assert!(receiver.receive(&mut bytes).unwrap().is_none());
    }

    #[test]
    fn a_socket_crosses_with_its_bytes() {
        let (sender, receiver) = pair().unwrap();
        let mut bytes = Vec::new();
        assert!(receiver.receive(&mut bytes).unwrap().is_none());
        let (mut near, far) = UnixStream::pair().unwrap();
        sender
            .send(
                HandoffHeader::between_planes(Listener::Admin),
                far.as_fd(),
                b"GET / HTTP/1.1\r\n",
            )
            .unwrap();
        sender.send(HandoffHeader::TO_WORKER, far.as_fd(), b"").unwrap();
        drop(far);
        let (header, socket) = receiver.receive(&mut bytes).unwrap().unwrap();
        assert_eq!(header, HandoffHeader::between_planes(Listener::Admin));
        let mut there = UnixStream::from(socket.unwrap());
        assert_eq!(bytes, b"GET / HTTP/1.1\r\n");
        there.write_all(b"answer").unwrap();
        drop(there);
        let (header, socket) = receiver.receive(&mut bytes).unwrap().unwrap();
        assert_eq!(header, HandoffHeader::TO_WORKER);
        drop(socket);
        assert!(bytes.is_empty());
        let mut answer = String::new();
        near.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "answer");
    }

    #[test]
    fn a_full_channel_refuses_and_loses_nothing() {
        let (sender, receiver) = pair().unwrap();
        let (_near, far) = UnixStream::pair().unwrap();
        let bytes = vec![7; BYTES_MAX];
        let mut sent = 0;
        while sender.send(PUBLIC, far.as_fd(), &bytes).is_ok() {
            sent += 1;
            assert!(sent < 10_000, "there is no limit");
        }
        let too_much = vec![7; BYTES_MAX + 1];
        let refused = sender.send(PUBLIC, far.as_fd(), &too_much);
        assert!(refused.is_err(), "more than one read");
        let mut received = Vec::new();
        for _ in 0..sent {
            assert!(receiver.receive(&mut received).unwrap().is_some());
            assert_eq!(received, bytes);
        }
        assert!(receiver.receive(&mut received).unwrap().is_none());
    }
}
