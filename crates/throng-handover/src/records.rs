//! Frozen state as records, each with its length (4) before it. A record whose socket travels with
//! it has the highest bit of its length set; one whose socket has come ahead, the second highest.
//!
//! Records come in messages, many in one. Workers' records are in memory that both processes share,
//! if there are many: the other process looks at all of them before it makes anything of them.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use crate::channel::{Channel, ChannelError, DESCRIPTORS_MAX, Received};
use crate::memory::StateMemory;
use crate::message::{Kind, Malformed, OF_SOCKETS};

const HAS_SOCKET: u32 = 1 << 31;
const IS_AHEAD: u32 = 1 << 30;
const LENGTH: u32 = IS_AHEAD - 1;

/// A message with records is sent when it is this long, and fewer bytes need no memory that is
/// shared.
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
    /// A stream that has sent nothing.
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
    /// The records but for the last ones, if there are many.
    memory: Option<StateMemory>,
    /// Why no more of them are there.
    failure: Option<io::Error>,
    rest: Vec<u8>,
    sockets: Vec<OwnedFd>,
    /// The places of those sockets that the other process has no copy of.
    missing: Vec<u32>,
    /// The number of sockets whose records are in the memory.
    in_memory: usize,
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
        self.rest.extend_from_slice(&(record.len() as u32 | flag).to_le_bytes());
        self.rest.extend_from_slice(record);
        if flag == HAS_SOCKET {
            self.missing.push(self.sockets.len() as u32);
        }
        self.sockets.extend(socket);
        if self.rest.len() >= BATCH_BYTES {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if self.failure.is_some() {
            return;
        }
        let flushed = match &mut self.memory {
            Some(memory) => memory.append(&self.rest),
            none => StateMemory::new().and_then(|new| none.insert(new).append(&self.rest)),
        };
        match flushed {
            Ok(()) => {
                self.rest.clear();
                self.in_memory = self.sockets.len();
            }
            Err(error) => self.failure = Some(error),
        }
    }

    /// Call it after the last record. Returns why some are not in memory that the other process
    /// shares, but have to be copied.
    pub fn finish(&mut self) -> Option<&io::Error> {
        if self.memory.is_some() {
            self.flush();
        }
        self.rest.shrink_to_fit();
        self.failure.as_ref()
    }

    /// Sends all records, and copies of the sockets.
    pub fn send(&self, channel: &Channel) -> Result<(), ChannelError> {
        if let Some(memory) = &self.memory {
            let length = memory.len().to_le_bytes();
            channel.send_with(Kind::Memory, &length, &[memory.as_fd()])?;
        }
        let missing = self.missing.iter().map(|&place| place as usize);
        let missing: Vec<usize> = missing.take_while(|&place| place < self.in_memory).collect();
        for batch in missing.chunks(BATCH_SOCKETS) {
            let batch: Vec<_> = batch.iter().map(|&place| self.sockets[place].as_fd()).collect();
            channel.send_with(Kind::Memory, OF_SOCKETS, &batch)?;
        }
        self.send_rest(channel)
    }

    fn send_rest(&self, channel: &Channel) -> Result<(), ChannelError> {
        let mut sockets = self.sockets[self.in_memory..].iter();
        let mut batch: Vec<BorrowedFd<'_>> = Vec::with_capacity(BATCH_SOCKETS);
        let (mut from, mut at) = (0, 0);
        while let Some((record, flags)) = first_record(&self.rest[at..]) {
            at += 4 + record.len();
            let socket = if flags == 0 { None } else { sockets.next() };
            if flags & HAS_SOCKET != 0 {
                batch.extend(socket.map(|socket| socket.as_fd()));
            }
            let is_full = batch.len() == BATCH_SOCKETS || at - from >= BATCH_BYTES;
            if is_full || at == self.rest.len() {
                channel.send_with(Kind::State, &self.rest[from..at], &batch)?;
                batch.clear();
                from = at;
            }
        }
        Ok(())
    }

    /// Reads all records again, each with its socket.
    pub fn into_records<E: From<ChannelError> + From<Malformed>>(
        self,
        each: impl FnMut(&[u8], Option<OwnedFd>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Frozen { memory, rest, sockets, .. } = self;
        last_read(memory, &rest, sockets.into_iter().map(Some), each)
    }
}

/// Frozen state of another process, which was looked at and is still to be read.
#[derive(Debug, Default)]
pub struct Passed {
    memory: Option<StateMemory>,
    rest: Vec<u8>,
    /// Those that were kept, in the order of their records.
    sockets: Vec<Option<OwnedFd>>,
}

impl Passed {
    /// Receives what [`Frozen::send`] sends, up to a message without content. `check` looks at each
    /// record as it comes, and returns the socket that is to be kept with it.
    pub fn receive(
        channel: &mut Channel,
        mut check: impl FnMut(&[u8], Socket) -> Option<OwnedFd>,
    ) -> Result<Passed, ChannelError> {
        let (mut passed, mut sockets) = (Passed::default(), Vec::new());
        let mut add = |record: &[u8], flags: u32, socket| {
            let kept = check(record, socket);
            if flags != 0 {
                sockets.push(kept);
            }
        };
        let mut received = channel.receive()?;
        if received.kind == Kind::Memory {
            let mut memory = received.into_memory()?;
            let mut came = VecDeque::new();
            each_in_memory(&mut memory, false, |record, flags| {
                let socket = match flags {
                    HAS_SOCKET => Socket::Here(next_socket(channel, &mut came)?),
                    IS_AHEAD => Socket::Ahead,
                    _ => Socket::None,
                };
                add(record, flags, socket);
                Ok::<(), ChannelError>(())
            })?;
            if !came.is_empty() {
                return Err(Malformed("sockets without records").into());
            }
            passed.memory = Some(memory);
            received = channel.receive()?;
        }
        loop {
            let Received { kind, content, descriptors } = received;
            if kind != Kind::State {
                return Err(Malformed("a message that is no state").into());
            }
            if content.is_empty() {
                break;
            }
            let mut descriptors = descriptors.into_iter();
            each_record(&content, |record, flags| {
                add(record, flags, socket_of(flags, &mut descriptors));
                Ok::<(), ChannelError>(())
            })?;
            passed.rest.extend_from_slice(&content);
            received = channel.receive()?;
        }
        passed.sockets = sockets;
        Ok(passed)
    }

    /// Bytes of all records.
    pub fn len(&self) -> u64 {
        self.memory.as_ref().map_or(0, StateMemory::len) + self.rest.len() as u64
    }

    /// True if there is no record.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads all records, each with the socket that was kept.
    pub fn into_records<E: From<ChannelError> + From<Malformed>>(
        self,
        each: impl FnMut(&[u8], Option<OwnedFd>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Passed { memory, rest, sockets } = self;
        last_read(memory, &rest, sockets.into_iter(), each)
    }
}

impl Received {
    /// The memory that came with the message.
    fn into_memory(self) -> Result<StateMemory, Malformed> {
        let length = self.content.try_into().map(u64::from_le_bytes);
        let memory = <[OwnedFd; 1]>::try_from(self.descriptors);
        match (length, memory) {
            (Ok(length), Ok([memory])) => StateMemory::passed(memory, length),
            _ => Err(Malformed("memory with state")),
        }
    }
}

/// The next socket of a record in memory. Few come at a time: there may be no room for all of them
/// before others are closed.
fn next_socket(
    channel: &mut Channel,
    came: &mut VecDeque<OwnedFd>,
) -> Result<OwnedFd, ChannelError> {
    if came.is_empty() {
        let Received { kind, descriptors, .. } = channel.receive()?;
        if kind != Kind::Memory {
            return Err(Malformed("a socket lacks").into());
        }
        came.extend(descriptors);
    }
    came.pop_front().ok_or(Malformed("a socket lacks").into())
}

/// Reads all records and gives the memory back behind them.
fn last_read<E: From<ChannelError> + From<Malformed>>(
    memory: Option<StateMemory>,
    rest: &[u8],
    mut sockets: impl Iterator<Item = Option<OwnedFd>>,
    mut each: impl FnMut(&[u8], Option<OwnedFd>) -> Result<(), E>,
) -> Result<(), E> {
    let mut each = |record: &[u8], flags| {
        let socket = if flags == 0 { None } else { sockets.next().flatten() };
        each(record, socket)
    };
    if let Some(mut memory) = memory {
        each_in_memory(&mut memory, true, &mut each)?;
    }
    each_record(rest, each)
}

/// Reads the records in memory, and gives that back behind them if it `is_last`.
fn each_in_memory<E: From<ChannelError> + From<Malformed>>(
    memory: &mut StateMemory,
    is_last: bool,
    mut each: impl FnMut(&[u8], u32) -> Result<(), E>,
) -> Result<(), E> {
    // The bytes from `from` on that were read from the memory.
    let (mut bytes, mut from) = (Vec::with_capacity(2 * BATCH_BYTES), 0);
    loop {
        let end = from + bytes.len() as u64;
        memory.read(end, BATCH_BYTES, &mut bytes).map_err(ChannelError::System)?;
        let mut at = 0;
        while let Some((record, flags)) = first_record(&bytes[at..]) {
            each(record, flags)?;
            at += 4 + record.len();
        }
        if from + bytes.len() as u64 == end {
            // Nothing is behind it.
            return if bytes.is_empty() { Ok(()) } else { Err(Malformed("a record").into()) };
        }
        bytes.drain(..at);
        from += at as u64;
        if is_last {
            memory.release(from);
        }
    }
}
/// Reads the records of one message. Stops at the first error of `each`.
pub fn read<E: From<Malformed>>(
    content: &[u8],
    descriptors: Vec<OwnedFd>,
    mut each: impl FnMut(&[u8], Socket) -> Result<(), E>,
) -> Result<(), E> {
    let mut descriptors = descriptors.into_iter();
    each_record(content, |record, flags| each(record, socket_of(flags, &mut descriptors)))
}

/// Where the socket of a record with these flags is, which has come with the descriptors if it has
/// not come ahead.
fn socket_of(flags: u32, descriptors: &mut impl Iterator<Item = OwnedFd>) -> Socket {
    match flags {
        HAS_SOCKET => descriptors.next().map_or(Socket::None, Socket::Here),
        IS_AHEAD => Socket::Ahead,
        _ => Socket::None,
    }
}

/// Reads records up to the end of the bytes.
fn each_record<E: From<Malformed>>(
    bytes: &[u8],
    mut each: impl FnMut(&[u8], u32) -> Result<(), E>,
) -> Result<(), E> {
    let mut at = 0;
    while let Some((record, flags)) = first_record(&bytes[at..]) {
        each(record, flags)?;
        at += 4 + record.len();
    }
    if at == bytes.len() { Ok(()) } else { Err(Malformed("a record").into()) }
}

/// The first record and its flags; without any it has no socket. `None` if not all of it is there.
fn first_record(bytes: &[u8]) -> Option<(&[u8], u32)> {
    let (length, behind) = bytes.split_first_chunk()?;
    let length = u32::from_le_bytes(*length);
    let (record, _) = behind.split_at_checked((length & LENGTH) as usize)?;
    Some((record, length & !LENGTH))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn channels() -> (Channel, Channel) {
        let (sender, receiver) = Channel::pair().unwrap();
        let minute = Duration::from_secs(60);
        (Channel::new(sender, minute).unwrap(), Channel::new(receiver, minute).unwrap())
    }

    /// Records of which each is as long as its number, times `scale`. Two of three have sockets,
    /// and copies of every other one of these have come before. Each socket can be read once, for
    /// the number of its record; what is written to its peer can be read again.
    fn frozen(count: u32, scale: usize, fails_at: Option<u32>) -> (Frozen, Vec<UnixStream>) {
        let (mut frozen, mut peers) = (Frozen::default(), Vec::new());
        for number in 0..count {
            let socket = (!number.is_multiple_of(3)).then(|| {
                let (mut mine, its) = UnixStream::pair().unwrap();
                mine.write_all(&number.to_le_bytes()).unwrap();
                peers.push(mine);
                OwnedFd::from(its)
            });
            if fails_at == Some(number) {
                frozen.failure = Some(io::ErrorKind::StorageFull.into());
            }
            frozen.push(&vec![number as u8; number as usize * scale], socket, number % 3 == 2);
        }
        (frozen, peers)
    }

    fn number_of(socket: OwnedFd) -> u32 {
        let mut bytes = [0; 4];
        UnixStream::from(socket).read_exact(&mut bytes).unwrap();
        u32::from_le_bytes(bytes)
    }

    /// Sends records, looks at them, reads them there and at home. Copies that came before are not
    /// kept.
    fn pass(count: u32, scale: usize, fails_at: Option<u32>) -> Frozen {
        let (mut frozen, peers) = frozen(count, scale, fails_at);
        assert_eq!(frozen.finish().is_some(), fails_at.is_some());
        let (sender, mut receiver) = channels();
        let is_it = |number: u32, record: &[u8]| {
            record.len() == number as usize * scale && record.iter().all(|it| *it == number as u8)
        };
        let mut next = 0;
        let passed = std::thread::scope(|scope| {
            scope.spawn(|| {
                frozen.send(&sender).unwrap();
                sender.send_with(Kind::State, &[], &[]).unwrap();
            });
            Passed::receive(&mut receiver, |record, socket| {
                assert!(is_it(next, record), "{next}");
                next += 1;
                match socket {
                    Socket::None => assert!((next - 1).is_multiple_of(3)),
                    Socket::Ahead => assert_eq!((next - 1) % 3, 2),
                    Socket::Here(socket) => return Some(socket),
                }
                None
            })
            .unwrap()
        });
        assert_eq!(next, count);
        assert!(passed.len() > u64::from(count) * 4 && !passed.is_empty());
        let mut next = 0;
        let read = passed.into_records(|record, socket| {
            assert!(is_it(next, record), "{next}");
            assert_eq!(socket.is_some(), next % 3 == 1);
            socket.into_iter().for_each(|socket| assert_eq!(number_of(socket), next));
            next += 1;
            Ok::<(), ChannelError>(())
        });
        read.unwrap();
        assert_eq!(next, count);
        drop(peers);
        frozen
    }

    #[test]
    fn records_are_looked_at_and_read_with_their_sockets() {
        let few = pass(40, 5, None);
        assert!(few.memory.is_none(), "few bytes need no memory that is shared");
        let many = pass(600, 40, None);
        assert!(many.memory.is_some() && many.rest.is_empty());
        assert!(many.missing.len() > BATCH_SOCKETS, "more than come at a time");
        // The longest ones are longer than what is read at a time.
        pass(300, 1_000, None);
    }

    #[test]
    fn what_does_not_fit_into_memory_is_copied() {
        assert!(pass(300, 40, Some(0)).memory.is_none());
        let part = pass(600, 40, Some(400));
        assert!(part.memory.is_some() && part.rest.len() > BATCH_BYTES);
    }

    #[test]
    fn records_can_be_read_again_at_home() {
        let (mut frozen, peers) = frozen(600, 40, Some(500));
        frozen.finish();
        let mut next = 0u32;
        let read = frozen.into_records(|record, socket| {
            assert_eq!(record.len(), next as usize * 40);
            assert_eq!(socket.is_some(), !next.is_multiple_of(3));
            socket.into_iter().for_each(|socket| assert_eq!(number_of(socket), next));
            next += 1;
            Ok::<(), ChannelError>(())
        });
        read.unwrap();
        assert_eq!(next, 600);
        drop(peers);
    }

    /// Receives records that another process has damaged.
    fn receive(send: impl FnOnce(&Channel) + Send) -> Result<Passed, ChannelError> {
        let (sender, mut receiver) = channels();
        std::thread::scope(|scope| {
            // Sending fails if what came before was refused.
            scope.spawn(move || send(&sender));
            Passed::receive(&mut receiver, |_, _| None)
        })
    }

    #[test]
    fn damaged_memory_is_refused() {
        let malformed = |passed: Result<Passed, ChannelError>| match passed {
            Err(ChannelError::Malformed(Malformed(what))) => what,
            other => panic!("{other:?}"),
        };
        let memory = |bytes: &[u8]| {
            let mut memory = StateMemory::new().unwrap();
            memory.append(bytes).unwrap();
            memory
        };
        let send = |memory: &StateMemory, length: u64, channel: &Channel| {
            channel.send_with(Kind::Memory, &length.to_le_bytes(), &[memory.as_fd()]).unwrap();
        };
        let early = memory(&[9, 0, 0, 0, 1]);
        assert_eq!(malformed(receive(|channel| send(&early, 5, channel))), "a record");
        let short = receive(|channel| send(&early, 6, channel));
        assert_eq!(malformed(short), "memory with state");
        let without = receive(|channel| channel.send_with(Kind::Memory, &[0; 8], &[]).unwrap());
        assert_eq!(malformed(without), "memory with state");
        let lacks = memory(&[1, 0, 0, 0x80, 1]);
        let lacks = receive(|channel| {
            send(&lacks, 5, channel);
            let _ = channel.send_with(Kind::State, &[], &[]);
        });
        assert_eq!(malformed(lacks), "a socket lacks");
        let beyond = memory(&[1, 0, 0, 0x80, 1]);
        let beyond = receive(|channel| {
            send(&beyond, 5, channel);
            let two = [beyond.as_fd(), beyond.as_fd()];
            let _ = channel.send_with(Kind::Memory, OF_SOCKETS, &two);
        });
        assert_eq!(malformed(beyond), "sockets without records");
    }

    #[test]
    fn records_come_while_they_are_made() {
        let (sender, mut receiver) = channels();
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
