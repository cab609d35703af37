//! The receiving half of a connection: opens records, and acts on what is not data.
//!
//! It is touched when the peer speaks. It holds the connection's own traffic secret, too, which
//! only a key update needs.

use std::ops::ControlFlow;

use crate::alert::{self, Alert, ReceivedAlert};
use crate::keys::{RecordKey, Secret};
use crate::outgoing::{Outgoing, SealError, SenderFlags};
use crate::record::{ALERT, APPLICATION_DATA, HANDSHAKE, Header, Opener};
use crate::suite::Suite;

/// How many records without data may come in a row: empty ones, key updates, tickets, warnings. A
/// key update costs some 2 µs and its sender 27 bytes. A record that this side sends ends the row,
/// too: whoever only listens may update keys for years. rustls has the same number.
pub const WITHOUT_DATA_MAX: u8 = 32;

const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;
const MESSAGE_HEADER_BYTES: usize = 4;

/// Which side of the connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Server,
    Client,
}

/// Opens records, and holds the secrets that later keys follow from.
///
/// It moves and cannot be copied; it is overwritten with zeros when it is dropped.
#[repr(C)]
pub struct Incoming {
    number: u64,
    /// The peer's traffic secret; the key itself with TLS 1.2.
    secret_in: Secret,
    /// This side's traffic secret; empty with TLS 1.2.
    secret_out: Secret,
    /// The bytes of a session ticket that are still to come, which are skipped.
    skipped_bytes: u32,
    /// The number of records in a row that had no data.
    without_data: u8,
    flags: u8,
    suite: Suite,
}

const _: () = assert!(size_of::<Incoming>() <= 112);
// The TLS state of a parked connection.
const _: () = assert!(size_of::<Incoming>() + size_of::<Outgoing>() <= 168);

const CLIENT: u8 = 1;
/// The peer has said that it sends no more.
const PEER_CLOSED: u8 = 2;
/// Nothing more is opened: the peer or this side has failed.
const FAILED: u8 = 4;
const FLAGS: u8 = CLIENT | PEER_CLOSED | FAILED;

/// The contents of a buffer of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Opened {
    /// The number of bytes at the front of the buffer that are content now.
    pub content_bytes: usize,
    /// The number of bytes of the buffer that were used. The rest is the beginning of a record,
    /// which the caller keeps and passes again with what follows it.
    pub used_bytes: usize,
    /// Why nothing more will be opened, if so.
    pub end: Option<End>,
}

/// How what the peer sends has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The peer said that it sends no more (`close_notify`). Later bytes are ignored.
    Closed,
    /// The peer gave up with a fatal alert, this number. Nothing is to be sent any more.
    PeerFailed(u8),
    /// The peer broke the protocol. Send it this alert and close.
    Failed(Alert),
}

/// The meaning of a byte stream's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// The peer had said that it sends no more.
    Clean,
    /// Somebody cut the stream off: what came may not be all that was sent.
    Truncated,
}

impl Incoming {
    pub(crate) fn new(role: Role, suite: Suite, secrets: (Secret, Secret), number: u64) -> Self {
        let (secret_in, secret_out) = secrets;
        let flags = if role == Role::Client { CLIENT } else { 0 };
        Self { number, secret_in, secret_out, skipped_bytes: 0, without_data: 0, flags, suite }
    }

    /// Opens all complete records in `buffer`, in place, and moves their contents together at its
    /// front. `outgoing` is the other half of the same connection: it learns when the peer asks
    /// for a key update.
    ///
    /// Content before an error is returned with it. A buffer of
    /// [`RECORD_BYTES_MAX`](crate::RECORD_BYTES_MAX) always makes progress.
    pub fn open(&mut self, outgoing: &mut Outgoing, buffer: &mut [u8]) -> Opened {
        self.open_beside(outgoing.flags_mut(), None, buffer)
    }

    /// Like [`Incoming::open`], with what the other half has to learn only, and the key of the
    /// first record if the caller has it.
    pub(crate) fn open_beside(
        &mut self,
        sender: &mut SenderFlags,
        key: Option<RecordKey>,
        buffer: &mut [u8],
    ) -> Opened {
        let mut opened = Opened { content_bytes: 0, used_bytes: 0, end: None };
        let mut opener = key.map(|key| Opener::new(self.suite, key));
        while opened.end.is_none() {
            let has_ended = self.flags & (PEER_CLOSED | FAILED) != 0;
            if has_ended {
                opened.used_bytes = buffer.len();
                break;
            }
            let rest = &buffer[opened.used_bytes..];
            let Some(header) = Header::read(rest) else { break };
            if let Err(alert) = header.check(self.suite) {
                opened.end = Some(self.fail(alert));
                break;
            }
            if rest.len() < header.record_bytes() {
                break;
            }
            let flow = self.open_one(sender, &mut opener, buffer, &mut opened);
            opened.used_bytes += header.record_bytes();
            if let ControlFlow::Break(end) = flow {
                opened.end = Some(end);
            }
        }
        opened
    }

    /// Appends a key update to `out`; from then on `outgoing`, the other half of the same
    /// connection, seals with the next key.
    ///
    /// The number is used up and the old key is gone: the bytes have to be written, whatever
    /// happens to what follows them. A peer can make this necessary once for each time that data
    /// is sent, not more often, so that at most one key update waits for the socket.
    pub fn seal_key_update(
        &mut self,
        outgoing: &mut Outgoing,
        out: &mut Vec<u8>,
    ) -> Result<(), SealError> {
        self.update_key(outgoing, false, out)
    }

    /// As [`Incoming::seal_key_update`]; `asks` says whether the peer is to do the same.
    pub(crate) fn update_key(
        &mut self,
        outgoing: &mut Outgoing,
        asks: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), SealError> {
        let (suite, secret) = (self.suite, &mut self.secret_out);
        let next_key = || {
            *secret = secret.next(suite);
            RecordKey::derive(suite, secret)
        };
        outgoing.append_key_update(next_key, asks, out)
    }

    /// Says whether the end of the byte stream is the end of what the peer sent.
    pub fn stream_end(&self) -> StreamEnd {
        if self.flags & PEER_CLOSED != 0 { StreamEnd::Clean } else { StreamEnd::Truncated }
    }

    /// The side of the connection that this is.
    pub fn role(&self) -> Role {
        if self.flags & CLIENT != 0 { Role::Client } else { Role::Server }
    }

    /// Says that the peer has said that it sends no more.
    pub(crate) fn close(&mut self) {
        self.flags |= PEER_CLOSED;
    }

    /// Number, secrets in and out, for the frozen form.
    pub(crate) fn secrets(&self) -> (u64, &Secret, &Secret) {
        (self.number, &self.secret_in, &self.secret_out)
    }

    /// The number of the next record, and the key that opens it.
    #[cfg(feature = "testing")]
    pub(crate) fn record_key(&self) -> (u64, RecordKey) {
        (self.number, self.secret_in.record_key(self.suite))
    }

    pub(crate) fn suite(&self) -> Suite {
        self.suite
    }

    /// Flags, skipped bytes and records without data, for the frozen form.
    pub(crate) fn counts(&self) -> (u8, u32, u8) {
        (self.flags, self.skipped_bytes, self.without_data)
    }

    /// Sets what `counts` returned. False if the values cannot be.
    pub(crate) fn restore_counts(&mut self, (flags, skipped, empty): (u8, u32, u8)) -> bool {
        self.flags = flags;
        self.skipped_bytes = skipped;
        self.without_data = empty;
        let may_skip = flags & CLIENT != 0 && self.suite.is_tls13();
        flags & !FLAGS == 0 && empty <= WITHOUT_DATA_MAX && (skipped == 0 || may_skip)
    }

    /// Opens the record at `opened.used_bytes`, which is complete.
    fn open_one(
        &mut self,
        sender: &mut SenderFlags,
        opener: &mut Option<Opener>,
        buffer: &mut [u8],
        opened: &mut Opened,
    ) -> ControlFlow<End> {
        let suite = self.suite;
        let ready =
            opener.get_or_insert_with(|| Opener::new(suite, self.secret_in.record_key(suite)));
        let (to, at) = (opened.content_bytes, opened.used_bytes);
        let record = ready.open(self.number, buffer, to, at).and_then(|record| {
            self.number = self.number.checked_add(1).ok_or(Alert::InternalError)?;
            Ok(record)
        });
        let handled = record.and_then(|(content_type, content_bytes)| {
            let content = &buffer[to..to + content_bytes];
            if self.skipped_bytes > 0 && content_type != HANDSHAKE {
                return Err(Alert::UnexpectedMessage);
            }
            match content_type {
                APPLICATION_DATA if content_bytes > 0 => {
                    self.without_data = 0;
                    opened.content_bytes += content_bytes;
                    Ok(ControlFlow::Continue(()))
                }
                APPLICATION_DATA => self.count_without_data(sender),
                ALERT => self.alert(sender, content),
                HANDSHAKE => self.handshake(sender, opener, content),
                _ => Err(Alert::UnexpectedMessage),
            }
        });
        handled.unwrap_or_else(|alert| ControlFlow::Break(self.fail(alert)))
    }

    fn alert(
        &mut self,
        sender: &mut SenderFlags,
        content: &[u8],
    ) -> Result<ControlFlow<End>, Alert> {
        match alert::read(content, self.suite.is_tls13())? {
            ReceivedAlert::Closed => {
                self.flags |= PEER_CLOSED;
                Ok(ControlFlow::Break(End::Closed))
            }
            ReceivedAlert::Ignored => self.count_without_data(sender),
            ReceivedAlert::Fatal(description) => {
                self.flags |= FAILED;
                Ok(ControlFlow::Break(End::PeerFailed(description)))
            }
        }
    }

    /// Messages that may come after the handshake: key updates, and tickets for a client. A ticket
    /// may continue in further records.
    fn handshake(
        &mut self,
        sender: &mut SenderFlags,
        opener: &mut Option<Opener>,
        content: &[u8],
    ) -> Result<ControlFlow<End>, Alert> {
        if !self.suite.is_tls13() {
            // Only a new handshake, which is refused.
            return Err(Alert::NoRenegotiation);
        }
        if content.is_empty() {
            return Err(Alert::UnexpectedMessage);
        }
        let flow = self.count_without_data(sender)?;
        let mut rest = content;
        while !rest.is_empty() {
            let skipped = rest.len().min(self.skipped_bytes as usize);
            self.skipped_bytes -= skipped as u32;
            rest = &rest[skipped..];
            let Some(message) = rest.first_chunk::<MESSAGE_HEADER_BYTES>() else {
                if rest.is_empty() {
                    break;
                }
                return Err(Alert::UnexpectedMessage);
            };
            let [message_type, length @ ..] = *message;
            let length = u32::from_be_bytes([0, length[0], length[1], length[2]]);
            match message_type {
                NEW_SESSION_TICKET if self.role() == Role::Client => {
                    rest = &rest[MESSAGE_HEADER_BYTES..];
                    self.skipped_bytes = length;
                }
                KEY_UPDATE => {
                    self.key_update(sender, &rest[MESSAGE_HEADER_BYTES..], length)?;
                    *opener = None;
                    break;
                }
                _ => return Err(Alert::UnexpectedMessage),
            }
        }
        Ok(flow)
    }

    /// Takes the peer's next secret. `body` is the rest of the record, which has to end with the
    /// message, because what follows is sealed with another key.
    fn key_update(
        &mut self,
        sender: &mut SenderFlags,
        body: &[u8],
        length: u32,
    ) -> Result<(), Alert> {
        if length != 1 {
            return Err(Alert::DecodeError);
        }
        let &[request] = body else {
            return Err(Alert::UnexpectedMessage);
        };
        match request {
            0 => {}
            1 => sender.request_update(),
            _ => return Err(Alert::IllegalParameter),
        }
        self.secret_in = self.secret_in.next(self.suite);
        self.number = 0;
        Ok(())
    }

    fn count_without_data(&mut self, sender: &mut SenderFlags) -> Result<ControlFlow<End>, Alert> {
        if sender.take_sent() {
            self.without_data = 0;
        }
        if self.without_data == WITHOUT_DATA_MAX {
            return Err(Alert::UnexpectedMessage);
        }
        self.without_data += 1;
        Ok(ControlFlow::Continue(()))
    }

    fn fail(&mut self, alert: Alert) -> End {
        self.flags |= FAILED;
        End::Failed(alert)
    }
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Incoming")
            .field("suite", &self.suite)
            .field("number", &self.number)
            .field("flags", &self.flags)
            .finish_non_exhaustive()
    }
}
