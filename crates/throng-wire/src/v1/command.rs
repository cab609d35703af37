//! The commands of clients.

use serde_json::value::RawValue;

use super::fields::{Fields, boolean, owned, pace, replay, string, time};
use super::list::{List, Verb};
use super::publication::{Publication, expires_in};
use crate::credential::Token;
use crate::error::ErrorResponse;
use crate::member::MemberClaim;
use crate::name::Target;
use crate::page_range::PageRange;
use crate::subscribe::Replay;
use crate::unknown;

/// The commands and the fields that each may have.
pub const COMMANDS: [(&str, &[&str]); 10] = [
    (
        "subscribe",
        &[
            "type",
            "ref",
            "channel",
            "user",
            "channels",
            "since",
            "since_time",
            "history",
            "state",
            "presence",
            "info",
            "pace",
            "expires_in",
        ],
    ),
    ("unsubscribe", &["type", "ref", "channel", "user", "channels"]),
    (
        "publish",
        &[
            "type",
            "ref",
            "channel",
            "user",
            "data",
            "encoding",
            "content_type",
            "key",
            "expires_in",
            "volatile",
            "event",
            "tags",
            "state_key",
            "tombstone",
            "echo",
        ],
    ),
    (
        "history",
        &["type", "ref", "channel", "user", "limit", "before", "after", "since_time", "order"],
    ),
    ("presence", &["type", "ref", "channel", "user", "limit", "after"]),
    ("update", &["type", "ref", "channel", "user", "info"]),
    ("read", &["type", "ref", "channel", "user", "id", "back"]),
    ("auth", &["type", "ref", "token"]),
    ("ack", &["type", "ref", "frames"]),
    ("ping", &["type", "ref"]),
];

/// A command of `throng.v1`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    Subscribe {
        target: Target,
        /// The id to resume after.
        since: Option<String>,
        /// The earlier messages to start with.
        replay: Option<Replay>,
        /// True if to tell who is in the channel.
        presence: bool,
        /// What the client says of itself to the other members.
        member: Option<Box<MemberClaim>>,
        /// For how many seconds it subscribes; `None`: for as long as it may.
        expires_in_s: Option<u32>,
        /// The least time between two deliveries, in milliseconds, if the client wants one.
        pace_ms: Option<u32>,
    },
    Unsubscribe {
        target: Target,
    },
    /// Subscribes to many channels, or ends many subscriptions.
    Many(List),
    Publish {
        target: Target,
        publication: Publication,
        /// True if this connection receives the message too.
        echo: bool,
    },
    /// Lists messages of a channel.
    History {
        target: Target,
        page: PageRange,
        /// How many messages to list at most.
        limit: Option<u32>,
    },
    /// Lists the connected users.
    Presence {
        target: Target,
        /// The largest number of users, 1 to [`LIMIT_MAX`].
        limit: Option<u32>,
        /// The member behind which the list begins, where the server keeps one.
        after: Option<String>,
    },
    /// Shows something else of the client to the other members.
    Update {
        target: Target,
        /// As [`member_info`](crate::member::member_info) has it.
        info: Box<str>,
    },
    /// Reads or moves the marker of what a user has read.
    Read {
        /// The user whose inbox it is in, or the channel, in which it is the connection's user's.
        target: Target,
        /// The message up to which the user has read; `None` to leave the marker where it is.
        id: Option<String>,
        /// True if the marker may move back.
        back: bool,
    },
    /// Shows a newer token of the same user.
    Auth {
        /// The newer token, not verified yet.
        token: Token,
    },
    /// Signs in as a user that the application has signed for this connection, which the dialect
    /// has checked.
    SignIn {
        /// The application's own name of the user.
        user: Box<str>,
        /// Its names of those of whom the client is told whether they are online.
        watchlist: Vec<Box<str>>,
    },
    /// Acknowledges frames with messages that the server has asked about. It has no answer.
    Ack {
        /// The number of further frames that the client is done with, at least 1.
        frames: u32,
    },
    Ping,
}

/// The result of [`parse`].
#[derive(Debug)]
pub struct Received {
    /// The field `ref`, which the reply repeats; `None` also if it is too long, or neither a string
    /// nor a number.
    pub reference: Option<Box<RawValue>>,
    /// The command, or the error to reply with.
    pub command: Result<Command, ErrorResponse>,
}

/// Parses the text of one frame.
pub fn parse(text: &str) -> Received {
    match Fields::parse(text) {
        Ok(fields) => {
            let command = Command::from_fields(&fields, text);
            Received { reference: fields.reference(), command }
        }
        Err(error) => Received { reference: None, command: Err(error) },
    }
}

impl Command {
    fn from_fields(fields: &Fields<'_>, text: &str) -> Result<Command, ErrorResponse> {
        let kind = string(fields.kind, "type")?
            .ok_or_else(|| ErrorResponse::bad_request("the field `type` is missing"))?;
        let Some((_, known)) = COMMANDS.iter().find(|(name, _)| *name == kind) else {
            let names: Vec<_> = COMMANDS.iter().map(|(name, _)| *name).collect();
            let message = "the value of `type` is not a command".to_owned();
            return Err(ErrorResponse::bad_request(unknown::with_hint(message, &kind, &names)));
        };
        fields.check_names(&format!("`{kind}`"), known)?;
        if let Some(channels) = fields.channels {
            let is_begin = kind == "subscribe";
            let verb = if is_begin { Verb::Subscribe } else { Verb::Unsubscribe };
            return Ok(Command::Many(List::from_fields(verb, fields, channels, text)?));
        }
        Ok(match &*kind {
            "subscribe" => Command::Subscribe {
                target: fields.target()?.checked()?,
                since: owned(fields.since, "since")?,
                replay: replay(fields)?,
                presence: boolean(fields.presence, "presence")?.unwrap_or(false),
                member: fields.info()?.map(|info| {
                    Box::new(MemberClaim { info: Some(info), ..MemberClaim::default() })
                }),
                expires_in_s: expires_in(fields.expires_in)?,
                pace_ms: pace(fields.pace)?,
            },
            "unsubscribe" => Command::Unsubscribe { target: fields.target()? },
            "publish" => Command::Publish {
                target: fields.target()?.checked()?,
                publication: Publication::from_fields(fields)?,
                echo: boolean(fields.echo, "echo")?.unwrap_or(true),
            },
            "history" => Command::History {
                target: fields.target()?,
                page: PageRange::of(
                    owned(fields.before, "before")?,
                    owned(fields.after, "after")?,
                    time(fields.since_time)?,
                    string(fields.order, "order")?.as_deref(),
                )
                .map_err(ErrorResponse::bad_request)?,
                limit: fields.page_limit()?,
            },
            "presence" => Command::Presence {
                target: fields.target()?,
                limit: fields.limit()?,
                after: owned(fields.after, "after")?,
            },
            "update" => Command::Update {
                target: fields.target()?,
                info: fields.info()?.ok_or_else(|| {
                    ErrorResponse::bad_request("the field `info` is missing: a JSON object")
                })?,
            },
            "read" => Command::Read {
                target: fields.target()?,
                id: owned(fields.id, "id")?,
                back: boolean(fields.back, "back")?.unwrap_or(false),
            },
            "auth" => Command::Auth { token: fields.token()? },
            "ack" => Command::Ack { frames: fields.frames()? },
            _ => Command::Ping,
        })
    }
}
