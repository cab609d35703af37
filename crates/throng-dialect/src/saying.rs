//! Notices and answers to commands: all that the server says beside messages, in any dialect.

use std::borrow::Cow;
use std::sync::Arc;

use throng_core::{ChannelId, Epoch, Followed, Message, MessageId, clock};
use throng_pusher::SocketId;
use throng_wire::sse::ServerEvent;
use throng_wire::v1::{self, HistoryPage, ListReply, MemberEvent, PartialEvent, RawValue, Terms};
use throng_wire::{ErrorResponse, Target};

use crate::framing::Out;

/// The first words to a client.
#[derive(Debug)]
pub struct Welcome<'a> {
    /// The name of the connection.
    pub connection: &'a str,
    /// The same as applications call it, in a dialect that has such.
    pub socket: Option<SocketId>,
    /// The position at which it starts.
    pub id: &'a str,
    /// True if all channels that resume have recovered; `None` if none resumes.
    pub recovered: Option<bool>,
    /// How many messages its user has not read; `None` without a user.
    pub unread: Option<u64>,
    pub terms: Terms,
    /// True if the client, or the settings, ask for a welcome where that is optional.
    pub is_wanted: bool,
}

/// Where a subscription starts.
#[derive(Debug)]
pub struct Start {
    pub id: MessageId,
    /// The number of the channel on this node.
    pub number: ChannelId,
    /// The id of the last message of the backlog, if there is one.
    pub head: Option<MessageId>,
    pub recovered: Option<bool>,
    /// The members of the channel as JSON objects, if the client follows these and its dialect
    /// [has them here](crate::Dialect::confirms_with_members).
    pub members: Option<Vec<Arc<str>>>,
}

impl Start {
    /// The start of a subscription that the engine has begun.
    pub fn of(followed: &Followed) -> Start {
        let &Followed { cursor, head, is_recovered, channel, .. } = followed;
        let head = Some(head).filter(|head| *head != cursor);
        Start { id: cursor, number: channel, head, recovered: is_recovered, members: None }
    }

    /// Appends the JSON object that confirms the subscription, with the number of its channel if
    /// the client is to know that.
    pub(crate) fn write(
        &self,
        target: &Target,
        number: Option<ChannelId>,
        reference: Option<&RawValue>,
        out: &mut Vec<u8>,
    ) {
        let (id, head) = (self.id.to_string(), self.head.map(|head| head.to_string()));
        let number = number.map(|ChannelId(number)| number);
        let recovered = self.recovered;
        let begin = v1::Begin { id: &id, head: head.as_deref(), recovered, number };
        v1::subscribed(out, target, begin, reference);
    }
}

/// The members of a channel.
pub type Present<'a> = v1::Present<'a, Arc<str>>;

/// A notice, or the answer to a command.
#[derive(Debug)]
pub enum Saying<'a> {
    Welcome(Welcome<'a>),
    /// A subscription has begun: with the connection, or by a command.
    Subscribed(&'a Target, Start),
    Unsubscribed(&'a Target),
    /// The numbers of channels that no confirmation of a subscription tells, for clients with
    /// compact envelopes.
    Numbers(&'a [v1::Numbered<Epoch>]),
    /// The answer to a command about many channels.
    Many(&'a ListReply),
    /// A subscription has ended because the client may not have it any more.
    Revoked(&'a Target, &'a ErrorResponse),
    /// Messages are lost, as many as `missed` if that is known; those after `id` follow.
    Gap {
        target: &'a Target,
        missed: Option<u64>,
        id: &'a str,
    },
    /// The client has skipped messages for a newer one, as many as `count` if that is known.
    Conflated {
        target: &'a Target,
        count: Option<u64>,
    },
    /// The client has the state of a channel, as it was at the message `id`.
    State {
        target: &'a Target,
        id: &'a str,
    },
    /// A channel has ended, and with it the subscription: `id` was its last message.
    Ended {
        target: &'a Target,
        id: &'a str,
        /// True if the connection followed nothing else, and closes.
        is_last: bool,
    },
    /// Messages come late from now on, or do not.
    Late(bool),
    /// Presence of a channel: the server's JSON object.
    Presence(&'a [u8]),
    /// A member of a channel has joined, has changed, or has left. What a new subscriber is told
    /// first is as if all that are there had joined.
    Member(MemberEvent<'a>),
    /// The client has been told of all members of a channel, as it was at the message `id` of their
    /// log.
    Members {
        channel: &'a str,
        id: &'a str,
        count: u64,
        /// True if other nodes may have more.
        is_partial: bool,
    },
    /// Members of a channel may be missing from now on, or are not any more.
    Partial(PartialEvent<'a>),
    /// The permission of the connection ends in so many seconds.
    Expiring(u64),
    /// A command, or a message, is refused.
    Error(&'a ErrorResponse),
    Published {
        target: &'a Target,
        /// `None` if the message is volatile.
        id: Option<&'a str>,
        subscribers: u64,
        is_duplicate: bool,
    },
    /// A page of history and its envelopes.
    History(HistoryPage<'a>, &'a [Vec<u8>]),
    Present(&'a Target, Present<'a>),
    /// What the client shows of itself is taken.
    Updated(&'a Target),
    /// How far a user has read, and how many messages after that there are.
    Read(&'a Target, Option<&'a str>, u64),
    /// The same, once another device of the user has read on.
    Unread(&'a Target, Option<&'a str>, u64),
    /// These users, whom the client watches, are online now, or not any more.
    Watched {
        users: &'a [&'a str],
        is_online: bool,
    },
    /// The client watches too many users.
    Unwatched(&'a ErrorResponse),
    /// A newer token is taken: of which user, and for how many seconds.
    Authenticated(Option<&'a str>, u64),
    Pong,
}

impl Saying<'_> {
    /// The event that says it over SSE.
    fn event(&self) -> ServerEvent {
        match self {
            Saying::Welcome(_) => ServerEvent::Welcome,
            Saying::Gap { .. } => ServerEvent::Gap,
            Saying::Conflated { .. } => ServerEvent::Conflated,
            Saying::State { .. } => ServerEvent::State,
            Saying::Ended { .. } => ServerEvent::Ended,
            Saying::Late(_) => ServerEvent::Late,
            Saying::Presence(_)
            | Saying::Member(_)
            | Saying::Members { .. }
            | Saying::Partial(_) => ServerEvent::Presence,
            Saying::Expiring(_) => ServerEvent::Expiring,
            Saying::Error(_) => ServerEvent::Error,
            Saying::Numbers(_) => ServerEvent::Numbers,
            Saying::Unread(..) => ServerEvent::Unread,
            // Only commands have these answers, and only WebSockets have commands.
            _ => ServerEvent::Answer,
        }
    }

    /// True if it is left out of connections that are not asked to begin with words of the server.
    pub(crate) fn is_unasked(&self) -> bool {
        matches!(self, Saying::Welcome(Welcome { is_wanted: false, .. }) | Saying::Subscribed(..))
    }

    /// As [`Saying::native`], where it looks like a message: without what the client has not asked
    /// for, what the end of the connection says, and notices of lateness, which a page would take
    /// for messages.
    pub(crate) fn as_message(&self, reference: Option<&RawValue>, out: &mut Out<'_>) {
        let is_said = matches!(self, Saying::Ended { is_last: true, .. });
        if !self.is_unasked() && !is_said && !matches!(self, Saying::Late(_)) {
            self.native(reference, out);
        }
    }

    /// Appends the JSON object of our own dialects that says it.
    pub(crate) fn native(&self, reference: Option<&RawValue>, out: &mut Out<'_>) {
        let mut json = Vec::new();
        let to = &mut json;
        match *self {
            Saying::Welcome(Welcome { connection, id, recovered, unread, .. }) => {
                v1::greeting(to, Some(connection), id, recovered, unread);
            }
            Saying::Subscribed(target, ref start) => start.write(target, None, reference, to),
            Saying::Numbers(numbered) => v1::numbers(to, numbered),
            Saying::Unsubscribed(target) => v1::unsubscribed(to, target, reference),
            Saying::Many(answer) => answer.write(to, reference),
            Saying::Revoked(target, error) => v1::revoked(to, target, error),
            Saying::Gap { target, missed, id } => v1::gap(to, target, missed, id),
            Saying::Conflated { target, count } => v1::conflated(to, target, count),
            Saying::State { target, id } => v1::state(to, target, id),
            Saying::Ended { target, id, .. } => v1::ended(to, target, id),
            Saying::Late(is_late) => v1::late(to, is_late),
            Saying::Presence(object) => return out.notice(self.event(), object),
            Saying::Member(event) => v1::member(to, event),
            Saying::Members { channel, id, count, is_partial } => {
                v1::members(to, channel, id, count, is_partial);
            }
            Saying::Partial(event) => v1::partial(to, event),
            Saying::Updated(target) => v1::updated(to, target, reference),
            Saying::Expiring(left_s) => v1::expiring(to, left_s),
            Saying::Error(error) => v1::error(to, error, reference),
            Saying::Published { target, id, subscribers, is_duplicate } => {
                v1::published(to, target, id, subscribers, is_duplicate, reference);
            }
            Saying::History(page, envelopes) => {
                let writers = envelopes.iter();
                let writers = writers.map(|envelope| move |out: &mut Vec<u8>| out.extend(envelope));
                v1::history(to, page, writers, reference);
            }
            Saying::Present(target, ref present) => {
                v1::presence(to, target, Present { ..*present }, reference);
            }
            Saying::Read(target, read, unread) => v1::read(to, target, (read, unread), reference),
            Saying::Unread(target, read, unread) => v1::unread(to, target, (read, unread)),
            Saying::Authenticated(user, left_s) => v1::authenticated(to, user, left_s, reference),
            Saying::Pong => v1::pong(to, reference),
            // Only clients of applications watch users.
            Saying::Watched { .. } | Saying::Unwatched(_) => return,
        }
        out.notice(self.event(), &json);
    }
}

/// True if a message is one of the server, a JSON object that is complete in itself: it has neither
/// an id nor an envelope.
pub fn is_notice(message: &Message) -> bool {
    message.channel.is_presence() || message.unread().is_some()
}

/// The JSON object of our own dialects for a [notice](is_notice).
pub fn notice_json(message: &Message) -> Cow<'_, [u8]> {
    let id = message.id.to_string();
    let mut json = Vec::new();
    match of_members(message, &id) {
        Some(Saying::Member(event)) => v1::member(&mut json, event),
        Some(Saying::Partial(event)) => v1::partial(&mut json, event),
        _ => return message.body.bytes().into(),
    }
    json.into()
}

/// What a message with this id says of the members of a channel; `None` if it is about something
/// else.
pub(crate) fn of_members<'a>(message: &'a Message, id: &'a str) -> Option<Saying<'a>> {
    let (channel, time_ms) = (message.channel.name(), clock::wall_ms(message.time_ms));
    if let Some(is_partial) = message.is_list_partial() {
        return Some(Saying::Partial(PartialEvent { channel, id, time_ms, is_partial }));
    }
    let object =
        str::from_utf8(message.body.bytes()).ok().filter(|_| message.channel.is_members())?;
    let event = message.facts().event.unwrap_or("update");
    Some(Saying::Member(MemberEvent { channel, event, id, time_ms, object }))
}
