//! Parks a connection: follows its channels and answers the request.

use std::sync::Arc;

use throng_core::{
    Action, Asker, ChannelName, Counter, Decision, Follow, Followed, Listener, Message, Parked,
    Position, StartAt,
};
use throng_wire::response::{self, SubscriptionHeaders};
use throng_wire::subscribe::{Request, Transport};
use throng_wire::{ErrorCode, ErrorResponse, Kind, Target, is_local, v1};

use super::Worker;
use super::close::refused_counter;
use super::deliver::frame_notice;
use crate::connection::{Flags, Poll, State};
use crate::framing::Framing;
use crate::net::Net;

impl<N: Net> Worker<N> {
    /// Does what the request asks, or refuses it. `bytes` begin with the request. Returns whether
    /// the connection is still here: one for which there is no place goes to a worker that has one.
    pub(super) fn subscribe(&mut self, index: u32, request: &Request, bytes: &[u8]) -> bool {
        let checked = self.check(index, request);
        let (names, starts) = match checked {
            Ok(checked) => checked,
            Err(error) => {
                self.count(refused_counter(error.code));
                self.log_error(index, bytes, error.code);
                let may_read = error.code != ErrorCode::OriginRefused;
                self.refuse(index, &error, request.origin.as_deref().filter(|_| may_read));
                return true;
            }
        };
        // A long-poll that goes on is no new subscription: messages may wait for it.
        let goes_on =
            matches!(request.transport, Transport::LongPoll { .. }) && request.since.is_some();
        if self.doors_closed.is_some() && !goes_on {
            self.log_error(index, bytes, ErrorCode::Draining);
            self.turn_away(index, request, ErrorCode::Draining);
            return true;
        }
        let mut index = index;
        let is_in_reserve = !self.has_place(index);
        if is_in_reserve {
            let Some(stays) = self.move_on(index, bytes) else { return false };
            index = stays;
            if !self.may_view(request) {
                self.log_error(index, bytes, ErrorCode::Full);
                self.turn_away(index, request, ErrorCode::Full);
                return true;
            }
        }
        let was_served = self.connections.get(index).is_some_and(|it| it.has(Flags::SERVED));
        self.log_subscription(index, request, bytes);
        self.admit_subscriber(index, is_in_reserve);
        self.set_up(index, request);
        let followed: Vec<_> =
            names.iter().zip(starts).map(|(name, start)| self.follow(index, name, start)).collect();
        let told = followed.iter().filter_map(|followed| followed.is_recovered);
        let is_recovered = told.reduce(|all, one| all && one);
        if is_recovered == Some(false) {
            self.count(Counter::Gaps);
        }
        match request.transport {
            Transport::LongPoll { wait_ms } => {
                if !was_served {
                    self.keep_alive(index);
                }
                let backlogs = followed.into_iter().map(|followed| followed.backlog).collect();
                self.start_poll(index, request, wait_ms, is_recovered, backlogs);
            }
            _ => self.start_stream(index, request, &followed, is_recovered),
        }
        true
    }

    /// Names and starts, if the request may have what it asks for.
    fn check(
        &self,
        index: u32,
        request: &Request,
    ) -> Result<(Vec<ChannelName>, Vec<StartAt>), ErrorResponse> {
        // One of the admin listener is checked already, against what holds there.
        if !self.connections.get(index).is_some_and(|it| it.has(Flags::VIEWER)) {
            self.check_origin(request)?;
        }
        if request.targets.len() > self.settings.max_channels_per_connection {
            return Err(ErrorResponse::too_many_channels(
                self.settings.max_channels_per_connection,
            ));
        }
        let names: Vec<_> = request.targets.iter().map(name_of).collect();
        for name in &names {
            let asker = Asker { listener: Listener::Public, user: request.user() };
            if let Decision::Denied(message) = self.access.may(&asker, Action::Subscribe(name)) {
                return Err(ErrorResponse::new(ErrorCode::Forbidden, message));
            }
        }
        let starts = StartAt::of_request(request)?;
        Ok((names, starts))
    }

    /// Whether pages of the request's origin may ask, and whether it may ask for the samples.
    fn check_origin(&self, request: &Request) -> Result<(), ErrorResponse> {
        let (origin, host) = (request.origin.as_deref(), request.host.as_deref());
        self.settings.origin_policy().check(origin, host)?;
        let is_elsewhere = self.settings.has_admin_listener;
        if request.is_status() && (is_elsewhere || !is_local(host, self.settings.listen.ip())) {
            return Err(ErrorResponse::not_local());
        }
        Ok(())
    }

    /// Turns the connection into what the request asks for.
    fn set_up(&mut self, index: u32, request: &Request) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        let flags = Flags::default()
            .with(Flags::HEARD, true)
            .with(Flags::SERVED, connection.has(Flags::SERVED))
            .with(Flags::IN_RESERVE, connection.has(Flags::IN_RESERVE))
            .with(Flags::CHUNKED, !request.is_http10)
            .with(Flags::MULTIPLE, request.is_multiple())
            .with(Flags::KEEP_ALIVE, request.keep_alive)
            .with(Flags::BLOCKED, connection.has(Flags::BLOCKED))
            .with(Flags::WATCHES_WRITABLE, connection.has(Flags::WATCHES_WRITABLE))
            .with(Flags::UNREAD, connection.has(Flags::UNREAD))
            .with(Flags::POSTPONED, connection.has(Flags::POSTPONED))
            .with(Flags::VIEWER, request.is_status());
        connection.state = State::Parked;
        (connection.framing, connection.flags) = match request.transport {
            Transport::WebSocket { is_v1, .. } => {
                let is_envelope = is_v1 || request.envelope;
                let framing =
                    if is_envelope { Framing::WebSocketEnvelope } else { Framing::WebSocket };
                (framing, flags.with(Flags::WEBSOCKET, true).with(Flags::V1, is_v1))
            }
            Transport::Sse if request.envelope => (Framing::SseEnvelope, flags),
            Transport::Sse => (Framing::Sse, flags),
            Transport::Stream | Transport::LongPoll { .. } if request.envelope => {
                (Framing::LineEnvelope, flags)
            }
            Transport::Stream | Transport::LongPoll { .. } => (Framing::Line, flags),
        };
        let (counter, parked) = match request.transport {
            _ if request.is_status() => (Counter::SubscribedStatus, Parked::Status),
            Transport::WebSocket { .. } => (Counter::SubscribedWebSocket, Parked::WebSocket),
            Transport::Sse => (Counter::SubscribedSse, Parked::Sse),
            Transport::Stream => (Counter::SubscribedStream, Parked::Stream),
            Transport::LongPoll { .. } => (Counter::SubscribedPoll, Parked::Poll),
        };
        self.count(counter);
        self.counters.park(parked);
        self.publish_load();
    }

    /// One more subscription of the connection. Returns what the engine answered.
    pub(super) fn follow(&mut self, index: u32, name: &ChannelName, start: StartAt) -> Followed {
        let follow = Follow {
            channel: name,
            worker: self.id,
            local_if_new: self.subscriptions.next_local(),
            start,
        };
        let followed = self.engine.follow(self.now.unix_ms, follow);
        let is_user = name.kind() == Kind::User;
        let sibling = self.connections.get(index).and_then(|it| it.first);
        let subscription = self.subscriptions.join(index, &followed, is_user, sibling);
        if let Some(connection) = self.connections.get_mut(index) {
            connection.first = Some(subscription);
        }
        followed
    }

    /// While a long-poll waits nothing is written to it: the kernel finds out whether it is there.
    fn keep_alive(&mut self, index: u32) {
        if let Some(connection) = self.connections.get(index) {
            self.net.keep_alive(&connection.socket);
        }
    }

    fn start_poll(
        &mut self,
        index: u32,
        request: &Request,
        wait_ms: u32,
        is_recovered: Option<bool>,
        backlogs: Vec<Vec<Arc<Message>>>,
    ) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        connection.state = State::Polling;
        let wait = std::time::Duration::from_millis(u64::from(wait_ms));
        connection.due = self.now.tick.saturating_add(Self::ticks(wait).max(1));
        if request.origin.is_some() || is_recovered.is_some() {
            let origin = request.origin.clone();
            connection.io_mut().poll = Some(Box::new(Poll { origin, is_recovered }));
        }
        // A gap is told at once, although nothing may be left to tell it with.
        let is_due = is_recovered == Some(false) || (wait_ms == 0 && self.drain.is_none());
        self.answer_from(index, &backlogs, is_due);
        self.trim_buffers(index);
        let is_waiting = self.connections.get(index).is_some_and(|it| it.state == State::Polling);
        if is_waiting && self.drain.is_some() {
            // Nothing will come any more.
            self.turn_away(index, request, ErrorCode::Draining);
        }
    }

    fn start_stream(
        &mut self,
        index: u32,
        request: &Request,
        followed: &[Followed],
        is_recovered: Option<bool>,
    ) {
        let id = Position(followed.iter().map(|followed| followed.cursor).collect()).to_string();
        let connection_name = self.name_of(index).to_string();
        let headers = SubscriptionHeaders {
            id: &id,
            recovered: is_recovered,
            connection: Some(&connection_name),
            allow_origin: request.origin.as_deref(),
            date: Some(self.date.get()),
        };
        let mut out = std::mem::take(&mut self.scratch);
        out.clear();
        let is_chunked = !request.is_http10;
        match &request.transport {
            Transport::WebSocket { accept, is_v1 } => {
                response::websocket(&mut out, accept, *is_v1, &headers);
            }
            Transport::Sse => response::sse(&mut out, is_chunked, &headers),
            _ => response::stream(&mut out, is_chunked, content_type(request), &headers),
        }
        self.greet(index, &mut out, request, followed, &headers);
        self.send(index, &out);
        self.scratch = out;
        self.schedule_first_heartbeat(index);
        if self.connections.get(index).is_some_and(|it| it.state == State::Parked) {
            self.flush_subscriptions(index);
            self.trim_buffers(index);
        }
    }

    /// What comes before the first message.
    fn greet(
        &self,
        index: u32,
        out: &mut Vec<u8>,
        request: &Request,
        followed: &[Followed],
        headers: &SubscriptionHeaders<'_>,
    ) {
        let Some(connection) = self.connections.get(index) else { return };
        let (framing, is_chunked) = (connection.framing, connection.has(Flags::CHUNKED));
        let mut json = Vec::new();
        let mut notice = |event: &str, json: &mut Vec<u8>| {
            frame_notice(out, framing, is_chunked, event, json);
            json.clear();
        };
        if connection.has(Flags::V1) {
            let name = headers.connection.unwrap_or_default();
            let heartbeat_s = self.settings.heartbeat.as_secs();
            v1::welcome(&mut json, name, heartbeat_s, self.settings.max_channels_per_connection);
            notice("welcome", &mut json);
            for (target, followed) in request.targets.iter().zip(followed) {
                write_subscribed(&mut json, target, followed, None);
                notice("subscribed", &mut json);
            }
            return;
        }
        if let Some(recovered) = headers.recovered
            && matches!(framing, Framing::Sse | Framing::SseEnvelope)
        {
            json.extend_from_slice(if recovered {
                br#"{"recovered":true}"#
            } else {
                br#"{"recovered":false}"#
            });
            notice("resumed", &mut json);
        }
        if request.welcome.unwrap_or(self.settings.welcome) {
            v1::greeting(&mut json, headers.connection, headers.id, headers.recovered);
            notice("welcome", &mut json);
        }
    }

    /// Lets go of backlogs that nobody needs any more.
    pub(super) fn trim_buffers(&mut self, index: u32) {
        let mut next = self.connections.get(index).and_then(|it| it.first);
        while let Some(subscription) = next {
            self.subscriptions.trim_channel_of(subscription);
            next = self.subscriptions.sibling(subscription);
        }
    }

    /// Where the connection stands in all of its channels.
    pub(super) fn position(&self, index: u32) -> Position {
        let subscriptions = self.subscriptions_in_order(index).into_iter();
        Position(subscriptions.filter_map(|id| self.subscriptions.position(id)).collect())
    }
}

/// The engine's name of what a request names.
pub(super) fn name_of(target: &Target) -> ChannelName {
    ChannelName::new(target.kind, &target.name)
}

fn content_type(request: &Request) -> &'static str {
    if request.envelope { "application/x-ndjson" } else { "text/plain; charset=utf-8" }
}

/// Says on `throng.v1` where a subscription begins, and up to where it is a backlog.
pub(super) fn write_subscribed(
    out: &mut Vec<u8>,
    target: &Target,
    followed: &Followed,
    reference: Option<&v1::RawValue>,
) {
    let Followed { cursor, head, is_recovered, .. } = followed;
    let id = cursor.to_string();
    let head = (head != cursor).then(|| head.to_string());
    v1::subscribed(out, target, &id, head.as_deref(), *is_recovered, reference);
}
