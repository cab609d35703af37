//! Names and messages as bytes.
//!
//! Times are frozen by the machine's clock as clients see it ([`clock::wall_ms`]): the clock that
//! ages are counted by is another one in each process.

use std::num::NonZeroU64;

use super::{Decoder, Encoder, ThawError, text};
use crate::attributes::{self, Attributes, Extras};
use crate::clock;
use crate::connection_name::{ConnectionName, NodeTag};
use crate::id::{Epoch, MessageId};
use crate::message::{Body, Content};
use crate::name::{ChannelName, Kind, NAME_BYTES_MAX};
use crate::stamp::Stamp;

/// The last offset that a message can have. Beyond it the arithmetic of offsets could overflow.
pub const OFFSET_MAX: u64 = 1 << 62;

const TEXT: u8 = 0;
const JSON: u8 = 1;
const BINARY: u8 = 2;

/// The bits of a message's flags that are its body's kind.
const BODY_KIND: u8 = 3;
const HAS_CONTENT_TYPE: u8 = 1 << 2;
const HAS_EXCLUDED: u8 = 1 << 3;
const HAS_EXPIRY: u8 = 1 << 4;
/// The excluded connection is one of several nodes'.
const HAS_NODE: u8 = 1 << 5;
/// Since version 5.
const HAS_ATTRIBUTES: u8 = 1 << 6;

/// All flags there are.
const FLAGS: u8 =
    BODY_KIND | HAS_CONTENT_TYPE | HAS_EXCLUDED | HAS_EXPIRY | HAS_NODE | HAS_ATTRIBUTES;

/// Appends the name of a channel: its kind, its length in one byte, its text.
pub fn encode_name(encoder: &mut Encoder, name: &ChannelName) {
    encoder.u8(match name.kind() {
        Kind::Channel => 1,
        Kind::User => 2,
        Kind::Internal if name.is_presence_events() => 4,
        Kind::Internal if name.is_members() => 5,
        Kind::Internal if name.is_online() => 6,
        Kind::Internal => 3,
    });
    encoder.u8(name.name().len() as u8);
    encoder.raw(name.name().as_bytes());
}

const _: () = assert!(NAME_BYTES_MAX <= u8::MAX as usize, "the length of a name is one byte");

/// The name of a channel.
pub fn decode_name(decoder: &mut Decoder<'_>) -> Result<ChannelName, ThawError> {
    let mark = decoder.u8()?;
    let kind = match mark {
        1 | 4 | 5 => Kind::Channel,
        2 | 6 => Kind::User,
        3 => Kind::Internal,
        _ => return Err(ThawError::Invalid("the kind of a channel")),
    };
    let length = usize::from(decoder.u8()?);
    let name = text(decoder.raw(length)?)?;
    let checked = throng_wire::check_name(name, kind.noun());
    checked.map_err(|_| ThawError::Invalid("the name of a channel"))?;
    Ok(match mark {
        4 => ChannelName::presence_events(name),
        5 => ChannelName::members(name),
        6 => ChannelName::online(name),
        _ => ChannelName::new(kind, name),
    })
}

/// Appends a message. It has the channel and the epoch of the record before it.
pub fn encode_content(encoder: &mut Encoder, content: &Content) {
    encode_content_at(encoder, content, clock::ahead_ms());
}

/// [`encode_content`] with a machine's clock `ahead_ms` ahead of the recorded times.
pub(crate) fn encode_content_at(encoder: &mut Encoder, content: &Content, ahead_ms: i64) {
    let wall_ms = |at_ms: u64| at_ms.saturating_add_signed(ahead_ms);
    encoder.u64(content.id.offset);
    encoder.u64(content.previous);
    encoder.u64(wall_ms(content.time_ms));
    let kind = match content.body {
        Body::Text(_) => TEXT,
        Body::Json(_) => JSON,
        Body::Binary(_) => BINARY,
    };
    let has_content_type = if content.content_type.is_some() { HAS_CONTENT_TYPE } else { 0 };
    let (excluded, attributes) = (content.extras.excluded(), content.extras.attributes());
    let has_excluded = if excluded.is_some() { HAS_EXCLUDED } else { 0 };
    let node = excluded.map(ConnectionName::node).filter(|&node| node != NodeTag::ALONE);
    let has_node = if node.is_some() { HAS_NODE } else { 0 };
    let has_expiry = if content.expires_ms.is_some() { HAS_EXPIRY } else { 0 };
    let has_attributes = if attributes.is_some() { HAS_ATTRIBUTES } else { 0 };
    encoder.u8(kind | has_content_type | has_excluded | has_node | has_expiry | has_attributes);
    encoder.u64(content.stamp.0);
    if let Some(content_type) = &content.content_type {
        encoder.bytes(content_type.as_bytes());
    }
    if let Some(excluded) = excluded {
        encoder.u64(excluded.number());
    }
    if let Some(node) = node {
        encoder.u64(node.number());
    }
    if let Some(expires_ms) = content.expires_ms {
        encoder.u64(if content.is_without_body() { 0 } else { wall_ms(expires_ms.get()) });
    }
    if let Some(attributes) = attributes {
        encoder.bytes(attributes.block());
    }
    encoder.bytes(content.body.bytes());
}

/// A message of `channel`. Checks what the code relies on: that texts are UTF-8, and that the
/// offset is above its predecessor's.
pub fn decode_content(
    decoder: &mut Decoder<'_>,
    epoch: Epoch,
    channel: &ChannelName,
) -> Result<Content, ThawError> {
    let head = Head::decode(decoder, clock::ahead_ms())?;
    Ok(head.body(decoder)?.content(&head, epoch, channel.clone()))
}

/// The part of a message before its body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head<'a> {
    pub(crate) offset: u64,
    pub(crate) previous: u64,
    pub(crate) time_ms: u64,
    pub(crate) stamp: Stamp,
    pub(crate) expires_ms: Option<NonZeroU64>,
    content_type: Option<&'a str>,
    excluded: Option<ConnectionName>,
    /// The block, which is checked.
    attributes: Option<&'a [u8]>,
    kind: u8,
}

/// A body of the kind that its [`Head`] says.
#[derive(Debug, Clone, Copy)]
pub(crate) enum BodyBytes<'a> {
    Text(&'a str),
    Json(&'a str),
    Binary(&'a [u8]),
}

impl<'a> Head<'a> {
    /// Reads up to the body. The machine's clock is `ahead_ms` ahead of the recorded times.
    pub(crate) fn decode(decoder: &mut Decoder<'a>, ahead_ms: i64) -> Result<Head<'a>, ThawError> {
        let (offset, previous) = (decoder.u64()?, decoder.u64()?);
        if previous >= offset || offset > OFFSET_MAX {
            return Err(ThawError::Invalid("the offset of a message"));
        }
        // Frozen as wall time: the clock of each process may be ahead of it by another amount.
        let own_ms = |wall_ms: u64| wall_ms.saturating_add_signed(ahead_ms.saturating_neg());
        let time_ms = own_ms(decoder.u64()?);
        let flags = decoder.u8()?;
        if flags & !FLAGS != 0 || flags & (HAS_EXCLUDED | HAS_NODE) == HAS_NODE {
            return Err(ThawError::Invalid("the flags of a message"));
        }
        let stamp = Stamp(decoder.u64()?);
        let content_type = if flags & HAS_CONTENT_TYPE == 0 { None } else { Some(decoder.text()?) };
        let mut excluded = None;
        if flags & HAS_EXCLUDED != 0 {
            let name = ConnectionName::numbered(decoder.u64()?);
            let has_node = flags & HAS_NODE != 0;
            let node = if has_node { NodeTag::numbered(decoder.u64()?) } else { NodeTag::ALONE };
            excluded = Some(name.on(node));
        }
        let expires_ms = if flags & HAS_EXPIRY == 0 {
            None
        } else {
            let expires_ms = match decoder.u64()? {
                0 => 0,
                wall_ms => own_ms(wall_ms),
            };
            // At 0 it has expired, too.
            Some(NonZeroU64::new(expires_ms).unwrap_or(NonZeroU64::MIN))
        };
        let mut attributes = None;
        if flags & HAS_ATTRIBUTES != 0 {
            let block = decoder.bytes()?;
            Attributes::check(block)
                .map_err(|_| ThawError::Invalid("the attributes of a message"))?;
            attributes = Some(block);
        }
        let kind = flags & BODY_KIND;
        Ok(Head {
            offset,
            previous,
            time_ms,
            stamp,
            expires_ms,
            content_type,
            excluded,
            attributes,
            kind,
        })
    }

    /// Reads the body.
    pub(crate) fn body(&self, decoder: &mut Decoder<'a>) -> Result<BodyBytes<'a>, ThawError> {
        Ok(match self.kind {
            TEXT => BodyBytes::Text(decoder.text()?),
            JSON => BodyBytes::Json(decoder.text()?),
            BINARY => BodyBytes::Binary(decoder.bytes()?),
            _ => return Err(ThawError::Invalid("the kind of a body")),
        })
    }

    /// The weight of the content type and the attributes that are kept with the body.
    pub(crate) fn weight_bytes(&self) -> usize {
        let attributes = self.attributes.map_or(0, |block| attributes::weight_bytes(block.len()));
        self.content_type.map_or(0, str::len) + attributes
    }
}

impl BodyBytes<'_> {
    /// The message with this body.
    pub(crate) fn content(self, head: &Head<'_>, epoch: Epoch, channel: ChannelName) -> Content {
        let body = match self {
            BodyBytes::Text(text) => Body::Text(text.into()),
            BodyBytes::Json(text) => Body::Json(text.into()),
            BodyBytes::Binary(bytes) => Body::Binary(bytes.into()),
        };
        let id = MessageId { epoch, offset: head.offset };
        Content {
            stamp: head.stamp,
            content_type: head.content_type.map(Into::into),
            extras: Extras::new(head.excluded, head.attributes.map(Attributes::checked)),
            expires_ms: head.expires_ms,
            ..Content::new(id, head.previous, head.time_ms, channel, body)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::RecordKind;
    use super::*;

    fn any_body() -> impl Strategy<Value = Body> {
        prop_oneof![
            ".{0,40}".prop_map(|text| Body::Text(text.into())),
            any::<u32>().prop_map(|number| Body::Json(number.to_string().into())),
            prop::collection::vec(any::<u8>(), 0..40).prop_map(|bytes| Body::Binary(bytes.into())),
        ]
    }

    proptest! {
        #[test]
        fn a_message_is_read_back_whole_and_never_in_part(
            kind in prop::sample::select(vec![Kind::Channel, Kind::User]),
            name in "[a-z]{1,20}",
            body in any_body(),
            content_type in prop::option::of("[a-z]{1,9}/[a-z]{1,9}"),
            excluded: Option<u64>,
            node in prop::option::of(any::<u64>()),
            (previous, step) in (0..OFFSET_MAX - 1000, 1u64..1000),
            time_ms in 0u64..1 << 50,
            stamp: u64,
            expires_ms: Option<NonZeroU64>,
            attributes in prop::option::of(prop::collection::vec(any::<u8>(), 0..40)),
        ) {
            let epoch = Epoch::numbered(7);
            let excluded = excluded.map(|number| {
                let node = node.map_or(NodeTag::ALONE, NodeTag::numbered);
                ConnectionName::numbered(number).on(node)
            });
            let attributes = attributes.map(|value| Attributes::of(&[(4, b"key"), (700, &value)]));
            let attributes = attributes.transpose().expect("they are short");
            let id = MessageId { epoch, offset: previous + step };
            let content = Content {
                stamp: Stamp(stamp),
                content_type: content_type.map(Into::into),
                extras: Extras::new(excluded, attributes),
                expires_ms,
                ..Content::new(id, previous, time_ms, ChannelName::new(kind, &name), body)
            };
            let mut encoder = Encoder::new(RecordKind::Message);
            encode_name(&mut encoder, &content.channel);
            encode_content(&mut encoder, &content);
            let record = encoder.finish();
            let thaw = |record: &[u8]| -> Result<Content, ThawError> {
                let (_, mut decoder) = Decoder::new(record)?;
                let name = decode_name(&mut decoder)?;
                let content = decode_content(&mut decoder, epoch, &name)?;
                decoder.finish()?;
                Ok(content)
            };
            let thawed = thaw(&record).map(|thawed| format!("{thawed:?}"));
            prop_assert_eq!(thawed, Ok(format!("{content:?}")));
            for end in 0..record.len() {
                prop_assert!(thaw(&record[..end]).is_err(), "cut at {}", end);
            }
        }

        #[test]
        fn any_bytes_are_a_message_or_an_error(record: Vec<u8>) {
            if let Ok((_, mut decoder)) = Decoder::new(&record)
                && let Ok(name) = decode_name(&mut decoder)
            {
                let _ = decode_content(&mut decoder, Epoch::numbered(1), &name);
            }
        }
    }
}
