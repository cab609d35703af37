//! The fields of a command or of a batch line, parsed from JSON.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::credential::Token;
use crate::error::{ErrorCode, ErrorResponse};
use crate::interchange;
use crate::json::Text;
use crate::member::{MemberInfoError, member_info};
use crate::name::{Kind, Target, check_name};
use crate::subscribe::{self, HISTORY_MAX, PACE_MS_MAX, PACE_MS_MIN, Replay, TIME_MS_MAX};
use crate::unknown;

/// The longest `ref` that is repeated, in bytes: clients use numbers or short strings.
const REFERENCE_BYTES_MAX: usize = 64;

/// The largest page of messages or users that a request may ask for, here and over HTTP.
pub const LIMIT_MAX: u32 = 1000;

/// How many field names are remembered to find repeated ones: more than any command has.
const NAMES_MAX: usize = 32;

/// Declares [`Fields`] and its setter.
macro_rules! fields {
    ($($field:ident $name:literal,)*) => {
        /// The fields of all commands and of batch lines, as unparsed JSON. `null` counts as
        /// absent, except in `data`, where it is a message.
        #[derive(Default)]
        pub(crate) struct Fields<'a> {
            $(pub(super) $field: Option<&'a RawValue>,)*
            /// The names of all fields, in order, also of those that are `null`.
            names: Vec<Cow<'a, str>>,
            has_repeated: bool,
        }

        impl<'a> Fields<'a> {
            fn set(&mut self, name: &str, value: &'a RawValue) {
                let value = (name == "data" || value.get() != "null").then_some(value);
                match name {
                    $($name => self.$field = value,)*
                    _ => {}
                }
            }
        }
    };
}

fields! {
    kind "type",
    reference "ref",
    channel "channel",
    channels "channels",
    user "user",
    since "since",
    since_time "since_time",
    history "history",
    state "state",
    presence "presence",
    pace "pace",
    limit "limit",
    before "before",
    after "after",
    order "order",
    echo "echo",
    id "id",
    back "back",
    exclude "exclude",
    data "data",
    encoding "encoding",
    content_type "content_type",
    key "key",
    expires_in "expires_in",
    volatile "volatile",
    event "event",
    tags "tags",
    state_key "state_key",
    tombstone "tombstone",
    token "token",
    frames "frames",
    info "info",
}

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fields<'a>, D::Error> {
        struct Object<'a>(PhantomData<Fields<'a>>);

        impl<'de: 'a, 'a> Visitor<'de> for Object<'a> {
            type Value = Fields<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Fields<'a>, M::Error> {
                let mut fields = Fields::default();
                while let Some((Text(name), value)) = map.next_entry()? {
                    fields.set(&name, value);
                    // Beyond the limit some name is unknown, and the command is refused for that.
                    if fields.names.contains(&name) {
                        fields.has_repeated = true;
                    } else if fields.names.len() < NAMES_MAX {
                        fields.names.push(name);
                    }
                }
                Ok(fields)
            }
        }

        deserializer.deserialize_map(Object(PhantomData))
    }
}

impl<'a> Fields<'a> {
    pub(crate) fn parse(text: &'a str) -> Result<Fields<'a>, ErrorResponse> {
        match serde_json::from_str::<Fields<'a>>(text) {
            Ok(fields) if fields.has_repeated => {
                Err(ErrorResponse::bad_request("a field is given twice"))
            }
            Ok(fields) => Ok(fields),
            Err(error) if error.is_data() => {
                Err(ErrorResponse::new(ErrorCode::BadJson, "this is not a JSON object"))
            }
            Err(error) => {
                let message = format!("this is not JSON: {}", interchange::fault(&error));
                Err(ErrorResponse::new(ErrorCode::BadJson, message))
            }
        }
    }

    /// The field `channel` alone.
    pub(super) fn of_channel(channel: &'a RawValue) -> Fields<'a> {
        Fields { channel: Some(channel), ..Fields::default() }
    }

    /// Refuses unknown fields. `of` describes the object in the error message.
    pub(crate) fn check_names(&self, of: &str, known: &[&str]) -> Result<(), ErrorResponse> {
        match self.names.iter().find(|name| !known.contains(&&***name)) {
            None => Ok(()),
            Some(name) => Err(ErrorResponse::bad_request(unknown::field(name, of, known))),
        }
    }

    pub(super) fn reference(&self) -> Option<Box<RawValue>> {
        let reference = self.reference?;
        let is_name = reference
            .get()
            .starts_with(|first: char| first == '"' || first == '-' || first.is_ascii_digit());
        (is_name && reference.get().len() <= REFERENCE_BYTES_MAX).then(|| reference.to_owned())
    }

    pub(crate) fn target(&self) -> Result<Target, ErrorResponse> {
        let target = self.unchecked_target()?;
        check_name(&target.name, target.kind.noun())?;
        Ok(target)
    }

    /// The channel or user, whose name may be invalid.
    pub(super) fn unchecked_target(&self) -> Result<Target, ErrorResponse> {
        let (kind, value) = match (self.channel, self.user) {
            (Some(channel), None) => (Kind::Channel, channel),
            (None, Some(user)) => (Kind::User, user),
            (Some(_), Some(_)) => {
                return Err(ErrorResponse::bad_request("`channel` and `user` exclude each other"));
            }
            (None, None) => {
                return Err(ErrorResponse::bad_request("the field `channel` or `user` is missing"));
            }
        };
        let name = decoded_string(value, kind.noun())?.into_owned();
        Ok(Target { kind, name })
    }

    pub(super) fn limit(&self) -> Result<Option<u32>, ErrorResponse> {
        self.limit_from(1)
    }

    /// The limit of a page, which may be empty: a client may only ask where the channel is.
    pub(super) fn page_limit(&self) -> Result<Option<u32>, ErrorResponse> {
        self.limit_from(0)
    }

    fn limit_from(&self, min: u32) -> Result<Option<u32>, ErrorResponse> {
        let message = || format!("the field `limit` must be a number from {min} to {LIMIT_MAX}");
        match scalar(self.limit, message)? {
            Some(limit) if !(min..=LIMIT_MAX).contains(&limit) => {
                Err(ErrorResponse::bad_request(message()))
            }
            limit => Ok(limit),
        }
    }

    pub(super) fn token(&self) -> Result<Token, ErrorResponse> {
        let Some(value) = self.token else {
            return Err(ErrorResponse::bad_request("the field `token` is missing"));
        };
        Token::new(&decoded_string(value, "token")?)
    }

    /// How many frames a client acknowledges.
    pub(super) fn frames(&self) -> Result<u32, ErrorResponse> {
        let message = || "the field `frames` must be a number of frames, at least 1".to_owned();
        match scalar(self.frames, message)? {
            None => Err(ErrorResponse::bad_request("the field `frames` is missing")),
            Some(0) => Err(ErrorResponse::bad_request(message())),
            Some(frames) => Ok(frames),
        }
    }

    /// What the client shows of itself to the other members of a channel.
    pub(super) fn info(&self) -> Result<Option<Box<str>>, ErrorResponse> {
        let info = self.info.map(member_info).transpose();
        info.map_err(MemberInfoError::of_field)
    }

    pub(crate) fn exclude(&self) -> Result<Option<String>, ErrorResponse> {
        owned(self.exclude, "exclude")
    }
}

pub(super) fn string<'a>(
    value: Option<&'a RawValue>,
    field: &str,
) -> Result<Option<Cow<'a, str>>, ErrorResponse> {
    value.map(|value| decoded_string(value, field)).transpose()
}

pub(super) fn owned(
    value: Option<&RawValue>,
    field: &str,
) -> Result<Option<String>, ErrorResponse> {
    Ok(string(value, field)?.map(Cow::into_owned))
}

/// Decodes a JSON string. The value is valid JSON, so once it begins like a string, only an
/// unpaired surrogate can make it fail.
pub(super) fn decoded_string<'a>(
    value: &'a RawValue,
    field: &str,
) -> Result<Cow<'a, str>, ErrorResponse> {
    if !value.get().starts_with('"') {
        return Err(ErrorResponse::bad_request(format!("the field `{field}` must be a string")));
    }
    match serde_json::from_str::<Text<'a>>(value.get()) {
        Ok(text) => Ok(text.0),
        Err(_) => {
            let message = format!("the field `{field}` holds half of a surrogate pair");
            Err(ErrorResponse::new(ErrorCode::BadUtf8, message))
        }
    }
}

/// The field `history`: how many of the newest messages to start with.
fn messages(value: Option<&RawValue>) -> Result<Option<u32>, ErrorResponse> {
    let message =
        || format!("the field `history` must be a number of messages, 0 to {HISTORY_MAX}");
    match scalar(value, message)? {
        Some(count) if count > HISTORY_MAX => Err(ErrorResponse::bad_request(message())),
        count => Ok(count),
    }
}

/// The field `since_time`: a time in milliseconds since 1970, as envelopes have it.
pub(super) fn time(value: Option<&RawValue>) -> Result<Option<u64>, ErrorResponse> {
    let message = || "the field `since_time` must be a time in milliseconds since 1970".to_owned();
    match scalar(value, message)? {
        Some(time_ms) if time_ms > TIME_MS_MAX => Err(ErrorResponse::bad_request(message())),
        time_ms => Ok(time_ms),
    }
}

/// The fields `history`, `since_time` and `state`: the earlier messages to start with.
pub(super) fn replay(fields: &Fields<'_>) -> Result<Option<Replay>, ErrorResponse> {
    let (history, since_time) = (messages(fields.history)?, time(fields.since_time)?);
    let state = boolean(fields.state, "state")?.unwrap_or(false);
    subscribe::replay(history, since_time, state).map_err(ErrorResponse::bad_request)
}

/// The field `pace`: the least time between two deliveries, in milliseconds.
pub(super) fn pace(value: Option<&RawValue>) -> Result<Option<u32>, ErrorResponse> {
    let message = || {
        format!(
            "the field `pace` must be a whole number of milliseconds, {PACE_MS_MIN} to \
             {PACE_MS_MAX}"
        )
    };
    match scalar(value, message)? {
        Some(pace_ms) if !(PACE_MS_MIN..=PACE_MS_MAX).contains(&pace_ms) => {
            Err(ErrorResponse::bad_request(message()))
        }
        pace_ms => Ok(pace_ms),
    }
}

pub(super) fn boolean(
    value: Option<&RawValue>,
    field: &str,
) -> Result<Option<bool>, ErrorResponse> {
    scalar(value, || format!("the field `{field}` must be true or false"))
}

pub(super) fn scalar<'a, T: Deserialize<'a>>(
    value: Option<&'a RawValue>,
    message: impl FnOnce() -> String,
) -> Result<Option<T>, ErrorResponse> {
    let Some(value) = value else { return Ok(None) };
    match serde_json::from_str(value.get()) {
        Ok(value) => Ok(Some(value)),
        Err(_) => Err(ErrorResponse::bad_request(message())),
    }
}
