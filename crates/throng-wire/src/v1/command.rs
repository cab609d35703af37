//! What a client asks for.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::{CommandError, Publication};
use crate::{Kind, Target, check_name};

/// The longest `ref` that comes back: a client names its requests with numbers or short strings.
pub const REFERENCE_BYTES_MAX: usize = 64;

/// Entries of a page, of messages or of users, that one request may ask for, here and over HTTP.
pub const LIMIT_MAX: u32 = 1000;

/// What a client may ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Follow a target.
    Subscribe {
        /// The channel or user.
        target: Target,
        /// Everything after this id first.
        since: Option<String>,
        /// This many of the newest messages first.
        history: Option<u32>,
    },
    /// Follow it no longer.
    Unsubscribe {
        /// The channel or user.
        target: Target,
    },
    /// Publish a message.
    Publish {
        /// The channel or user.
        target: Target,
        /// The message.
        publication: Publication,
        /// Whether this connection is to hear it too.
        echo: bool,
    },
    /// List messages.
    History {
        /// The channel or user.
        target: Target,
        /// At most this many, 1 to [`LIMIT_MAX`].
        limit: Option<u32>,
        /// Those before this id.
        before: Option<String>,
        /// Those after this id.
        after: Option<String>,
    },
    /// List who is there.
    Presence {
        /// The channel or user.
        target: Target,
        /// At most this many users, 1 to [`LIMIT_MAX`].
        limit: Option<u32>,
    },
    /// Answer with a pong.
    Ping,
}

/// A command, or what is wrong with it, and how the client names it.
#[derive(Debug)]
pub struct Received {
    /// `ref`, to be sent back. One that is too long, or neither string nor number, is ignored.
    pub reference: Option<Box<RawValue>>,
    /// What the client asks for.
    pub command: Result<Command, CommandError>,
}

/// Parses the text of one frame.
pub fn parse(text: &str) -> Received {
    match Fields::parse(text) {
        Ok(fields) => Received { reference: fields.reference(), command: fields.command() },
        Err(error) => Received { reference: None, command: Err(error) },
    }
}

/// The fields of all commands and of a batch's lines, each still JSON. `null` counts as absent,
/// except that it is a message like any other.
#[derive(Deserialize)]
pub(crate) struct Fields<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(rename = "ref")]
    reference: Option<&'a RawValue>,
    channel: Option<&'a RawValue>,
    user: Option<&'a RawValue>,
    since: Option<&'a RawValue>,
    history: Option<&'a RawValue>,
    limit: Option<&'a RawValue>,
    before: Option<&'a RawValue>,
    after: Option<&'a RawValue>,
    echo: Option<&'a RawValue>,
    exclude: Option<&'a RawValue>,
    #[serde(default, deserialize_with = "present")]
    pub(super) data: Option<&'a RawValue>,
    pub(super) encoding: Option<&'a RawValue>,
    pub(super) content_type: Option<&'a RawValue>,
    pub(super) key: Option<&'a RawValue>,
}

/// Keeps `null`, which an `Option` would take for absence.
fn present<'a, D: Deserializer<'a>>(deserializer: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

impl<'a> Fields<'a> {
    pub(crate) fn parse(text: &'a str) -> Result<Fields<'a>, CommandError> {
        // Asked first, since a derived implementation takes an array for the fields in order.
        let is_object = text.trim_ascii_start().starts_with('{');
        match serde_json::from_str(text) {
            Ok(fields) if is_object => Ok(fields),
            Err(error) if error.is_data() && is_object => {
                // Every value is welcome as a field, so only this is left.
                Err(CommandError::bad_request("a field is there twice"))
            }
            Err(error) if !error.is_data() => {
                Err(CommandError::new("bad_json", format!("this is not JSON: {error}")))
            }
            _ => Err(CommandError::new("bad_json", "this is not a JSON object")),
        }
    }

    fn reference(&self) -> Option<Box<RawValue>> {
        let reference = self.reference?;
        let is_name = reference
            .get()
            .starts_with(|first: char| first == '"' || first == '-' || first.is_ascii_digit());
        (is_name && reference.get().len() <= REFERENCE_BYTES_MAX).then(|| reference.to_owned())
    }

    fn command(&self) -> Result<Command, CommandError> {
        let kind = string(self.kind, "type")?
            .ok_or_else(|| CommandError::bad_request("the field `type` is missing"))?;
        Ok(match &*kind {
            "subscribe" => Command::Subscribe {
                target: self.target()?,
                since: owned(self.since, "since")?,
                history: count(self.history, "history")?,
            },
            "unsubscribe" => Command::Unsubscribe { target: self.target()? },
            "publish" => Command::Publish {
                target: self.target()?,
                publication: Publication::from_fields(self)?,
                echo: boolean(self.echo, "echo")?.unwrap_or(true),
            },
            "history" => Command::History {
                target: self.target()?,
                limit: self.limit()?,
                before: owned(self.before, "before")?,
                after: owned(self.after, "after")?,
            },
            "presence" => Command::Presence { target: self.target()?, limit: self.limit()? },
            "ping" => Command::Ping,
            _ => return Err(CommandError::bad_request("the value of `type` is unknown")),
        })
    }

    pub(crate) fn target(&self) -> Result<Target, CommandError> {
        let (kind, value) = match (self.channel, self.user) {
            (Some(channel), None) => (Kind::Channel, channel),
            (None, Some(user)) => (Kind::User, user),
            (Some(_), Some(_)) => {
                return Err(CommandError::bad_request("`channel` and `user` exclude each other"));
            }
            (None, None) => {
                return Err(CommandError::bad_request("the field `channel` or `user` is missing"));
            }
        };
        let name = decoded_string(value, kind.noun())?;
        check_name(&name, kind.noun())
            .map_err(|error| CommandError::new("bad_name", error.to_string()))?;
        Ok(Target { kind, name: name.into_owned() })
    }

    fn limit(&self) -> Result<Option<u32>, CommandError> {
        let message = || format!("the field `limit` must be a number from 1 to {LIMIT_MAX}");
        match scalar(self.limit, message)? {
            Some(limit) if !(1..=LIMIT_MAX).contains(&limit) => {
                Err(CommandError::bad_request(message()))
            }
            limit => Ok(limit),
        }
    }

    pub(crate) fn exclude(&self) -> Result<Option<String>, CommandError> {
        owned(self.exclude, "exclude")
    }
}

pub(super) fn string<'a>(
    value: Option<&'a RawValue>,
    field: &str,
) -> Result<Option<Cow<'a, str>>, CommandError> {
    value.map(|value| decoded_string(value, field)).transpose()
}

pub(super) fn owned(value: Option<&RawValue>, field: &str) -> Result<Option<String>, CommandError> {
    Ok(string(value, field)?.map(Cow::into_owned))
}

/// Decodes a JSON string. What is one by its first character can only fail to be Unicode.
pub(super) fn decoded_string<'a>(
    value: &'a RawValue,
    field: &str,
) -> Result<Cow<'a, str>, CommandError> {
    #[derive(Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

    if !value.get().starts_with('"') {
        return Err(CommandError::bad_request(format!("the field `{field}` must be a string")));
    }
    match serde_json::from_str::<Text<'a>>(value.get()) {
        Ok(text) => Ok(text.0),
        Err(_) => {
            let message = format!("the field `{field}` holds half of a surrogate pair");
            Err(CommandError::new("bad_utf8", message))
        }
    }
}

fn count(value: Option<&RawValue>, field: &str) -> Result<Option<u32>, CommandError> {
    scalar(value, || format!("the field `{field}` must be a whole number of at most {}", u32::MAX))
}

fn boolean(value: Option<&RawValue>, field: &str) -> Result<Option<bool>, CommandError> {
    scalar(value, || format!("the field `{field}` must be true or false"))
}

fn scalar<'a, T: Deserialize<'a>>(
    value: Option<&'a RawValue>,
    message: impl FnOnce() -> String,
) -> Result<Option<T>, CommandError> {
    let Some(value) = value else { return Ok(None) };
    match serde_json::from_str(value.get()) {
        Ok(value) => Ok(Some(value)),
        Err(_) => Err(CommandError::bad_request(message())),
    }
}
