//! The messages as bytes: a kind, and what belongs to it.
//!
//! Integers are little-endian; a text has its length before it, in four bytes. A change of a
//! message raises [`PROTOCOL`].

/// The version of the messages.
pub const PROTOCOL: u16 = 1;

/// Precedes the version in [`Message::Hello`], and with a slash in what the new process is told.
/// Builds from before version 0.1.0, which counted otherwise, had nothing there.
pub const MARK: &str = "throng";

/// The content of a message with a worker's channel.
pub const OF_WORKER: &[u8] = b"worker";

/// The content of a message with sockets of records in memory.
pub(crate) const OF_SOCKETS: &[u8] = b"sockets";

/// The longest reason of a refusal that is read, in bytes.
const REASON_BYTES_MAX: usize = 4096;

/// The kinds of messages, by the number in front of each. A number is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The new process has started: [`Message::Hello`].
    Hello = 1,
    /// The running one goes along: [`Message::Welcome`].
    Welcome = 2,
    /// The new process has its settings: [`Message::Ready`].
    Ready = 3,
    /// The new process cannot take over: [`Message::Refused`].
    Refused = 4,
    /// State follows: [`records`](crate::records), sockets, a worker's channel.
    State = 5,
    /// The new process has everything: [`Message::HasAll`].
    HasAll = 6,
    /// The new process is to serve: [`Message::Commit`].
    Commit = 7,
    /// The new process serves: [`Message::Serves`].
    Serves = 8,
    /// What comes ahead, while the running one serves. On the first channel: [`OF_WORKER`] with a
    /// worker's channel; a descriptor of sealed memory with logs; without one, that was all. On a
    /// worker's: the tokens of connections (8 each) with copies of their sockets; without any, that
    /// was all.
    Ahead = 9,
    /// The new process has what came ahead: [`Message::HasAhead`].
    HasAhead = 10,
    /// State of a worker in memory that both processes share: the length of the
    /// [`records`](crate::records) (8), with the memory. Then, with `sockets` as content, sockets
    /// of these records, in their order.
    Memory = 11,
}

impl Kind {
    /// All of them, in the order of their numbers.
    pub const ALL: [Kind; 11] = [
        Kind::Hello,
        Kind::Welcome,
        Kind::Ready,
        Kind::Refused,
        Kind::State,
        Kind::HasAll,
        Kind::Commit,
        Kind::Serves,
        Kind::Ahead,
        Kind::HasAhead,
        Kind::Memory,
    ];

    /// The kind with this number.
    pub fn numbered(number: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|&kind| kind as u8 == number)
    }
}

/// A message other than state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// The successor has started. It reads frozen state up to this version.
    Hello {
        /// The [`PROTOCOL`] of the new process.
        protocol: u16,
        /// The newest version of frozen state that it reads.
        frozen: u16,
        build: String,
    },
    /// The predecessor goes along. Descriptors travel beside it, as `listeners` says.
    Welcome(Welcome),
    /// The successor has loaded its settings, and waits for the state.
    Ready,
    /// The successor cannot take over, and ends.
    Refused(String),
    /// The successor has all of the state, and can go on with it.
    HasAll,
    /// The successor serves from now on.
    Commit,
    /// The successor serves: its workers began so many microseconds after it was told to.
    Serves(u64),
    /// The successor has checked what came ahead.
    HasAhead,
}

/// Facts that the successor needs before it prepares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// The number of workers. The successor has as many, or more.
    pub workers: u32,
    /// The seed of the tags of sessions.
    pub tag_seed: [u8; 16],
    /// The kinds of the descriptors beside the message, in their order.
    pub listeners: Vec<DescriptorKind>,
    /// Keys of session tickets, as the crate that has them writes them.
    pub ticket_keys: Vec<u8>,
}

/// The kind of a descriptor beside [`Message::Welcome`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum DescriptorKind {
    /// Keeps the port of `listen`; workers' listeners travel with the workers.
    Reservation = 1,
    /// Keeps the port of `tls-listen`.
    TlsReservation = 2,
    /// Listens on `listen` for all workers: the service manager has opened it.
    Passed = 3,
    /// Listens on `admin-listen`.
    Admin = 4,
    /// Listens on `redirect-http`.
    Redirect = 5,
    /// No listener: has the lock of the data directory.
    Data = 6,
    /// No listener: a pipe with the keys of `--dev`.
    DevKeys = 7,
    /// No listener: a pipe with the name of the node, if the server is one of several.
    Node = 8,
}

impl DescriptorKind {
    const ALL: [DescriptorKind; 8] = [
        DescriptorKind::Reservation,
        DescriptorKind::TlsReservation,
        DescriptorKind::Passed,
        DescriptorKind::Admin,
        DescriptorKind::Redirect,
        DescriptorKind::Data,
        DescriptorKind::DevKeys,
        DescriptorKind::Node,
    ];
}

/// Bytes that are no message of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a message is not valid: {0}")]
pub struct Malformed(pub &'static str);

const UNRELEASED: Malformed =
    Malformed("it is of a build from before version 0.1.0; restart instead");

impl Message {
    /// The kind, which is sent before the bytes.
    pub fn kind(&self) -> Kind {
        match self {
            Message::Hello { .. } => Kind::Hello,
            Message::Welcome(_) => Kind::Welcome,
            Message::Ready => Kind::Ready,
            Message::Refused(_) => Kind::Refused,
            Message::HasAll => Kind::HasAll,
            Message::Commit => Kind::Commit,
            Message::Serves(_) => Kind::Serves,
            Message::HasAhead => Kind::HasAhead,
        }
    }

    /// The bytes behind the kind.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Message::Hello { protocol, frozen, build } => {
                out.extend_from_slice(MARK.as_bytes());
                out.extend_from_slice(&protocol.to_le_bytes());
                out.extend_from_slice(&frozen.to_le_bytes());
                put(&mut out, build.as_bytes());
            }
            Message::Welcome(welcome) => {
                out.extend_from_slice(&welcome.workers.to_le_bytes());
                out.extend_from_slice(&welcome.tag_seed);
                let listeners: Vec<u8> = welcome.listeners.iter().map(|it| *it as u8).collect();
                put(&mut out, &listeners);
                put(&mut out, &welcome.ticket_keys);
            }
            Message::Refused(reason) => {
                put(&mut out, &reason.as_bytes()[..reason.len().min(REASON_BYTES_MAX)]);
            }
            Message::Ready | Message::HasAhead | Message::HasAll | Message::Commit => {}
            Message::Serves(later_us) => out.extend_from_slice(&later_us.to_le_bytes()),
        }
        out
    }

    /// Reads the bytes behind the kind.
    pub fn decode(kind: Kind, bytes: &[u8]) -> Result<Message, Malformed> {
        let mut rest = bytes;
        let message = match kind {
            Kind::Hello => {
                rest = rest.strip_prefix(MARK.as_bytes()).ok_or(UNRELEASED)?;
                let (protocol, frozen) = (u16(&mut rest)?, u16(&mut rest)?);
                // The rest may differ in other versions.
                if protocol != PROTOCOL {
                    return Ok(Message::Hello { protocol, frozen, build: String::new() });
                }
                Message::Hello { protocol, frozen, build: text(&mut rest)? }
            }
            Kind::Welcome => {
                let workers = u32::from_le_bytes(array(&mut rest)?);
                let tag_seed = array(&mut rest)?;
                let listener = |&number: &u8| {
                    let found = DescriptorKind::ALL.into_iter().find(|&it| it as u8 == number);
                    found.ok_or(Malformed("a listener"))
                };
                let listeners = take(&mut rest)?.iter().map(listener).collect::<Result<_, _>>()?;
                let ticket_keys = take(&mut rest)?.to_vec();
                Message::Welcome(Welcome { workers, tag_seed, listeners, ticket_keys })
            }
            Kind::Refused => Message::Refused(text(&mut rest)?),
            Kind::Ready => Message::Ready,
            Kind::HasAll => Message::HasAll,
            Kind::Commit => Message::Commit,
            Kind::Serves => Message::Serves(u64::from_le_bytes(array(&mut rest)?)),
            Kind::HasAhead => Message::HasAhead,
            Kind::State | Kind::Ahead | Kind::Memory => {
                return Err(Malformed("state is no message"));
            }
        };
        if rest.is_empty() { Ok(message) } else { Err(Malformed("it goes on behind its end")) }
    }
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn array<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Malformed> {
    let (bytes, behind) = rest.split_first_chunk().ok_or(Malformed("it ends early"))?;
    *rest = behind;
    Ok(*bytes)
}

fn u16(rest: &mut &[u8]) -> Result<u16, Malformed> {
    Ok(u16::from_le_bytes(array(rest)?))
}

fn take<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], Malformed> {
    let length = u32::from_le_bytes(array(rest)?) as usize;
    let (bytes, behind) = rest.split_at_checked(length).ok_or(Malformed("it ends early"))?;
    *rest = behind;
    Ok(bytes)
}

fn text(rest: &mut &[u8]) -> Result<String, Malformed> {
    // A reason may have been cut within a character.
    Ok(String::from_utf8_lossy(take(rest)?).into_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all() -> Vec<Message> {
        let build = "throng 0.1.0".to_owned();
        vec![
            Message::Hello { protocol: PROTOCOL, frozen: 2, build },
            Message::Welcome(Welcome {
                workers: 51,
                tag_seed: [7; 16],
                listeners: DescriptorKind::ALL.to_vec(),
                ticket_keys: vec![1, 2, 3],
            }),
            Message::Ready,
            Message::Refused("the settings ask for 3 workers".to_owned()),
            Message::HasAll,
            Message::Commit,
            Message::Serves(70_000),
            Message::HasAhead,
        ]
    }

    #[test]
    fn messages_come_out_as_they_went_in_and_are_refused_when_cut() {
        for message in all() {
            let bytes = message.encode();
            assert_eq!(Message::decode(message.kind(), &bytes).unwrap(), message);
            for end in 0..bytes.len() {
                assert!(Message::decode(message.kind(), &bytes[..end]).is_err(), "{message:?}");
            }
            let longer = [&bytes[..], b"x"].concat();
            assert!(Message::decode(message.kind(), &longer).is_err(), "{message:?}");
        }
    }

    #[test]
    fn the_versions_of_any_hello_can_be_read() {
        let bytes = [&b"throng"[..], &[9, 0, 5, 0], b"who knows"].concat();
        let hello = Message::decode(Kind::Hello, &bytes).unwrap();
        assert_eq!(hello, Message::Hello { protocol: 9, frozen: 5, build: String::new() });
    }

    #[test]
    fn the_hello_of_an_unreleased_build_is_refused() {
        for protocol in [1, PROTOCOL, 4] {
            let bytes = [&protocol.to_le_bytes()[..], &[4, 0, 1, 0, 0, 0], b"x"].concat();
            assert_eq!(Message::decode(Kind::Hello, &bytes), Err(UNRELEASED));
        }
    }

    /// Messages as version N wrote them are kept in `kept/N`: for each the number of its kind, its
    /// length and its bytes, as on the channel. `THRONG_KEEP=1 cargo test -p throng-handover kept`
    /// writes the messages of a new version; no kept file is written anew.
    #[test]
    fn kept_messages_are_read() {
        let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/src/message/kept");
        let path = std::path::Path::new(kept).join(PROTOCOL.to_string());
        if !path.exists() && std::env::var_os("THRONG_KEEP").is_some() {
            let framed = |message: Message| {
                let bytes = message.encode();
                [&[message.kind() as u8, bytes.len() as u8], &*bytes].concat()
            };
            let bytes: Vec<u8> = all().into_iter().flat_map(framed).collect();
            std::fs::write(&path, bytes).unwrap();
        }
        let bytes = std::fs::read(&path).expect("kept messages of this version");
        let (mut rest, mut read) = (&*bytes, Vec::new());
        while let [kind, length, behind @ ..] = rest {
            let (message, behind) = behind.split_at(usize::from(*length));
            let kind = Kind::numbered(*kind).expect("a kind");
            read.push(Message::decode(kind, message).expect("a message"));
            rest = behind;
        }
        assert_eq!(read, all());
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(
            number in 0u8..13,
            bytes in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            if let Some(kind) = Kind::numbered(number) {
                let _ = Message::decode(kind, &bytes);
            }
        }
    }
}
