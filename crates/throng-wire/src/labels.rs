//! The labels that a publisher gives a message: the name of an event, tags, and the key of the
//! state that it sets.
//!
//! Messages keep tags as the text that [`parse_tags`] makes: a JSON object on one line, without
//! spaces, in the publisher's order. So envelopes embed it as it is.

use std::borrow::Cow;
use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::json::{Text, write_json_string};
use crate::sse::ServerEvent;

/// The longest name of an event, in bytes. SSE repeats it with each message.
pub const EVENT_BYTES_MAX: usize = 128;

/// The longest key of a state, in bytes. Each one is kept as long as it has a value.
pub const STATE_KEY_BYTES_MAX: usize = 255;

/// The maximum number of tags of a message: tags describe a body, and do not replace it.
pub const TAGS_MAX: usize = 16;

/// The longest name of a tag, in bytes.
pub const TAG_NAME_BYTES_MAX: usize = 64;

/// The longest text of a tag, in bytes. A longer one belongs in the body.
pub const TAG_TEXT_BYTES_MAX: usize = 256;

/// The size of all tags of a message, as messages keep them. Logs and journals weigh it with the
/// body.
const TAGS_BYTES_MAX: usize = 1024;

/// The beginning of names that the server may give to events of later versions.
const RESERVED_PREFIX: &str = "throng-";

/// The events that every `EventSource` has by itself, besides its `error`.
const OF_EVENT_SOURCE: [&str; 2] = ["message", "open"];

/// The labels of a message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labels {
    /// The name of the event.
    pub event: Option<Box<str>>,
    /// The tags, as [`parse_tags`] makes them.
    pub tags: Option<Box<str>>,
    /// The part of the channel's state that the message sets or removes.
    pub key: Option<StateKey>,
}

/// A part of a channel's state, in a message that sets or removes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateKey {
    /// The key, as [`check_state_key`] takes it.
    pub name: Box<str>,
    /// True if the message removes it: it is a tombstone.
    pub is_removed: bool,
}

/// Why a label is refused: the predicate of a sentence about its header or field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    #[error("must be 1 to {EVENT_BYTES_MAX} bytes of UTF-8 without control characters")]
    EventForm,
    #[error(
        "must be 1 to {STATE_KEY_BYTES_MAX} bytes of UTF-8 without control characters, and not `.` \
         or `..`"
    )]
    KeyForm,
    /// A message could pass for a notice of the server.
    #[error("has a name that is reserved for the server's own events; choose another one")]
    ReservedEvent,
    #[error("must be a JSON object of strings and finite numbers, such as {{\"symbol\":\"ACME\"}}")]
    TagsForm,
    #[error("has more than {TAGS_MAX} tags")]
    TooManyTags,
    #[error(
        "has a tag whose name is not 1 to {TAG_NAME_BYTES_MAX} bytes without control characters"
    )]
    TagName,
    #[error("has a tag with a text of more than {TAG_TEXT_BYTES_MAX} bytes")]
    TagText,
    /// Parsers differ in the one that they take.
    #[error("has a tag twice")]
    RepeatedTag,
    #[error("takes more than {TAGS_BYTES_MAX} bytes as JSON without spaces")]
    TagsSize,
}

/// Checks the name of an event. It is one line, so that SSE can have it.
///
/// # Errors
///
/// It is beyond the limit, has control characters, or is a name of the server's own events.
pub fn check_event(name: &str) -> Result<(), LabelError> {
    let is_short = (1..=EVENT_BYTES_MAX).contains(&name.len());
    if !is_short || name.chars().any(char::is_control) {
        return Err(LabelError::EventForm);
    }
    let is_own = ServerEvent::ALL.iter().any(|event| event.name() == name);
    if is_own || OF_EVENT_SOURCE.contains(&name) || name.starts_with(RESERVED_PREFIX) {
        return Err(LabelError::ReservedEvent);
    }
    Ok(())
}

/// Checks the key of a state.
///
/// # Errors
///
/// It is beyond the limit, has control characters, or is a segment of a path that clients resolve
/// (RFC 3986 section 5.2.4): a request about such a key would be about its channel.
pub fn check_state_key(key: &str) -> Result<(), LabelError> {
    let is_short = (1..=STATE_KEY_BYTES_MAX).contains(&key.len());
    let is_clean = !key.chars().any(char::is_control) && !matches!(key, "." | "..");
    if is_short && is_clean { Ok(()) } else { Err(LabelError::KeyForm) }
}

/// The tags in a JSON object, as messages keep them; `None` if it is empty.
///
/// # Errors
///
/// It is none, it has something else than texts and finite numbers, or it is beyond a limit.
pub fn parse_tags(json: &str) -> Result<Option<Box<str>>, LabelError> {
    let Members(members) = serde_json::from_str(json).map_err(|_| LabelError::TagsForm)?;
    if members.is_empty() {
        return Ok(None);
    }
    if members.len() > TAGS_MAX {
        return Err(LabelError::TooManyTags);
    }
    let mut tags = Vec::with_capacity(json.len());
    for (at, (name, value)) in members.iter().enumerate() {
        let is_short = (1..=TAG_NAME_BYTES_MAX).contains(&name.len());
        if !is_short || name.chars().any(char::is_control) {
            return Err(LabelError::TagName);
        }
        if members[..at].iter().any(|(earlier, _)| earlier == name) {
            return Err(LabelError::RepeatedTag);
        }
        tags.push(if at == 0 { b'{' } else { b',' });
        write_json_string(&mut tags, name);
        tags.push(b':');
        write_value(&mut tags, value.get())?;
    }
    tags.push(b'}');
    if tags.len() > TAGS_BYTES_MAX {
        return Err(LabelError::TagsSize);
    }
    let tags = String::from_utf8(tags).map_err(|_| LabelError::TagsForm)?;
    Ok(Some(tags.into_boxed_str()))
}

/// True if this is the form in which messages keep tags.
pub fn are_tags(text: &str) -> bool {
    matches!(parse_tags(text), Ok(Some(tags)) if *tags == *text)
}

/// Appends the value of a tag: a text, or a number as it is written.
fn write_value(out: &mut Vec<u8>, value: &str) -> Result<(), LabelError> {
    if value.starts_with('"') {
        let Text(text) = serde_json::from_str(value).map_err(|_| LabelError::TagsForm)?;
        if text.len() > TAG_TEXT_BYTES_MAX {
            return Err(LabelError::TagText);
        }
        write_json_string(out, &text);
        return Ok(());
    }
    // Neither `true` nor `null`, an array nor an object is one.
    if !value.parse().is_ok_and(f64::is_finite) {
        return Err(LabelError::TagsForm);
    }
    out.extend_from_slice(value.as_bytes());
    Ok(())
}

/// The members of a JSON object in order, up to one beyond the limit.
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Members<'a>, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Members<'de>, M::Error> {
                let mut members = Vec::new();
                while let Some((Text(name), value)) = map.next_entry()? {
                    if members.len() <= TAGS_MAX {
                        members.push((name, value));
                    }
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(Object)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn tags(json: &str) -> Result<Option<String>, LabelError> {
        parse_tags(json).map(|tags| tags.map(String::from))
    }

    #[test]
    fn tags_are_kept_in_order_without_spaces() {
        let kept = r#"{"symbol":"ACME","n":-2.50e1,"é\"":"a\nb"}"#;
        let spaced = "{ \"symbol\" : \"ACM\\u0045\",\r\n\"n\":-2.50e1,\"\\u00e9\\\"\":\"a\\nb\" }";
        assert_eq!(tags(spaced), Ok(Some(kept.to_owned())));
        assert!(are_tags(kept) && !are_tags(spaced) && !are_tags("{}") && !are_tags(""));
        assert_eq!(tags(" {} "), Ok(None));
    }

    #[test]
    fn tags_are_flat() {
        for json in [
            "",
            "[]",
            "null",
            "{",
            "{}x",
            r#"{"a":{}}"#,
            r#"{"a":["b"]}"#,
            r#"{"a":true}"#,
            r#"{"a":null}"#,
            r#"{"a":1e999}"#,
            r#"{"a":NaN}"#,
            r#"{"a":inf}"#,
            r#"{"a":"\ud83d"}"#,
        ] {
            assert_eq!(tags(json), Err(LabelError::TagsForm), "{json}");
        }
        assert_eq!(tags(r#"{"a":1,"\u0061":2}"#), Err(LabelError::RepeatedTag));
    }

    #[test]
    fn tags_have_limits() {
        let object = |count: usize, name: usize, text: usize| {
            let name = |at: usize| format!("{}{}", "n".repeat(name - 1), (b'a' + at as u8) as char);
            let tags: Vec<_> =
                (0..count).map(|at| format!(r#""{}":"{}""#, name(at), "t".repeat(text))).collect();
            format!("{{{}}}", tags.join(","))
        };
        assert!(matches!(tags(&object(TAGS_MAX, 1, 1)), Ok(Some(_))));
        assert_eq!(tags(&object(TAGS_MAX + 1, 1, 1)), Err(LabelError::TooManyTags));
        assert!(matches!(tags(&object(1, TAG_NAME_BYTES_MAX, 1)), Ok(Some(_))));
        assert_eq!(tags(&object(1, TAG_NAME_BYTES_MAX + 1, 1)), Err(LabelError::TagName));
        for name in [r#"{"":1}"#, r#"{"a\nb":1}"#] {
            assert_eq!(tags(name), Err(LabelError::TagName), "{name}");
        }
        assert!(matches!(tags(&object(3, 1, TAG_TEXT_BYTES_MAX)), Ok(Some(_))));
        assert_eq!(tags(&object(1, 1, TAG_TEXT_BYTES_MAX + 1)), Err(LabelError::TagText));
        assert_eq!(tags(&object(4, 1, TAG_TEXT_BYTES_MAX)), Err(LabelError::TagsSize));
        assert_eq!(tags(&format!(r#"{{"n":{}}}"#, "9".repeat(300))).map(|_| ()), Ok(()));
        let digits = "0".repeat(TAGS_BYTES_MAX);
        assert_eq!(tags(&format!(r#"{{"n":0.{digits}}}"#)), Err(LabelError::TagsSize));
    }

    #[test]
    fn keys_of_states_are_short_and_of_one_line() {
        for key in ["a", " x/y?", "Größe", &"k".repeat(STATE_KEY_BYTES_MAX)] {
            assert_eq!(check_state_key(key), Ok(()), "{key}");
        }
        for key in ["", ".", "..", "a\nb", "\0", "\u{85}", &"k".repeat(STATE_KEY_BYTES_MAX + 1)] {
            assert_eq!(check_state_key(key), Err(LabelError::KeyForm), "{key:?}");
        }
    }

    #[test]
    fn events_have_names_of_their_own() {
        for name in ["price", "a", " order placed", "Größe", "Message", &"e".repeat(128)] {
            assert_eq!(check_event(name), Ok(()), "{name}");
        }
        for name in ["", "a\nb", "a\rb", "a\0", "\u{85}", "a\u{7f}", &"e".repeat(129)] {
            assert_eq!(check_event(name), Err(LabelError::EventForm), "{name:?}");
        }
        let own = ServerEvent::ALL.iter().map(|event| event.name());
        for name in own.chain(["message", "open", "throng-", "throng-erased"]) {
            assert_eq!(check_event(name), Err(LabelError::ReservedEvent), "{name}");
        }
    }

    proptest! {
        #[test]
        fn any_tags_come_back(
            members in prop::collection::btree_map("[^\\p{Cc}]{1,9}", "\\PC{0,9}|[0-9]", 1..9),
        ) {
            let json = serde_json::to_string_pretty(&members).unwrap();
            let kept = tags(&json).unwrap().unwrap();
            prop_assert!(are_tags(&kept));
            let (kept, json): (Value, Value) =
                (serde_json::from_str(&kept).unwrap(), serde_json::from_str(&json).unwrap());
            prop_assert_eq!(kept, json);
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "[{}\\[\\]\":,a1e.\\\\-]{0,30}") {
            let _ = tags(&text);
        }
    }
}
