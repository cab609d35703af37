//! The commands of `throng.v1`.

use std::sync::Arc;

use throng_core::{
    Action, Asker, Body, ChannelName, Counter, Decision, HistoryQuery, Kind, Listener, MessageId,
    Notification, Publication, StartAt,
};
use throng_wire::v1::{self, Command, RawValue};
use throng_wire::websocket::{Opcode, write_frame};
use throng_wire::{ErrorCode, ErrorResponse, Target};

use super::subscribe::{name_of, write_subscribed};
use crate::connection::ConnectionId;
use crate::net::Net;
use crate::worker::Worker;

/// Default number of messages of a history page, and of users of a presence answer.
const PAGE: usize = 100;

/// Maximum size of the envelopes of a history page; the rest is on the next page. A quarter of the
/// control plane's, because all connections of this worker wait while it is encoded.
const PAGE_BYTES_MAX: usize = 256 << 10;

type Reference<'a> = Option<&'a RawValue>;

impl<N: Net> Worker<N> {
    /// Does what a client asks, and answers.
    pub(in crate::worker) fn command(&mut self, id: ConnectionId, text: &str) {
        let received = v1::parse(text);
        let reference = received.reference.as_deref();
        let done = received.command.and_then(|command| self.execute(id, command, reference));
        if let Err(error) = done {
            self.count(Counter::RefusedCommand);
            self.reply(id, |out| v1::error(out, &error, reference));
        }
    }

    fn execute(
        &mut self,
        id: ConnectionId,
        command: Command,
        reference: Reference<'_>,
    ) -> Result<(), ErrorResponse> {
        match command {
            Command::Subscribe { target, since, history } => {
                self.subscribe_more(id, &target, since.as_deref(), history, reference)
            }
            Command::Unsubscribe { target } => self.unsubscribe(id, &target, reference),
            Command::Publish { target, publication, echo } => {
                self.publish_command(id, &target, publication, echo, reference)
            }
            Command::History { target, limit, before, after } => {
                self.history(id, &target, limit, before.as_deref(), after.as_deref(), reference)
            }
            Command::Presence { target, limit } => self.presence(id, target, limit, reference),
            Command::Ping => {
                self.reply(id, |out| v1::pong(out, reference));
                Ok(())
            }
        }
    }

    fn subscribe_more(
        &mut self,
        id: ConnectionId,
        target: &Target,
        since: Option<&str>,
        history: Option<u32>,
        reference: Reference<'_>,
    ) -> Result<(), ErrorResponse> {
        let name = name_of(target);
        self.permit(id, Action::Subscribe(&name))?;
        let own = self.subscriptions_in_order(id);
        if own.len() >= self.settings.max_channels_per_connection {
            return Err(ErrorResponse::too_many_channels(
                self.settings.max_channels_per_connection,
            ));
        }
        if self.find_subscription(id, &name).is_some() {
            let sentence = format!("this connection follows {} already", target.name);
            return Err(ErrorResponse::new(ErrorCode::AlreadySubscribed, sentence));
        }
        if name.kind() == Kind::User && self.user_of(id).is_some() {
            return Err(ErrorResponse::new(
                ErrorCode::BadRequest,
                "a connection belongs to at most one user",
            ));
        }
        let start = match (since, history) {
            (Some(since), _) => StartAt::After(since.parse::<MessageId>()?),
            (None, Some(count)) => StartAt::Last(count as usize),
            (None, None) => StartAt::Live,
        };
        let followed = self.follow(id, &name, start);
        if followed.is_recovered == Some(false) {
            self.count(Counter::Gaps);
        }
        self.reply(id, |out| write_subscribed(out, target, &followed, reference));
        if let Some(first) =
            self.connections.get(id).and_then(|connection| connection.newest_subscription)
        {
            self.catch_up(id, first);
            self.subscriptions.trim_channel_of(first);
        }
        Ok(())
    }

    fn unsubscribe(
        &mut self,
        id: ConnectionId,
        target: &Target,
        reference: Reference<'_>,
    ) -> Result<(), ErrorResponse> {
        let Some(subscription) = self.find_subscription(id, &name_of(target)) else {
            let sentence = format!("this connection does not follow {}", target.name);
            return Err(ErrorResponse::new(ErrorCode::NotSubscribed, sentence));
        };
        let first = self.connections.get(id).and_then(|connection| connection.newest_subscription);
        let first = self.subscriptions.unchain(first, subscription);
        if let Some(connection) = self.connections.get_mut(id) {
            connection.newest_subscription = first;
        }
        if let Some(left) = self.subscriptions.leave(subscription) {
            self.engine.unfollow(self.now.unix_ms, left.channel, self.id);
        }
        self.reply(id, |out| v1::unsubscribed(out, target, reference));
        Ok(())
    }

    fn publish_command(
        &mut self,
        id: ConnectionId,
        target: &Target,
        publication: v1::Publication,
        is_echoed: bool,
        reference: Reference<'_>,
    ) -> Result<(), ErrorResponse> {
        let name = name_of(target);
        self.permit(id, Action::Publish(&name))?;
        let bytes_max = self.settings.max_message_bytes;
        if publication.body.len() > bytes_max {
            return Err(ErrorResponse::message_too_large(bytes_max));
        }
        let (body, content_type) =
            Body::parse(&publication.body, publication.content_type.as_deref())?;
        let publication = Publication {
            channel: name,
            body,
            content_type,
            idempotency_key: publication.key.map(Into::into),
            excluded: if is_echoed { None } else { self.connections.name(id) },
        };
        let is_spared = !is_echoed && self.find_subscription(id, &publication.channel).is_some();
        let published = self.engine.publish(self.now.unix_ms, publication)?;
        self.count(Counter::Published);
        let message_id = published.id.to_string();
        self.reply(id, |out| {
            let subscribers = published.subscribers.saturating_sub(u64::from(is_spared));
            let is_duplicate = published.is_duplicate;
            v1::published(out, target, &message_id, subscribers, is_duplicate, reference);
        });
        Ok(())
    }

    fn history(
        &mut self,
        id: ConnectionId,
        target: &Target,
        limit: Option<u32>,
        before: Option<&str>,
        after: Option<&str>,
        reference: Reference<'_>,
    ) -> Result<(), ErrorResponse> {
        let name = name_of(target);
        self.permit(id, Action::ReadHistory(&name))?;
        let query = match (before, after) {
            (Some(_), Some(_)) => {
                return Err(ErrorResponse::new(
                    ErrorCode::BadRequest,
                    "give either before or after",
                ));
            }
            (Some(before), None) => HistoryQuery::Before(before.parse::<MessageId>()?),
            (None, Some(after)) => HistoryQuery::After(after.parse::<MessageId>()?),
            (None, None) => HistoryQuery::Newest,
        };
        let limit = limit.map_or(PAGE, |limit| limit as usize);
        let mut history = self.engine.history(self.now.unix_ms, &name, query, limit);
        let envelopes = history.encode(query, PAGE_BYTES_MAX);
        let page = v1::HistoryPage {
            target,
            id: &history.head.to_string(),
            has_more: history.has_more,
            is_recovered: history.is_recovered,
        };
        let writers = envelopes.iter();
        let writers = writers.map(|envelope| |out: &mut Vec<u8>| out.extend_from_slice(envelope));
        self.reply(id, |out| v1::history(out, page, writers, reference));
        Ok(())
    }

    fn presence(
        &mut self,
        id: ConnectionId,
        target: Target,
        limit: Option<u32>,
        reference: Reference<'_>,
    ) -> Result<(), ErrorResponse> {
        let name = name_of(&target);
        self.permit(id, Action::ReadPresence(&name))?;
        let limit = limit.map_or(PAGE, |limit| limit as usize);
        let Some(own) = self.connections.expect_live(id) else { return Ok(()) };
        let pending = own.io.as_ref().map_or(0, |io| io.pending_queries);
        // As many as it may follow channels: the queries of other connections have their turn, too.
        if pending as usize >= self.settings.max_channels_per_connection {
            let message =
                format!("{pending} presence queries of this connection are not answered yet");
            return Err(ErrorResponse::new(ErrorCode::Busy, message));
        }
        let engine = Arc::clone(&self.engine);
        let (worker, connection) = (self.id, self.connections.name_of(id, own));
        let reference = reference.map(ToOwned::to_owned);
        let done = move |presence: throng_core::Presence| {
            let mut out = Vec::new();
            let reference = reference.as_deref();
            let throng_core::Presence { connections, users, is_cut } = presence;
            v1::presence(&mut out, &target, connections, &users, is_cut, reference);
            let text = String::from_utf8(out).unwrap_or_default();
            engine.post(worker, Notification::Answer { connection, text });
        };
        self.engine.presence(self.now.unix_ms, &name, limit, Box::new(done))?;
        if let Some(connection) = self.connections.expect_live_mut(id) {
            connection.io_mut().pending_queries += 1;
        }
        Ok(())
    }

    /// Fails unless the connection may do this.
    pub(in crate::worker) fn permit(
        &self,
        id: ConnectionId,
        action: Action<'_>,
    ) -> Result<(), ErrorResponse> {
        let user = self.user_of(id);
        let user = user.as_ref().map(ChannelName::name);
        match self.access.may(&Asker { listener: Listener::Public, user }, action) {
            Decision::Allowed => Ok(()),
            Decision::Denied(message) => Err(ErrorResponse::new(ErrorCode::Forbidden, message)),
        }
    }

    /// Writes one JSON text as a frame.
    pub(in crate::worker) fn reply(&mut self, id: ConnectionId, write: impl FnOnce(&mut Vec<u8>)) {
        let mut json = Vec::new();
        write(&mut json);
        let mut frame = Vec::with_capacity(json.len() + 8);
        write_frame(&mut frame, Opcode::Text, &json);
        self.send(id, &frame);
    }
}
