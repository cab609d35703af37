//! The creation of a channel: facts in the record of its log, from when somebody has created it
//! until it is erased or its time is over.
//!
//! A channel may have a content type, which all of its messages have, and an end of its time: a
//! fixed one, or one that each message moves. Nothing is written with a message for that. When the
//! time may be over, the log is looked at, and the record says which message was seen then: so the
//! same is found after a restart, and on another node.

use std::num::NonZeroU64;

use crate::attributes::Attribute;
use crate::change::{Condition, LogChange, LogRecord, LogState, RecordChange};
use crate::message::Body;
use crate::name::ChannelName;
use crate::publication::{Publication, PublishError, Replacement};

/// The numbers before the content type, behind which comes a byte of flags.
const NUMBERS: usize = 5;

/// The facts of a creation. Times are those of the machine's clock, in milliseconds since 1970:
/// they outlive the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Creation {
    /// The content type of all messages; `None` if they may have any.
    pub content_type: Option<Box<str>>,
    pub created_ms: u64,
    /// For how long the channel stays after its creation and each message.
    pub ttl_ms: Option<NonZeroU64>,
    /// The fixed end of its time.
    pub expires_ms: Option<NonZeroU64>,
    /// The head of the log when it was looked at last,
    pub seen_offset: u64,
    /// and when the message there was published.
    pub seen_ms: u64,
    /// True if it is being erased, because its time is over.
    pub is_over: bool,
}

impl Creation {
    /// The creation of a channel at this time.
    pub fn at(created_ms: u64) -> Creation {
        Creation {
            content_type: None,
            created_ms,
            ttl_ms: None,
            expires_ms: None,
            seen_offset: 0,
            seen_ms: created_ms,
            is_over: false,
        }
    }

    fn read(value: &[u8]) -> Option<Creation> {
        let mut rest = value;
        let mut numbers = [0; NUMBERS];
        for number in &mut numbers {
            let (first, behind) = rest.split_first_chunk()?;
            (*number, rest) = (u64::from_le_bytes(*first), behind);
        }
        let (flags, content_type) = rest.split_first()?;
        let content_type = str::from_utf8(content_type).ok().filter(|it| !it.is_empty());
        let [created_ms, ttl_ms, expires_ms, seen_offset, seen_ms] = numbers;
        Some(Creation {
            content_type: content_type.map(Box::from),
            created_ms,
            ttl_ms: NonZeroU64::new(ttl_ms),
            expires_ms: NonZeroU64::new(expires_ms),
            seen_offset,
            seen_ms,
            is_over: flags & 1 != 0,
        })
    }

    fn write(&self) -> Vec<u8> {
        let number = |number: Option<NonZeroU64>| number.map_or(0, NonZeroU64::get);
        let (ttl_ms, expires_ms) = (number(self.ttl_ms), number(self.expires_ms));
        let numbers = [self.created_ms, ttl_ms, expires_ms, self.seen_offset, self.seen_ms];
        let mut value: Vec<u8> = numbers.into_iter().flat_map(u64::to_le_bytes).collect();
        value.push(u8::from(self.is_over));
        value.extend_from_slice(self.content_type.as_deref().unwrap_or_default().as_bytes());
        value
    }

    /// True if the channel goes at some time. One that is being erased does, too: whoever erases it
    /// may not come to the end.
    pub fn is_mortal(&self) -> bool {
        self.is_over || self.ttl_ms.is_some() || self.expires_ms.is_some()
    }

    /// The first property in which another creation differs from this one.
    pub fn difference(&self, other: &Creation) -> Option<&'static str> {
        let essence = |of: &Creation| of.content_type.as_deref().map(essence);
        if essence(self) != essence(other) {
            Some("content_type")
        } else if self.ttl_ms != other.ttl_ms {
            Some("ttl")
        } else if self.expires_ms != other.expires_ms {
            Some("expires_at")
        } else {
            None
        }
    }

    /// The end of its time, if no message comes before.
    pub fn until_ms(&self) -> u64 {
        let sliding_ms = self.ttl_ms.map(|ttl_ms| self.seen_ms.saturating_add(ttl_ms.get()));
        let fixed_ms = self.expires_ms.map(NonZeroU64::get);
        sliding_ms.into_iter().chain(fixed_ms).min().unwrap_or(u64::MAX)
    }

    /// True if its time is over at this time, whatever comes.
    pub fn is_over_for_good(&self, wall_ms: u64) -> bool {
        self.expires_ms.is_some_and(|expires_ms| expires_ms.get() <= wall_ms)
    }

    /// The same, of a log with this head, which was published at this time.
    #[must_use]
    pub fn having_seen(self, head: u64, wall_ms: u64) -> Creation {
        Creation { seen_offset: head, seen_ms: wall_ms, ..self }
    }

    /// A publication's content as the channel takes it; `None` if that is its own.
    fn admit(&self, publication: &Publication, known: Option<&mut ReadAs>) -> Admitted {
        let Some(wanted) = self.content_type.as_deref() else { return Ok(None) };
        let known = known.filter(|known| *known.wanted == *wanted);
        known.and_then(|known| known.next.next()).unwrap_or_else(|| read_as(wanted, publication))
    }
}

/// A publication's content as a channel takes it; `None` if that is its own.
type Admitted = Result<Option<Replacement>, PublishError>;

/// A publication's content as one of this content type; `None` if it is that already.
///
/// What has no content type of its own is read as the channel's.
fn read_as(wanted: &str, publication: &Publication) -> Admitted {
    if let Some(own) = publication.content_type.as_deref() {
        let is_same = essence(own) == essence(wanted);
        return if is_same { Ok(None) } else { Err(PublishError::OtherType) };
    }
    let parsed = Body::parse(publication.body.bytes(), Some(wanted));
    let (body, content_type) = parsed.map_err(|_| PublishError::OtherType)?;
    match (&publication.body, &body) {
        // A text says nothing about its type.
        (Body::Text(_), _)
        | (Body::Json(_), Body::Json(_))
        | (Body::Binary(_), Body::Binary(_)) => Ok(Some(Replacement { body, content_type })),
        _ => Err(PublishError::OtherType),
    }
}

/// The contents of publications as those of a content type, in their order, without those of the
/// server. They take time to read, so that is done before the channel is locked that is known to
/// have this type.
#[derive(Debug)]
pub(crate) struct ReadAs {
    wanted: Box<str>,
    next: std::vec::IntoIter<Admitted>,
}

impl ReadAs {
    pub(crate) fn of(wanted: Box<str>, publications: &[Publication]) -> ReadAs {
        let all = publications.iter().filter(|publication| !publication.is_of_server());
        let all = all.map(|publication| read_as(&wanted, publication));
        let next = all.collect::<Vec<_>>().into_iter();
        ReadAs { wanted, next }
    }
}

/// A content type without its parameters, which say how its text is written.
fn essence(content_type: &str) -> String {
    let essence = content_type.split(';').next().unwrap_or_default();
    essence.trim().to_ascii_lowercase()
}

/// A publication's content as a channel with this record takes it; `None` if that is its own.
///
/// # Errors
///
/// The channel does not exist, but has to, or takes messages of another type only.
pub fn admit(
    record: Option<&LogRecord>,
    must_exist: bool,
    publication: &Publication,
) -> Result<Option<Replacement>, PublishError> {
    admit_read(record, must_exist, publication, None)
}

/// The same, with what is read already.
pub(crate) fn admit_read(
    record: Option<&LogRecord>,
    must_exist: bool,
    publication: &Publication,
    known: Option<&mut ReadAs>,
) -> Admitted {
    let creation = match record.map(|record| (record, record.creation())) {
        // Its end is the better reason.
        Some((record, Some(_))) if record.is_of_end() => return Ok(None),
        Some((_, Some(creation))) => creation,
        _ if must_exist && !publication.is_of_server() => return Err(PublishError::NotCreated),
        _ => return Ok(None),
    };
    if publication.is_of_server() { Ok(None) } else { creation.admit(publication, known) }
}

impl LogRecord {
    /// The creation of the channel, if somebody has created it.
    pub fn creation(&self) -> Option<Creation> {
        self.get(Attribute::Created).and_then(Creation::read)
    }

    /// True if somebody has created the channel.
    pub fn is_of_creation(&self) -> bool {
        self.get(Attribute::Created).is_some()
    }

    /// True if the channel goes at some time.
    pub fn is_of_mortal(&self) -> bool {
        self.creation().is_some_and(|creation| creation.is_mortal())
    }

    fn creating(record: Option<&LogRecord>, creation: &Creation) -> LogRecord {
        LogRecord::setting(record, Attribute::Created, &creation.write())
    }
}

impl LogState {
    /// The creation of the channel, if somebody has created it.
    pub fn creation(&self) -> Option<Creation> {
        self.record.as_ref().and_then(|known| known.record.creation())
    }
}

impl LogChange {
    /// The change that creates a channel whose log is in this state, or writes other facts of its
    /// creation.
    pub fn create(channel: ChannelName, creation: &Creation, before: &LogState) -> LogChange {
        let record = before.record.as_ref().map(|known| &known.record);
        LogChange {
            condition: Condition { record: Some(before.record_version()), ..Condition::default() },
            record: RecordChange::Write(LogRecord::creating(record, creation)),
            ..LogChange::append(channel, Vec::new())
        }
    }

    /// The change that ends a channel whose time is over, and which only one of several can make:
    /// whoever has made it erases the log then. `None` if nobody has created the channel.
    /// `is_for_good`: whatever message comes meanwhile.
    pub fn expire(channel: ChannelName, before: &LogState, is_for_good: bool) -> Option<LogChange> {
        let creation = Creation { is_over: true, ..before.creation()? };
        let end = LogChange::end(channel.clone(), None, before);
        let RecordChange::Write(record) = &end.record else { return None };
        let record = RecordChange::Write(LogRecord::creating(Some(record), &creation));
        let condition = Condition {
            head: (!is_for_good).then_some(before.head),
            record: Some(before.record_version()),
            key: None,
        };
        let messages = if before.is_ended() { Vec::new() } else { end.messages };
        Some(LogChange { condition, record, ..LogChange::append(channel, messages) })
    }

    /// Makes of its messages what a channel with this record takes, which it may create.
    ///
    /// # Errors
    ///
    /// Why the channel does not take one of them.
    pub fn admit(&mut self, before: Option<&LogRecord>) -> Result<(), PublishError> {
        self.admit_read(before, None)
    }

    /// The content type that all of its messages have in a channel with this record, which it may
    /// create.
    pub(crate) fn content_type(&self, before: Option<&LogRecord>) -> Option<Box<str>> {
        let own = match &self.record {
            RecordChange::Write(record) => record.creation(),
            RecordChange::Keep | RecordChange::Remove => None,
        };
        before.and_then(LogRecord::creation).or(own)?.content_type
    }

    /// The same as [`LogChange::admit`], with what is read already.
    pub(crate) fn admit_read(
        &mut self,
        before: Option<&LogRecord>,
        mut known: Option<ReadAs>,
    ) -> Result<(), PublishError> {
        let is_created = before.is_some_and(LogRecord::is_of_creation);
        let record = match &self.record {
            RecordChange::Write(written) if !is_created => Some(written),
            _ => before,
        };
        for message in &mut self.messages {
            let admitted = admit_read(record, message.needs_creation, message, known.as_mut())?;
            if let Some(replacement) = admitted {
                message.replace(replacement);
            }
        }
        Ok(())
    }

    /// True if it creates the channel, whose log was in this state.
    pub fn creates(&self, before: &LogState) -> bool {
        self.is_of_creation() && before.creation().is_none()
    }

    /// True if it gives the channel an end of its time.
    pub(crate) fn is_of_mortal(&self) -> bool {
        matches!(&self.record, RecordChange::Write(record) if record.is_of_mortal())
    }

    /// True if the channel is created afterwards.
    pub(crate) fn is_of_creation(&self) -> bool {
        matches!(&self.record, RecordChange::Write(record) if record.is_of_creation())
    }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;
    use crate::id::{Epoch, MessageId};
    use crate::message::{BINARY, JSON};

    fn creation(content_type: &str) -> Creation {
        Creation { content_type: Some(content_type.into()), ..Creation::at(1_000) }
    }

    fn publication(body: Body, content_type: Option<&str>) -> Publication {
        let channel = ChannelName::channel("a");
        Publication { content_type: content_type.map(Box::from), ..Publication::new(channel, body) }
    }

    #[test]
    fn a_creation_survives_its_record() {
        for content_type in [None, Some("text/plain; charset=utf-8")] {
            let creation = Creation {
                content_type: content_type.map(Box::from),
                ttl_ms: NonZeroU64::new(5),
                expires_ms: NonZeroU64::new(7),
                seen_offset: 3,
                seen_ms: 4,
                is_over: true,
                ..Creation::at(1)
            };
            let record = LogRecord::creating(None, &creation);
            assert_eq!(record.creation(), Some(creation.clone()));
            let again = LogRecord::read(record.block()).expect("it is a record");
            assert_eq!(again.creation(), Some(creation));
        }
        let cut = LogRecord::of(&[(Attribute::Created as u16, &[1; 40])]).expect("a record");
        assert_eq!((cut.creation(), cut.is_of_creation()), (None, true));
    }

    #[test]
    fn a_message_has_the_type_of_its_channel_or_takes_it() {
        let (text, json) = (|it: &str| Body::Text(it.into()), |it: &str| Body::Json(it.into()));
        let binary = || Body::Binary(b"\xff".as_slice().into());
        let mismatch = Err(PublishError::OtherType);
        let becomes = |body, content_type: Option<&str>| {
            Ok(Some(Replacement { body, content_type: content_type.map(Box::from) }))
        };
        for (wanted, body, own, expected) in [
            (JSON, text("[1]"), None, becomes(json("[1]"), None)),
            (JSON, text("hello"), None, mismatch.clone()),
            (JSON, json("{}"), None, becomes(json("{}"), None)),
            (JSON, json("{}"), Some("Application/JSON; charset=utf-8"), Ok(None)),
            (JSON, json("{}"), Some("application/geo+json"), mismatch.clone()),
            (JSON, binary(), None, mismatch.clone()),
            ("text/plain", text("hello"), None, becomes(text("hello"), Some("text/plain"))),
            ("text/plain", json("{}"), None, mismatch.clone()),
            ("text/html", text("<p>"), Some("TEXT/html"), Ok(None)),
            ("text/html", text("<p>"), None, becomes(text("<p>"), Some("text/html"))),
            ("image/png", binary(), None, becomes(binary(), Some("image/png"))),
            ("image/png", binary(), Some("image/gif"), mismatch.clone()),
            (BINARY, binary(), None, becomes(binary(), None)),
        ] {
            let publication = publication(body, own);
            let found = creation(wanted).admit(&publication, None);
            assert_eq!(found, expected, "{wanted} {own:?}");
            let known = || ReadAs::of(wanted.into(), slice::from_ref(&publication));
            assert_eq!(creation(wanted).admit(&publication, Some(&mut known())), expected);
            // It has become a channel of another type meanwhile.
            let other = creation("text/other").admit(&publication, Some(&mut known()));
            assert_eq!(other, creation("text/other").admit(&publication, None));
        }
        assert_eq!(Creation::at(1).admit(&publication(binary(), None), None), Ok(None));
    }

    #[test]
    fn each_message_moves_the_end_of_a_sliding_time() {
        let sliding = Creation { ttl_ms: NonZeroU64::new(100), ..Creation::at(1_000) };
        assert_eq!(sliding.until_ms(), 1_100);
        let seen = sliding.clone().having_seen(5, 1_050);
        assert_eq!((seen.until_ms(), seen.is_over_for_good(u64::MAX)), (1_150, false));
        let both = Creation { expires_ms: NonZeroU64::new(1_060), ..seen };
        assert_eq!(both.until_ms(), 1_060);
        assert_eq!([1_059, 1_060].map(|it| both.is_over_for_good(it)), [false, true]);
        let immortal = Creation::at(0);
        assert!(both.is_mortal() && !immortal.is_mortal());
        assert!(Creation { is_over: true, ..immortal.clone() }.is_mortal(), "its erasure may stop");
        assert_eq!(immortal.until_ms(), u64::MAX);
    }

    #[test]
    fn the_first_difference_is_named() {
        let plain = creation("text/plain; charset=utf-8");
        assert_eq!(plain.difference(&Creation { created_ms: 9, ..creation("TEXT/plain") }), None);
        assert_eq!(plain.difference(&creation(JSON)), Some("content_type"));
        assert_eq!(
            plain.difference(&Creation { content_type: None, ..plain.clone() }),
            Some("content_type")
        );
        let some = NonZeroU64::new(1);
        assert_eq!(plain.difference(&Creation { ttl_ms: some, ..plain.clone() }), Some("ttl"));
        let fixed = Creation { expires_ms: some, ..plain.clone() };
        assert_eq!(plain.difference(&fixed), Some("expires_at"));
    }

    #[test]
    fn the_end_of_its_time_keeps_what_else_the_record_says() {
        let channel = ChannelName::channel("a");
        let head = MessageId { epoch: Epoch::numbered(1), offset: 3 };
        let before = LogState { head, record: None };
        assert!(LogChange::expire(channel.clone(), &before, true).is_none());
        let other = LogRecord::of(&[(9_999, b"x")]).expect("a record");
        let mortal = Creation { ttl_ms: NonZeroU64::new(1), ..creation(JSON) };
        let record = LogRecord::creating(Some(&other), &mortal);
        let known = crate::change::KnownRecord { version: 7, record };
        let before = LogState { head, record: Some(known) };
        let change = LogChange::expire(channel, &before, false).expect("it was created");
        assert_eq!(change.condition.head, Some(head));
        assert_eq!((change.condition.record, change.messages.len()), (Some(7), 1));
        let RecordChange::Write(record) = change.record else { panic!("it writes one") };
        assert!(record.is_of_end() && record.block().len() > other.block().len());
        assert!(record.creation().is_some_and(|creation| creation.is_over));
    }
}
