//! A worker from frozen state: it goes on where the frozen one stopped.
//!
//! There are two ways. Either each record comes once ([`WorkerThaw::record`]), or each comes twice:
//! first it is only looked at ([`WorkerThaw::check`]), so that a worker that cannot be thawed is
//! refused before channels and connections, which take the most memory, are made of anything.
//!
//! Connections that follow a channel which has another journal now, and clients of applications
//! that are gone, are thawed as all others, and closed first thing.

use std::sync::Arc;

use throng_access::Grants;
use throng_core::frozen::{Decoder, RecordKind, ThawError, decode_content, decode_name};
use throng_core::subscriptions::OpenChannel;
use throng_core::{
    ConnectionName, ConnectionScan, Epoch, Message, ScanAction, ScanClose, ScanTarget, Ticket,
    clock,
};

use super::Worker;
use crate::connection::{ConnectionId, FrozenConnection, KnownUser, Token};
use crate::net::Net;
use crate::sessions::granted;
use throng_dialect::Encoding;

/// The version of the format since which a user has a name for people.
const NAMES_VERSION: u16 = 7;

/// The first version with what users show to other members.
const INFO_VERSION: u16 = 9;

/// The code that tells WebSockets to connect again: the server restarts.
const MOVED_CODE: u16 = 1012;

/// Why a connection is closed that follows a channel which has another journal now.
const MOVED: &str = "the messages of a channel are kept elsewhere from now on; connect again";

/// The user of a connection whose record follows.
#[derive(Debug)]
struct NamedUser {
    user: Box<str>,
    /// The name for people.
    shown: Option<Box<str>>,
    /// The user's `info`, which other members see.
    info: Option<Box<str>>,
}

/// Reads a frozen worker, record by record.
pub struct WorkerThaw<N: Net> {
    worker: Worker<N>,
    has_begun: bool,
    is_ended: bool,
    has_failed: bool,
    /// True if all records were looked at: what connections share is there, and they come again.
    is_checked: bool,
    newest_generation: u32,
    has_acceptances: bool,
    channels: u32,
    connections: u32,
    /// The version of the format, once it is known.
    version: u16,
    /// The channel whose messages are being read.
    open: Option<OpenChannel>,
    /// The worker's id for the channel that was checked last.
    last_channel: u32,
    /// Messages that connections were written in part.
    partials: Vec<Arc<Message>>,
    /// Grants of the connections' tokens.
    grants: Vec<Arc<Grants>>,
    /// The user of the next connection, if that is known.
    user: Option<NamedUser>,
    /// The connections whose events were asked for before.
    watched: Watched,
}

impl<N: Net> WorkerThaw<N> {
    /// `worker` has the number of the frozen one, no connections, and its clock set. Its engine is
    /// the frozen worker's, or has been thawed.
    pub fn new(worker: Worker<N>) -> WorkerThaw<N> {
        debug_assert!(worker.connections().is_empty());
        WorkerThaw {
            worker,
            has_begun: false,
            is_ended: false,
            has_failed: false,
            is_checked: false,
            newest_generation: 0,
            has_acceptances: false,
            channels: 0,
            version: 0,
            connections: 0,
            open: None,
            last_channel: 0,
            partials: Vec::new(),
            grants: Vec::new(),
            user: None,
            watched: Watched::default(),
        }
    }

    /// The worker, as far as it was thawed.
    pub(crate) fn worker(&mut self) -> &mut Worker<N> {
        &mut self.worker
    }

    /// The worker's net reports the events of a record's connection already.
    pub(crate) fn note_watched(&mut self, record: &[u8]) {
        connection_token(record).iter().for_each(|token| self.watched.insert(token.id()));
    }

    /// Looks at the next record. Channels, their messages, connections and their users come again;
    /// all others are used up. After an error there is no worker, unless the record is a
    /// connection's: then only that connection cannot be thawed.
    pub fn check(&mut self, record: &[u8]) -> Result<(), ThawError> {
        debug_assert!(!self.is_checked, "a record comes behind the last");
        let (kind, decoder) = Decoder::new(record).inspect_err(|_| self.has_failed = true)?;
        if kind == RecordKind::Connection && self.may_follow(kind) {
            self.connections += 1;
            self.user = None;
            let frozen = FrozenConnection::decode(decoder)?;
            return granted(&frozen, &self.grants).map(drop);
        }
        let checked = match kind {
            RecordKind::Message => self.check_message(decoder),
            RecordKind::FollowedChannel => self.check_channel(decoder),
            _ => self.read(kind, decoder),
        };
        self.has_failed |= checked.is_err();
        checked
    }

    fn check_message(&mut self, decoder: Decoder<'_>) -> Result<(), ThawError> {
        let open = self.open.as_mut().ok_or(ThawError::Invalid("the order of records"))?;
        open.message(decoder)?;
        self.open.take_if(|open| open.is_whole());
        Ok(())
    }

    fn check_channel(&mut self, decoder: Decoder<'_>) -> Result<(), ThawError> {
        if !self.may_follow(RecordKind::FollowedChannel) {
            return Err(ThawError::Invalid("the order of records"));
        }
        self.channels += 1;
        let open = self.worker.open_channel(decoder, self.version)?;
        // As they are frozen: none comes twice.
        let number = open.local().0.get();
        if number <= self.last_channel {
            return Err(ThawError::Invalid("the order of channels"));
        }
        self.last_channel = number;
        self.open = Some(open).filter(|open| !open.is_whole());
        Ok(())
    }

    /// Ends the look at the records. They come again from now on, to [`WorkerThaw::record`]. After
    /// an error there is no worker.
    pub fn end_check(&mut self) -> Result<(), ThawError> {
        self.is_checked = self.is_ended && !self.has_failed;
        if self.is_checked { Ok(()) } else { Err(ThawError::Truncated) }
    }

    /// Reads the next record, a connection's with its socket. After an error there is no worker,
    /// unless the record is a connection's: then only that connection is closed. Of records that
    /// were checked, those that were used up are passed over.
    pub fn record(&mut self, record: &[u8], socket: Option<N::Socket>) -> Result<(), ThawError> {
        let (kind, decoder) = Decoder::new(record).inspect_err(|_| self.has_failed = true)?;
        if kind == RecordKind::Connection && self.may_follow(kind) {
            self.connections += u32::from(!self.is_checked);
            let user = self.user.take();
            let socket = socket.ok_or(ThawError::Invalid("a connection without its socket"))?;
            let frozen = FrozenConnection::decode(decoder)?;
            let known = user.as_ref();
            let known = known.map(|NamedUser { user, shown, info }| KnownUser {
                user,
                shown: shown.as_deref(),
                info: info.as_deref(),
            });
            let shared = (&*self.partials, &*self.grants, known);
            return self.worker.thaw_connection(frozen, socket, shared);
        }
        let comes_again =
            matches!(kind, RecordKind::FollowedChannel | RecordKind::Message | RecordKind::User);
        if self.is_checked && !comes_again {
            return Ok(());
        }
        let read = self.read(kind, decoder);
        self.has_failed |= read.is_err();
        read
    }

    /// Reads a message that was written in part.
    fn read_partial(&mut self, mut decoder: Decoder<'_>) -> Result<(), ThawError> {
        let name = decode_name(&mut decoder)?;
        let epoch = Epoch::numbered(decoder.u64()?);
        let content = decode_content(&mut decoder, epoch, &name)?;
        let message = Message::from(Arc::new(content));
        for encoding in Encoding::COMPRESSED {
            let bytes = decoder.bytes()?;
            if !bytes.is_empty() {
                message.encoding(encoding.slot(), |_| bytes.to_vec());
            }
        }
        while !decoder.is_empty() {
            let (number, bytes) = (decoder.u8()?, decoder.bytes()?);
            let encoding = Encoding::compressed_by_others()
                .find(|encoding| encoding.number() == number)
                .ok_or(ThawError::Invalid("an encoding of a message"))?;
            message.encoding(encoding.slot(), |_| bytes.to_vec());
        }
        decoder.finish()?;
        self.partials.push(Arc::new(message));
        Ok(())
    }

    /// The next record is the user's connection.
    fn read_user(&mut self, mut decoder: Decoder<'_>) -> Result<(), ThawError> {
        let user = decoder.text()?.into();
        let mut since = |version| -> Result<Option<Box<str>>, ThawError> {
            let text = if self.version < version { "" } else { decoder.text()? };
            Ok(Some(text).filter(|text| !text.is_empty()).map(Into::into))
        };
        let (shown, info) = (since(NAMES_VERSION)?, since(INFO_VERSION)?);
        self.user = Some(NamedUser { user, shown, info });
        decoder.finish()
    }

    /// True if a record may come now.
    fn may_follow(&self, kind: RecordKind) -> bool {
        let is_first = kind == RecordKind::Worker;
        let is_over = self.is_ended && !self.is_checked;
        !is_over && self.has_begun != is_first && self.open.is_none()
    }

    fn read(&mut self, kind: RecordKind, mut decoder: Decoder<'_>) -> Result<(), ThawError> {
        if kind == RecordKind::Message
            && let Some(open) = &mut self.open
        {
            self.worker.thaw_message(open, decoder)?;
            self.open.take_if(|open| open.is_whole());
            return Ok(());
        }
        if !self.may_follow(kind) {
            return Err(ThawError::Invalid("the order of records"));
        }
        match kind {
            RecordKind::Worker => {
                (self.version, self.newest_generation) = self.worker.thaw_state(decoder)?;
                self.has_begun = true;
            }
            RecordKind::Acceptances => {
                let mut marks = Vec::new();
                for _ in 0..decoder.u32()? {
                    marks.push((decoder.u32()?, clock::from_wall_ms(decoder.u64()?)));
                }
                decoder.finish()?;
                self.worker.connections_mut().resume_acceptances(marks.into_iter());
                self.has_acceptances = true;
            }
            RecordKind::FollowedChannel => {
                self.channels += u32::from(!self.is_checked);
                let open = self.worker.open_channel(decoder, self.version)?;
                self.worker.thaw_channel(&open)?;
                self.open = Some(open).filter(|open| !open.is_whole());
            }
            RecordKind::PartialMessage => self.read_partial(decoder)?,
            RecordKind::Grants => {
                let is_of_key = decoder.u8()? != 0;
                let grants = Grants::from_frozen(decoder.text()?);
                decoder.finish()?;
                let grants = grants.map_err(|_| ThawError::Invalid("what a token grants"))?;
                let grants = if is_of_key { grants.for_server_key() } else { grants };
                self.grants.push(Arc::new(grants));
            }
            RecordKind::User => self.read_user(decoder)?,
            RecordKind::WorkerEnd => {
                let counts = (decoder.u32()?, decoder.u32()?);
                decoder.finish()?;
                // A record was lost on the way.
                if counts != (self.channels, self.connections) || !self.has_acceptances {
                    return Err(ThawError::Invalid("the end of a worker"));
                }
                self.is_ended = true;
            }
            _ => return Err(ThawError::Invalid("the record is no part of a worker")),
        }
        Ok(())
    }

    /// The worker, once its last record was read. From then on it gets events, and must do a slice
    /// of work before its thread sleeps.
    pub fn finish(mut self) -> Result<Worker<N>, ThawError> {
        if !self.is_ended || self.has_failed {
            return Err(ThawError::Truncated);
        }
        let watched = self.watched;
        let lost = self.worker.finish_thaw(self.newest_generation, |id| watched.contains(id));
        self.worker.close_thawed(lost, ScanAction::Recheck);
        self.worker.close_moved();
        Ok(self.worker)
    }
}

impl<N: Net> Worker<N> {
    /// Begins to close the connections that follow a channel which has another journal now. The
    /// ids that their clients have are of its former log: they resume, and are told that messages
    /// may be lost.
    fn close_moved(&mut self) {
        let moved = self.take_moved();
        let close = ScanClose { code: MOVED_CODE, reason: MOVED.into(), may_return: true };
        self.close_thawed(moved, ScanAction::Close(close));
    }

    /// Begins to close these connections.
    fn close_thawed(&mut self, connections: Vec<ConnectionName>, action: ScanAction) {
        if !connections.is_empty() {
            let target = ScanTarget::Connections(connections);
            self.begin_scan(ConnectionScan::new(target, action, 1, Ticket::new(drop)));
        }
    }
}

/// Places of connections, a bit each.
#[derive(Debug, Default)]
struct Watched(Vec<u64>);

impl Watched {
    fn insert(&mut self, id: ConnectionId) {
        let (word, bit) = Watched::place(id);
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= bit;
    }

    fn contains(&self, id: ConnectionId) -> bool {
        let (word, bit) = Watched::place(id);
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }

    fn place(id: ConnectionId) -> (usize, u64) {
        (id.index() as usize / 64, 1 << (id.index() % 64))
    }
}

/// The token of the connection that a record is of; `None` for any other record.
pub(crate) fn connection_token(record: &[u8]) -> Option<Token> {
    let (kind, mut decoder) = Decoder::new(record).ok()?;
    if kind != RecordKind::Connection {
        return None;
    }
    let (index, generation) = (decoder.u32().ok()?, decoder.u32().ok()?);
    Token::from_bits(u64::from(generation) << u32::BITS | u64::from(index))
}
