//! Frozen state as messages: many records in one, each with its length (4) before it. A record
//! whose socket travels with it has the highest bit of its length set; one whose socket has come
//! ahead, the second highest.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use crate::channel::{Channel, ChannelError, DESCRIPTORS_MAX};
use crate::message::{Kind, Malformed};

const HAS_SOCKET: u32 = 1 << 31;
const IS_AHEAD: u32 = 1 << 30;
const LENGTH: u32 = IS_AHEAD - 1;

/// A message with records is sent when it is this long.
const BATCH_BYTES: usize = 64 << 10;

/// Sockets that travel together at most. A worker that takes them over may have copies still of as
/// many connections as it can hold, and has few descriptors besides: it closes those without a
/// record by and by, as it reads.
const BATCH_SOCKETS: usize = 64;
const _: () = assert!(BATCH_SOCKETS <= DESCRIPTORS_MAX);

/// Where the socket of a record is.
#[derive(Debug)]
pub enum Socket {
    /// The record has none.
    None,
    /// It has come with the record.
    Here(OwnedFd),
    /// It has come before.
    Ahead,
}

/// Sends records without sockets while they are made, so that no copy of all of them is needed.
#[derive(Debug)]
pub struct RecordStream<'c> {
    channel: &'c Channel,
    /// Records that are not sent yet.
    bytes: Vec<u8>,
}

impl<'c> RecordStream<'c> {
    /// One that has sent nothing.
    pub fn new(channel: &'c Channel) -> RecordStream<'c> {
        RecordStream { channel, bytes: Vec::with_capacity(2 * BATCH_BYTES) }
    }

    /// Sends a record, now or with later ones.
    pub fn push(&mut self, record: &[u8]) -> Result<(), ChannelError> {
        debug_assert!(record.len() <= LENGTH as usize);
        self.bytes.extend_from_slice(&(record.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(record);
        if self.bytes.len() >= BATCH_BYTES { self.send() } else { Ok(()) }
    }

    /// Sends what is left, and a message without records, which is the end.
    pub fn finish(mut self) -> Result<(), ChannelError> {
        if !self.bytes.is_empty() {
            self.send()?;
        }
        self.channel.send_with(Kind::State, &[], &[])
    }

    fn send(&mut self) -> Result<(), ChannelError> {
        self.channel.send_with(Kind::State, &self.bytes, &[])?;
        self.bytes.clear();
        Ok(())
    }
}

/// Frozen state that is complete, with the sockets that belong to it.
#[derive(Debug, Default)]
pub struct Frozen {
    /// The records, each behind its length.
    bytes: Vec<u8>,
    sockets: Vec<OwnedFd>,
}

impl Frozen {
    /// Adds a record. Its socket stays here, if the other process has a copy already.
    pub fn push(&mut self, record: &[u8], socket: Option<OwnedFd>, is_ahead: bool) {
        debug_assert!(record.len() <= LENGTH as usize && (socket.is_some() || !is_ahead));
        let flag = match socket {
            None => 0,
            Some(_) if is_ahead => IS_AHEAD,
            Some(_) => HAS_SOCKET,
        };
        self.bytes.extend_from_slice(&(record.len() as u32 | flag).to_le_bytes());
        self.bytes.extend_from_slice(record);
        self.sockets.extend(socket);
    }

    /// Bytes that it takes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether it has no record.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Sends all records, and copies of the sockets.
    pub fn send(&self, channel: &Channel) -> Result<(), ChannelError> {
        let mut sockets = self.sockets.iter();
        let mut batch: Vec<BorrowedFd<'_>> = Vec::with_capacity(BATCH_SOCKETS);
        let (mut from, mut at) = (0, 0);
        while at < self.bytes.len() {
            let (length, flags) = length_at(&self.bytes, at);
            at += 4 + length;
            let socket = if flags == 0 { None } else { sockets.next() };
            if flags & HAS_SOCKET != 0 {
                batch.extend(socket.map(|socket| socket.as_fd()));
            }
            let is_full = batch.len() == BATCH_SOCKETS || at - from >= BATCH_BYTES;
            if is_full || at == self.bytes.len() {
                channel.send_with(Kind::State, &self.bytes[from..at], &batch)?;
                batch.clear();
                from = at;
            }
        }
        Ok(())
    }

    /// Reads all records again, each with its socket.
    pub fn into_records<E>(
        self,
        mut each: impl FnMut(&[u8], Option<OwnedFd>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut sockets = self.sockets.into_iter();
        let mut at = 0;
        while at < self.bytes.len() {
            let (length, flags) = length_at(&self.bytes, at);
            let socket = if flags == 0 { None } else { sockets.next() };
            each(&self.bytes[at + 4..at + 4 + length], socket)?;
            at += 4 + length;
        }
        Ok(())
    }
}

/// The length of a record that was pushed, and its flags; without any it has no socket.
fn length_at(bytes: &[u8], at: usize) -> (usize, u32) {
    let length = u32::from_le_bytes(std::array::from_fn(|n| bytes[at + n]));
    ((length & LENGTH) as usize, length & !LENGTH)
}

/// Reads the records of one message. Stops at the first error of `each`.
pub fn read<E: From<Malformed>>(
    content: &[u8],
    descriptors: Vec<OwnedFd>,
    mut each: impl FnMut(&[u8], Socket) -> Result<(), E>,
) -> Result<(), E> {
    let mut rest = content;
    let mut descriptors = descriptors.into_iter();
    while !rest.is_empty() {
        let Some((length, behind)) = rest.split_first_chunk() else {
            return Err(Malformed("a record").into());
        };
        let length = u32::from_le_bytes(*length);
        let record = behind.split_at_checked((length & LENGTH) as usize);
        let Some((record, behind)) = record else { return Err(Malformed("a record").into()) };
        let socket = match length & !LENGTH {
            HAS_SOCKET => descriptors.next().map_or(Socket::None, Socket::Here),
            IS_AHEAD => Socket::Ahead,
            _ => Socket::None,
        };
        each(record, socket)?;
        rest = behind;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn records_keep_their_sockets_on_the_way_and_at_home() {
        let mut frozen = Frozen::default();
        let mut near = Vec::new();
        for number in 0..600u32 {
            let socket = (!number.is_multiple_of(3)).then(|| {
                let (mut mine, its) = UnixStream::pair().unwrap();
                mine.write_all(&number.to_le_bytes()).unwrap();
                near.push(mine);
                OwnedFd::from(its)
            });
            // Copies of some have come before.
            frozen.push(&vec![7; number as usize * 5], socket, number % 3 == 2);
        }
        let (sender, receiver) = Channel::pair().unwrap();
        let minute = Duration::from_secs(60);
        let sender = Channel::new(sender, minute).unwrap();
        let mut receiver = Channel::new(receiver, minute).unwrap();
        let (mut count, expected) = (0u32, 600);
        let mut check =
            |count: &mut u32, record: &[u8], socket: Option<OwnedFd>, is_whole: bool| {
                assert_eq!(record.len(), *count as usize * 5);
                let is_here = !count.is_multiple_of(3) && (is_whole || *count % 3 != 2);
                assert_eq!(socket.is_some(), is_here);
                if let Some(socket) = socket {
                    let mut bytes = [0; 4];
                    UnixStream::from(socket).read_exact(&mut bytes).unwrap();
                    assert_eq!(u32::from_le_bytes(bytes), *count);
                    // For the copy that is read next. The last copy is closed by now.
                    let _ = near[(*count - *count / 3 - 1) as usize].write_all(&bytes);
                }
                *count += 1;
                Ok::<(), Malformed>(())
            };
        std::thread::scope(|scope| {
            scope.spawn(|| frozen.send(&sender).unwrap());
            while count < expected {
                let received = receiver.receive().unwrap();
                read(&received.content, received.descriptors, |record, socket| {
                    let socket = match socket {
                        Socket::Here(socket) => Some(socket),
                        Socket::Ahead => {
                            assert_eq!(count % 3, 2);
                            None
                        }
                        Socket::None => None,
                    };
                    check(&mut count, record, socket, false)
                })
                .unwrap();
            }
        });
        let mut again = 0;
        frozen.into_records(|record, socket| check(&mut again, record, socket, true)).unwrap();
        assert_eq!(again, expected);
    }

    #[test]
    fn records_come_while_they_are_made() {
        let (sender, receiver) = Channel::pair().unwrap();
        let minute = Duration::from_secs(60);
        let sender = Channel::new(sender, minute).unwrap();
        let mut receiver = Channel::new(receiver, minute).unwrap();
        let lengths = [0, 1, BATCH_BYTES, 7, 3 * BATCH_BYTES, 5, BATCH_BYTES - 4, 9];
        let mut received = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut records = RecordStream::new(&sender);
                for (number, length) in lengths.into_iter().enumerate() {
                    records.push(&vec![number as u8; length]).unwrap();
                }
                records.finish().unwrap();
            });
            loop {
                let message = receiver.receive().unwrap();
                if message.content.is_empty() {
                    break;
                }
                let each = |record: &[u8], _: Socket| {
                    assert!(record.iter().all(|&byte| usize::from(byte) == received.len()));
                    received.push(record.len());
                    Ok::<(), Malformed>(())
                };
                read(&message.content, Vec::new(), each).unwrap();
            }
        });
        assert_eq!(received, lengths);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = read(&bytes, Vec::new(), |_, _| Ok::<(), Malformed>(()));
        }
    }
}
