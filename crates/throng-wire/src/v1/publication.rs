//! A message in JSON: the fields `data`, `encoding`, `content_type`, `key`, `expires_in`,
//! `volatile`, `event`, `tags`, `state_key` and `tombstone`.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::value::RawValue;

use super::fields::{Fields, boolean, decoded_string, owned, scalar, string};
use crate::error::ErrorResponse;
use crate::labels::{self, LabelError, Labels, StateKey};

/// The longest idempotency key, in bytes.
pub const KEY_BYTES_MAX: usize = 128;

/// The longest content type, in bytes. Every registered type is shorter.
pub const CONTENT_TYPE_BYTES_MAX: usize = 255;

/// The longest time after which a message can expire, in seconds: a year of 365 days.
pub const EXPIRES_IN_S_MAX: u32 = 365 * 24 * 60 * 60;

/// Accepts base64 with or without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A message to be published. The size of its body, and whether the body matches the content type,
/// are not checked yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    pub body: Vec<u8>,
    /// The content type; `None` is plain text.
    pub content_type: Option<String>,
    /// The idempotency key.
    pub key: Option<String>,
    /// In how many seconds the message expires, 1 to [`EXPIRES_IN_S_MAX`]; `None` if it does not.
    pub expires_in_s: Option<u32>,
    /// True if it is for nobody but those that follow its channel now. Then it has neither a key
    /// nor an expiry.
    pub is_volatile: bool,
    pub labels: Labels,
}

/// Refuses a volatile message with something that only a kept one has.
pub fn check_volatile(
    has_key: bool,
    has_expiry: bool,
    has_state_key: bool,
) -> Result<(), ErrorResponse> {
    let what = match (has_key, has_expiry, has_state_key) {
        (true, _, _) => {
            "idempotency key: nothing remembers it, so a repeated one is published again"
        }
        (_, true, _) => "expiry: it is delivered at once or not at all",
        (_, _, true) => "key of a state: nothing keeps it",
        (false, false, false) => return Ok(()),
    };
    Err(ErrorResponse::bad_request(format!("a volatile message has no {what}")))
}

impl Publication {
    pub(crate) fn from_fields(fields: &Fields<'_>) -> Result<Publication, ErrorResponse> {
        let labels = parse_labels(fields)?;
        let is_tombstone = labels.key.as_ref().is_some_and(|key| key.is_removed);
        let data = match fields.data {
            // There is nothing to say of a key that is gone.
            None if is_tombstone => RawValue::NULL,
            Some(data) if is_tombstone && data.get() != "null" => {
                let message = "a message with `tombstone` removes a key, and has no `data`: leave \
                               out one of the two";
                return Err(ErrorResponse::bad_request(message));
            }
            data => {
                data.ok_or_else(|| ErrorResponse::bad_request("the field `data` is missing"))?
            }
        };
        let encoding = string(fields.encoding, "encoding")?;
        let content_type = owned(fields.content_type, "content_type")?;
        let (body, content_type) = parse_content(data, encoding.as_deref(), content_type)?;
        let key = owned(fields.key, "key")?;
        if let Some(key) = &key {
            check_key(key)?;
        }
        let expires_in_s = expires_in(fields.expires_in)?;
        if is_tombstone && expires_in_s.is_some() {
            // Who comes back later would not learn that the key is gone.
            let message = "a message with `tombstone` does not expire: leave out `expires_in`";
            return Err(ErrorResponse::bad_request(message));
        }
        let is_volatile = boolean(fields.volatile, "volatile")?.unwrap_or(false);
        if is_volatile {
            check_volatile(key.is_some(), expires_in_s.is_some(), labels.key.is_some())?;
        }
        Ok(Publication { body, content_type, key, expires_in_s, is_volatile, labels })
    }
}

fn parse_labels(fields: &Fields<'_>) -> Result<Labels, ErrorResponse> {
    let refused = |field: &str, error: LabelError| {
        ErrorResponse::bad_request(format!("the field `{field}` {error}"))
    };
    let event = string(fields.event, "event")?;
    if let Some(event) = &event {
        labels::check_event(event).map_err(|error| refused("event", error))?;
    }
    let tags = match fields.tags {
        Some(tags) => labels::parse_tags(tags.get()).map_err(|error| refused("tags", error))?,
        None => None,
    };
    let key = parse_state_key(fields)?;
    Ok(Labels { event: event.map(|event| event.into()), tags, key })
}

/// The part of a state that the message sets, or removes with `"tombstone":true`.
fn parse_state_key(fields: &Fields<'_>) -> Result<Option<StateKey>, ErrorResponse> {
    let is_removed = boolean(fields.tombstone, "tombstone")?.unwrap_or(false);
    let Some(name) = string(fields.state_key, "state_key")? else {
        if is_removed {
            let message = "a message with `tombstone` needs the field `state_key`: the key that \
                           it removes";
            return Err(ErrorResponse::bad_request(message));
        }
        return Ok(None);
    };
    labels::check_state_key(&name)
        .map_err(|error| ErrorResponse::bad_request(format!("the field `state_key` {error}")))?;
    Ok(Some(StateKey { name: name.into(), is_removed }))
}

/// The body and the content type that these fields of a JSON object are. The size of the body, and
/// whether it matches the content type, are not checked yet.
///
/// # Errors
///
/// A field does not have its form.
pub fn parse_content(
    data: &RawValue,
    encoding: Option<&str>,
    content_type: Option<String>,
) -> Result<(Vec<u8>, Option<String>), ErrorResponse> {
    let is_base64 = match encoding {
        None => false,
        Some("base64") => true,
        Some(_) => {
            let message = "the field `encoding` must be \"base64\" if there is one";
            return Err(ErrorResponse::bad_request(message));
        }
    };
    let (body, content_type_by_default) = if is_base64 {
        let text = decoded_string(data, "data")?;
        let bytes = BASE64
            .decode(text.as_bytes())
            .map_err(|_| ErrorResponse::bad_request("the field `data` is not base64"))?;
        (bytes, Some("application/octet-stream"))
    } else if data.get().starts_with('"') {
        (decoded_string(data, "data")?.into_owned().into_bytes(), None)
    } else {
        (data.get().as_bytes().to_vec(), Some("application/json"))
    };
    if let Some(content_type) = &content_type {
        check_content_type(content_type)?;
    }
    Ok((body, content_type.or_else(|| content_type_by_default.map(String::from))))
}

/// Responses repeat the content type in a header, so it must not contain line breaks.
fn check_content_type(content_type: &str) -> Result<(), ErrorResponse> {
    let is_printable = content_type.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    let is_short = (1..=CONTENT_TYPE_BYTES_MAX).contains(&content_type.len());
    if is_printable && is_short {
        return Ok(());
    }
    Err(ErrorResponse::bad_request(format!(
        "the field `content_type` must be 1 to {CONTENT_TYPE_BYTES_MAX} printable ASCII characters"
    )))
}

/// In how many seconds a message, or a subscription, expires.
pub(super) fn expires_in(value: Option<&RawValue>) -> Result<Option<u32>, ErrorResponse> {
    let message =
        || format!("the field `expires_in` must be a number of seconds, 1 to {EXPIRES_IN_S_MAX}");
    match scalar(value, message)? {
        Some(seconds) if !(1..=EXPIRES_IN_S_MAX).contains(&seconds) => {
            Err(ErrorResponse::bad_request(message()))
        }
        seconds => Ok(seconds),
    }
}

fn check_key(key: &str) -> Result<(), ErrorResponse> {
    if (1..=KEY_BYTES_MAX).contains(&key.len()) && !key.chars().any(char::is_control) {
        return Ok(());
    }
    Err(ErrorResponse::bad_request(format!(
        "the field `key` must be 1 to {KEY_BYTES_MAX} bytes without control characters"
    )))
}
