//! Messages and descriptors over a stream socket, for a thread that may block.
//!
//! A message is the number of bytes of its content (4), its kind (1), how many descriptors travel
//! with it (2), and the content. The descriptors go with its first byte.
//!
//! # Limits
//!
//! * A message has at most [`DESCRIPTORS_MAX`] descriptors, the kernel's own limit for one call,
//!   and [`CONTENT_BYTES_MAX`] bytes.
//! * The kernel limits the descriptors in flight, too (`RLIMIT_NOFILE`, unix(7)). Sending waits
//!   then until the other side has taken some.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType,
};

use crate::message::{Kind, Malformed, Message};

/// Descriptors of one message (`SCM_MAX_FD`).
pub const DESCRIPTORS_MAX: usize = 253;

/// Bytes of one message. The longest is one record: a published message with its head.
pub const CONTENT_BYTES_MAX: usize = 1 << 30;

/// Bytes of a message that is sent without a wait: the kernel takes all of them, or none.
pub const SHORT_BYTES_MAX: usize = 4096;

const HEAD_BYTES: usize = 7;

const READ_BYTES: usize = 64 << 10;

/// How long to wait when too many descriptors are in flight.
const IN_FLIGHT_PAUSE: Duration = Duration::from_micros(200);

/// Why a message could not be sent or received.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The other process has closed its end or died.
    #[error("the other process has ended")]
    Ended,
    /// The other process has not answered in time.
    #[error("the other process did not answer in time")]
    TimedOut,
    /// This table has no room for a descriptor.
    #[error("no descriptor was left for what came")]
    NoDescriptors,
    /// The bytes are no message.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The kernel has refused something else.
    #[error(transparent)]
    System(io::Error),
}

impl From<Errno> for ChannelError {
    fn from(error: Errno) -> ChannelError {
        match error {
            Errno::AGAIN => ChannelError::TimedOut,
            Errno::PIPE | Errno::CONNRESET => ChannelError::Ended,
            error => ChannelError::System(error.into()),
        }
    }
}

/// A message as it came.
#[derive(Debug)]
pub struct Received {
    pub kind: Kind,
    pub content: Vec<u8>,
    /// The descriptors that came with it.
    pub descriptors: Vec<OwnedFd>,
}

/// One end of the connection between two processes.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
    /// Bytes that came and belong to the next messages.
    bytes: Vec<u8>,
    /// Descriptors that came and belong to the next messages.
    descriptors: VecDeque<OwnedFd>,
    /// When waiting ends, whatever the timeout of a call is.
    deadline: Option<Instant>,
}

impl Channel {
    /// Both ends of a new channel.
    pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC;
        Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
    }

    /// A channel over one end. Each call waits at most for `timeout`.
    pub fn new(socket: OwnedFd, timeout: Duration) -> io::Result<Channel> {
        let (bytes, descriptors) = (Vec::new(), VecDeque::new());
        let channel = Channel { socket, bytes, descriptors, deadline: None };
        channel.set_timeout(timeout)?;
        Ok(channel)
    }

    /// Sets how long each call waits.
    pub fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        let timeout = timeout.max(Duration::from_millis(1));
        sockopt::set_socket_timeout(&self.socket, Timeout::Send, Some(timeout))?;
        sockopt::set_socket_timeout(&self.socket, Timeout::Recv, Some(timeout))?;
        Ok(())
    }

    /// Sets when all calls together have waited long enough: a process that takes a little at a
    /// time is in time for each of them. `None` takes that back, but for the timeout: set it again.
    pub fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
    }

    /// Limits the next wait to what is left until the deadline.
    fn limit_wait(&self) -> Result<(), ChannelError> {
        let Some(deadline) = self.deadline else { return Ok(()) };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ChannelError::TimedOut);
        }
        self.set_timeout(left).map_err(ChannelError::System)
    }

    /// Sends a message without descriptors.
    pub fn send(&self, message: &Message) -> Result<(), ChannelError> {
        self.send_with(message.kind(), &message.encode(), &[])
    }

    /// Sends a message with descriptors, of which copies travel.
    pub fn send_with(
        &self,
        kind: Kind,
        content: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        assert!(descriptors.len() <= DESCRIPTORS_MAX && content.len() <= CONTENT_BYTES_MAX);
        let head = head(kind, content, descriptors);
        let mut sent = self.send_first(&head, content, descriptors)?;
        while sent < HEAD_BYTES + content.len() {
            let rest = [
                IoSlice::new(&head[sent.min(HEAD_BYTES)..]),
                IoSlice::new(&content[sent.saturating_sub(HEAD_BYTES)..]),
            ];
            sent += self.send_some(&rest, &mut SendAncillaryBuffer::default())?;
        }
        Ok(())
    }

    /// Sends a message of at most [`SHORT_BYTES_MAX`] bytes with descriptors, if that takes no wait
    /// for the other side. Returns whether it has left.
    pub fn try_send_with(
        &self,
        kind: Kind,
        content: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<bool, ChannelError> {
        assert!(descriptors.len() <= DESCRIPTORS_MAX && content.len() <= SHORT_BYTES_MAX);
        let head = head(kind, content, descriptors);
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let slices = [IoSlice::new(&head), IoSlice::new(content)];
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match rustix::net::sendmsg(&self.socket, &slices, &mut control, flags) {
            // So few bytes leave together.
            Ok(sent) if sent == HEAD_BYTES + content.len() => Ok(true),
            Ok(_) => Err(Malformed("a message was sent in part").into()),
            Err(Errno::AGAIN | Errno::INTR | Errno::TOOMANYREFS | Errno::NOBUFS) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Ends both directions, on all copies of this end.
    pub fn shut(&self) {
        // Fails only if the other end has been closed already.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }

    /// Sends the descriptors with the first bytes. Returns how many bytes those were.
    fn send_first(
        &self,
        head: &[u8],
        content: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<usize, ChannelError> {
        let slices = [IoSlice::new(head), IoSlice::new(content)];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let started = Instant::now();
        loop {
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty() {
                control.push(SendAncillaryMessage::ScmRights(descriptors));
            }
            match self.send_some(&slices, &mut control) {
                Err(ChannelError::System(error))
                    if error.raw_os_error() == Some(Errno::TOOMANYREFS.raw_os_error()) =>
                {
                    let timeout = sockopt::socket_timeout(&self.socket, Timeout::Send);
                    if timeout.ok().flatten().is_some_and(|most| started.elapsed() >= most) {
                        return Err(ChannelError::TimedOut);
                    }
                    std::thread::sleep(IN_FLIGHT_PAUSE);
                }
                sent => return sent,
            }
        }
    }

    fn send_some(
        &self,
        slices: &[IoSlice<'_>],
        control: &mut SendAncillaryBuffer<'_, '_, '_>,
    ) -> Result<usize, ChannelError> {
        self.limit_wait()?;
        loop {
            match rustix::net::sendmsg(&self.socket, slices, control, SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                sent => return Ok(sent?),
            }
        }
    }

    /// Waits for the next message.
    pub fn receive(&mut self) -> Result<Received, ChannelError> {
        self.fill(HEAD_BYTES)?;
        let length = u32::from_le_bytes(std::array::from_fn(|at| self.bytes[at])) as usize;
        let number = self.bytes[4];
        let count = usize::from(u16::from_le_bytes([self.bytes[5], self.bytes[6]]));
        let kind = Kind::numbered(number).ok_or(Malformed("an unknown kind"))?;
        if length > CONTENT_BYTES_MAX || count > DESCRIPTORS_MAX {
            return Err(Malformed("it is too long").into());
        }
        self.fill(HEAD_BYTES + length)?;
        let behind = self.bytes.split_off(HEAD_BYTES + length);
        let mut content = std::mem::replace(&mut self.bytes, behind);
        content.drain(..HEAD_BYTES);
        if self.descriptors.len() < count {
            return Err(ChannelError::NoDescriptors);
        }
        let descriptors = self.descriptors.drain(..count).collect();
        Ok(Received { kind, content, descriptors })
    }

    /// Waits for the next message, which is no state.
    pub fn receive_message(&mut self) -> Result<(Message, Vec<OwnedFd>), ChannelError> {
        let Received { kind, content, descriptors } = self.receive()?;
        Ok((Message::decode(kind, &content)?, descriptors))
    }

    /// Reads until this many bytes are there.
    fn fill(&mut self, count: usize) -> Result<(), ChannelError> {
        while self.bytes.len() < count {
            let before = self.bytes.len();
            self.bytes.resize(before + READ_BYTES, 0);
            let read = self.read_at(before);
            self.bytes.truncate(before + read.as_ref().copied().unwrap_or(0));
            if read? == 0 {
                return Err(ChannelError::Ended);
            }
        }
        Ok(())
    }

    fn read_at(&mut self, at: usize) -> Result<usize, ChannelError> {
        self.limit_wait()?;
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(&mut self.bytes[at..])];
        let received = loop {
            let flags = RecvFlags::CMSG_CLOEXEC;
            match rustix::net::recvmsg(&self.socket, &mut slices, &mut control, flags) {
                Err(Errno::INTR) => {}
                received => break received?,
            }
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(ChannelError::NoDescriptors);
        }
        Ok(received.bytes)
    }
}

fn head(kind: Kind, content: &[u8], descriptors: &[BorrowedFd<'_>]) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..4].copy_from_slice(&(content.len() as u32).to_le_bytes());
    head[4] = kind as u8;
    head[5..].copy_from_slice(&(descriptors.len() as u16).to_le_bytes());
    head
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn pair() -> (Channel, Channel) {
        let (near, far) = Channel::pair().unwrap();
        let long = Duration::from_secs(60);
        (Channel::new(near, long).unwrap(), Channel::new(far, long).unwrap())
    }

    #[test]
    fn many_descriptors_come_with_their_messages() {
        let (near, mut far) = pair();
        let sender = std::thread::spawn(move || {
            for number in 0..20u8 {
                let pairs: Vec<_> =
                    (0..DESCRIPTORS_MAX.min(40)).map(|_| UnixStream::pair().unwrap()).collect();
                let far: Vec<_> = pairs.iter().map(|(_, far)| far.as_fd()).collect();
                near.send_with(Kind::State, &vec![number; 100_000], &far).unwrap();
                for (near, _) in &pairs {
                    (&*near).write_all(&[number]).unwrap();
                }
            }
        });
        for number in 0..20u8 {
            let received = far.receive().unwrap();
            assert_eq!(received.content, vec![number; 100_000]);
            assert_eq!(received.descriptors.len(), 40);
            for descriptor in received.descriptors {
                let mut byte = [0];
                UnixStream::from(descriptor).read_exact(&mut byte).unwrap();
                assert_eq!(byte, [number]);
            }
        }
        sender.join().unwrap();
        assert!(matches!(far.receive(), Err(ChannelError::Ended)));
    }

    #[test]
    fn a_message_without_room_is_not_sent_and_does_not_wait() {
        let (near, mut far) = pair();
        let (socket, _other) = UnixStream::pair().unwrap();
        let descriptors = vec![socket.as_fd(); DESCRIPTORS_MAX];
        let mut sent = 0;
        let content = |number: usize| vec![number as u8; SHORT_BYTES_MAX];
        while near.try_send_with(Kind::Ahead, &content(sent), &descriptors).unwrap() {
            sent += 1;
        }
        assert!(sent > 1);
        for number in 0..sent {
            let received = far.receive().unwrap();
            assert_eq!((received.kind, received.content), (Kind::Ahead, content(number)));
            assert_eq!(received.descriptors.len(), DESCRIPTORS_MAX);
        }
        assert!(near.try_send_with(Kind::Ahead, &[], &[]).unwrap(), "there is room again");
        assert!(far.receive().unwrap().content.is_empty());
        near.shut();
        assert!(matches!(far.receive(), Err(ChannelError::Ended)));
    }

    #[test]
    fn messages_of_any_length_keep_their_borders() {
        let (near, mut far) = pair();
        let lengths = [0, 1, READ_BYTES - HEAD_BYTES, READ_BYTES, 3 * READ_BYTES + 1, 2];
        let sender = std::thread::spawn(move || {
            for length in lengths {
                near.send_with(Kind::State, &vec![length as u8; length], &[]).unwrap();
            }
            near.send(&Message::Commit).unwrap();
        });
        for length in lengths {
            assert_eq!(far.receive().unwrap().content, vec![length as u8; length]);
        }
        assert_eq!(far.receive_message().unwrap().0, Message::Commit);
        sender.join().unwrap();
    }

    #[test]
    fn a_silent_process_is_not_waited_for_forever() {
        let (mut near, _far) = pair();
        near.set_timeout(Duration::from_millis(1)).unwrap();
        assert!(matches!(near.receive(), Err(ChannelError::TimedOut)));
        let much = vec![0; 16 << 20];
        assert!(matches!(near.send_with(Kind::State, &much, &[]), Err(ChannelError::TimedOut)));
    }

    #[test]
    fn a_slow_process_is_awaited_until_the_deadline() {
        let (mut near, far) = pair();
        let mut far = UnixStream::from(far.socket);
        near.set_deadline(Some(Instant::now() + Duration::from_millis(200)));
        std::thread::scope(|scope| {
            // Each read makes room for a part of a message.
            scope.spawn(move || while far.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {});
            let sent = loop {
                let sent = near.send_with(Kind::State, &[0; 64 << 10], &[]);
                if sent.is_err() {
                    break sent;
                }
            };
            assert!(matches!(sent, Err(ChannelError::TimedOut)), "{sent:?}");
            assert!(matches!(near.receive(), Err(ChannelError::TimedOut)));
            drop(near);
        });
    }

    #[test]
    fn bytes_that_are_no_message_are_refused() {
        let (near, mut far) = pair();
        rustix::net::send(&near.socket, &[1, 0, 0, 0, 99, 0, 0, 0], SendFlags::empty()).unwrap();
        assert!(matches!(far.receive(), Err(ChannelError::Malformed(_))));
        let (near, mut far) = pair();
        rustix::net::send(&near.socket, &[0xff; 16], SendFlags::empty()).unwrap();
        assert!(matches!(far.receive(), Err(ChannelError::Malformed(_))));
    }
}
