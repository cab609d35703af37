//! Subscribes a connection: checks its request, follows the channels, and answers.

use std::sync::Arc;

use throng_core::{
    AHEAD, ChannelName, Followed, Position, PresenceState, RefusedForMemory, StartAt, Watermark,
    clock,
};
use throng_dialect::saying::{Start, Welcome};
use throng_dialect::{Encoding, Saying};
use throng_wire::head::{Head, KeptHead};
use throng_wire::response::SubscriptionHeaders;
use throng_wire::subscribe::{ConnectionOption, Request, Transport};
use throng_wire::v1::Terms;
use throng_wire::{ErrorCode, ErrorResponse, is_local};

use super::ask::Stop;
use super::client::Client;
use super::kept::{KeptFollowed, user_to_follow};
use super::presence_events;
use super::shown::continues;
use crate::connection::{Answers, Asked, ConnectionId, Flags, State};
use crate::counters::Counter;
use crate::delivery::{heartbeat_bytes, name_of, write_saying};
use crate::net::Net;
use crate::sessions::Sessions;

/// Where the subscriptions of a request begin.
pub(super) struct Begun {
    /// Whether all subscriptions that resume have recovered; `None` if none resumes.
    pub(super) is_recovered: Option<bool>,
    /// The client's position in all channels, if it follows kept ones.
    pub(super) position: Option<Watermark>,
    /// True if any of its channels has messages after that position.
    pub(super) has_backlog: bool,
    /// Presence of the channels for which the client asks and does not know it.
    pub(super) presence: Vec<Arc<PresenceState>>,
    /// How many messages its user has not read, if that was fetched.
    unread: Option<u64>,
}

/// The channels and inboxes of a request.
struct Channels {
    /// The channels in the order of the request.
    names: Vec<ChannelName>,
    starts: Vec<StartAt>,
}

/// A request that subscribes.
#[derive(Clone, Copy)]
pub(super) struct Subscribing<'a> {
    request: &'a Request,
    head: &'a Head<'a>,
    /// The bytes of its head.
    bytes: &'a [u8],
    /// True if the client has sent nothing behind it, as far as is known.
    is_alone: bool,
}

impl Subscribing<'_> {
    fn keep(&self) -> Asked {
        let kept = KeptHead::new(self.head, self.bytes);
        Asked::Subscription(Box::new((self.request.clone(), kept)))
    }
}

impl<N: Net> Sessions<N> {
    /// Subscribes the connection as it requests, or refuses the request, or lets it wait until that
    /// is decided. `bytes` begin with the request, of `length` bytes, and `parsed` is its head.
    /// Returns false if the connection was handed off to a worker with a place for it.
    pub(crate) fn subscribe(
        &mut self,
        id: ConnectionId,
        request: &Request,
        parsed: &Head<'_>,
        bytes: &[u8],
        length: usize,
    ) -> bool {
        let channels = match self.check(id, request) {
            Ok(channels) => channels,
            Err(error) => {
                self.refuse_subscriber(id, request, bytes, &error);
                return true;
            }
        };
        if self.is_too_late(request) {
            self.refuse_subscriber(id, request, bytes, &ErrorCode::Draining.into());
            return true;
        }
        if self.is_short_of_memory(id, request) {
            self.refuse_subscriber(id, request, bytes, &ErrorResponse::short_of_memory());
            return true;
        }
        if self.is_excess(id, request) {
            self.tell_moment(id, request, bytes, length);
            return true;
        }
        // The canary stays in the place of its request head, which a full server has, too.
        if !self.connections().is_canary(id) {
            let is_in_reserve = !self.connections().has_place(id);
            if is_in_reserve {
                // Otherwise it has gone to a worker with a place.
                if !self.hand_off_if_full(id, bytes) {
                    return false;
                }
                if !(request.is_status() && self.connections().has_viewer_place()) {
                    self.refuse_subscriber(id, request, bytes, &ErrorCode::Full.into());
                    return true;
                }
            }
            let was_served = self[id].has(Flags::SERVED);
            if !was_served && matches!(request.transport, Transport::LongPoll { .. }) {
                self.keep_alive(id);
            }
            // One that waits has its place already: there are as many as may wait.
            self.connections_mut().admit_subscriber(id, is_in_reserve);
        }
        let is_alone = bytes.len() == length;
        let asking = Subscribing { request, head: parsed, bytes: &bytes[..length], is_alone };
        self.go_on(id, asking, channels, Answers::default());
        true
    }

    /// Goes on with a request that has waited. Its token is verified again: it may have been
    /// revoked meanwhile.
    pub(crate) fn resume_subscription(
        &mut self,
        id: ConnectionId,
        (request, kept): &(Request, KeptHead),
        answers: Answers,
    ) {
        // The drain may have begun meanwhile.
        let checked = if self.is_too_late(request) {
            Err(ErrorCode::Draining.into())
        } else {
            self.check(id, request)
        };
        let (head, bytes) = (&kept.head(), kept.bytes());
        match checked {
            Ok(channels) => {
                let asking = Subscribing { request, head, bytes, is_alone: false };
                self.go_on(id, asking, channels, answers);
            }
            Err(error) => self.refuse_subscriber(id, request, bytes, &error),
        }
    }

    /// Follows the channels of a request with the answers that it has had, or refuses it, or lets
    /// it wait for the next answer.
    fn go_on(
        &mut self,
        id: ConnectionId,
        asking: Subscribing<'_>,
        channels: Channels,
        mut answers: Answers,
    ) {
        let Subscribing { request, head, bytes, is_alone } = asking;
        let error = match self.follow_if_allowed(id, asking, channels, &mut answers) {
            Ok(()) => return,
            Err(Stop::Later(wait)) => return self.wait(id, wait, asking.keep(), answers),
            Err(Stop::Limited(refusal)) => {
                let reader = self.reader_of(head);
                return self.refuse_limited(id, refusal, Some(request), &reader, bytes, is_alone);
            }
            Err(Stop::Refused(error)) => error,
        };
        self.refuse_subscriber(id, request, bytes, &error);
    }

    fn follow_if_allowed(
        &mut self,
        id: ConnectionId,
        asking: Subscribing<'_>,
        channels: Channels,
        answers: &mut Answers,
    ) -> Result<(), Stop> {
        let Subscribing { request, head, .. } = asking;
        let client = self.identify(id, request, head, answers)?;
        // Its token may grant more than the settings.
        let granted = client.credentials().max_channels();
        let max_channels = self.settings.max_channels_per_connection.max(granted);
        if presence_events::subscriptions_of(request) > max_channels {
            return Err(ErrorResponse::too_many_channels(max_channels).into());
        }
        self.check_channel_limits(&channels.names)?;
        let actions = || presence_events::actions(request, &channels.names);
        if answers.is_allowed {
            // One that has waited since goes by the present rules.
            self.ask_again(&client, actions())?;
        } else {
            let passed = self.passed(id, request, head)?;
            let details = self.details(id, passed.as_ref());
            self.ask_access(id, &client, details, actions(), answers)?;
        }
        if let Some(user) = user_to_follow(request) {
            self.await_kept(id, user)?;
        }
        let wanted = self.starts_of(request, &client, &channels.names, &channels.starts);
        self.fetch_existing(id, &wanted, &mut answers.fetched)?;
        self.follow_all(id, asking, &client, channels, answers);
        Ok(())
    }

    /// True if memory is too short for the subscription. One that has its place keeps it, and the
    /// status shows what is wrong.
    fn is_short_of_memory(&self, id: ConnectionId, request: &Request) -> bool {
        let connection = &self[id];
        let is_here = connection.has(Flags::SERVED) || connection.has(Flags::CANARY);
        let is_exempt = request.is_status() || is_here;
        !is_exempt && self.relief.refuses(RefusedForMemory::Subscription)
    }

    /// True if the server takes no new subscriptions any more. A long-poll that resumes is none:
    /// messages may wait for it, which are lost with the server.
    fn is_too_late(&self, request: &Request) -> bool {
        self.shutdown.has_stopped_accepting() && !continues(request)
    }

    /// Refuses a request that subscribes, and logs it. `bytes` begin with it.
    pub(crate) fn refuse_subscriber(
        &mut self,
        id: ConnectionId,
        request: &Request,
        bytes: &[u8],
        error: &ErrorResponse,
    ) {
        self.log_error(id, bytes, request.request_id.as_deref(), error);
        self.refuse_subscription(id, request, error);
    }

    /// Follows channels whose starts are fetched, and answers.
    fn follow_all(
        &mut self,
        id: ConnectionId,
        asking: Subscribing<'_>,
        client: &Client,
        Channels { names, starts }: Channels,
        answers: &Answers,
    ) {
        let Subscribing { request, head, bytes, .. } = asking;
        let fetched = &answers.fetched;
        let count = presence_events::subscriptions_of(request);
        if let Err(refusal) = self.hold_subscriber(id, client, count) {
            let reader = self.reader_of(head);
            return self.refuse_limited(id, refusal, Some(request), &reader, bytes, false);
        }
        // After all else that may refuse: nobody is told of a member that does not come.
        let begun = self.begin_members(id, request, client, (&names, answers));
        let members = match begun.inspect_err(|_| self.release_subscriber(id, client, count)) {
            Ok(members) => members,
            Err(error) => return self.refuse_subscriber(id, request, bytes, &error),
        };
        self.log_subscription(id, request, bytes);
        self.set_up(id, request);
        self.begin_session(id, client);
        self.notify_connected(id, request, client);
        let kept = self.kept_user(id, request).map(|user| {
            let inbox = ChannelName::user(user);
            let start = names.iter().zip(&starts).find(|(name, _)| **name == inbox);
            let start = start.map_or(StartAt::Live, |(_, start)| *start);
            let position = fetched.position.unwrap_or_else(|| self.kept_position(&inbox, start));
            (user, position, self.start_of_kept(start, position))
        });
        // A message between two reads of the logs must not be missed in one channel only.
        let starts = names.iter().zip(starts).map(|(name, start)| match &kept {
            Some((_, position, _)) => self.start_in_kept(name, start, *position),
            None => start,
        });
        let starts: Vec<_> = starts.collect();
        let mut followed = Vec::with_capacity(names.len());
        for (names, starts) in names.chunks(AHEAD).zip(starts.chunks(AHEAD)) {
            self.look_ahead(names);
            let pairs = names.iter().zip(starts);
            followed.extend(pairs.map(|(name, start)| self.follow(id, name, *start)));
        }
        self.set_pace(id, request.options.get(ConnectionOption::Pace));
        self.begin_states(id, request, &followed);
        self.note_members(id, members);
        let presence = self.follow_presence_events(id, request);
        let mut has_backlog = followed.iter().any(|followed| !followed.backlog.is_empty());
        let position = kept.map(|(user, position, start)| {
            let KeptFollowed { is_recovered, has_backlog: have_more } =
                self.follow_kept(id, user, start);
            has_backlog |= have_more;
            let resumes = request.since.is_some();
            for followed in &mut followed {
                followed.is_recovered =
                    followed.is_recovered.map(|own| own && is_recovered).filter(|_| resumes);
            }
            let before = self.stamp_before(&followed);
            let stamp = before.map_or(position.stamp, |before| before.min(position.stamp));
            self.position_from(position, stamp)
        });
        // Whether all subscriptions that resume have recovered; `None` if none resumes.
        let recovered = followed.iter().filter_map(|followed| followed.is_recovered);
        let is_recovered = recovered.reduce(|all, one| all && one);
        if is_recovered == Some(false) {
            self.count(Counter::Gaps);
        }
        let unread = fetched.unread;
        let begun = Begun { is_recovered, position, has_backlog, presence, unread };
        self.start(id, request, followed, begun);
        self.limit(id, answers.until_ms);
        if let Client::Unidentified = client {
            self.await_identity(id);
        }
        // A stream is ended by its session.
        if let Client::Known(throng_access::Client::Token(identity)) = client
            && self[id].state() == State::LongPolling
        {
            let expires_ms = clock::from_wall_ms(u64::from(identity.expires_s()) * 1000);
            self.limit(id, Some(expires_ms));
        }
    }

    fn start(&mut self, id: ConnectionId, request: &Request, all: Vec<Followed>, begun: Begun) {
        match request.transport {
            Transport::LongPoll { wait_ms } => {
                let backlogs = all.into_iter().map(|followed| followed.backlog).collect();
                self.start_long_poll(id, request, wait_ms, begun, backlogs);
            }
            _ => self.start_stream(id, request, &all, begun),
        }
    }

    /// Begins the subscriptions of a stream with the states of their channels, if the client wants
    /// that and does not resume.
    fn begin_states(&mut self, id: ConnectionId, request: &Request, followed: &[Followed]) {
        if !request.wants_state() || matches!(request.transport, Transport::LongPoll { .. }) {
            return;
        }
        for (own, followed) in self.subscriptions_in_order(id).into_iter().zip(followed) {
            if followed.is_recovered != Some(true) {
                self.begin_state(own, followed.head);
            }
        }
    }

    /// Ends what the connection may do at this time, in milliseconds since 1970, if not earlier: a
    /// stream is closed then. A long-poll is answered, and its client asks again.
    pub(crate) fn limit(&mut self, id: ConnectionId, until_ms: Option<u64>) {
        let Some(until_ms) = until_ms else { return };
        let expires = self.clock().tick_at(until_ms);
        let connection = &mut self[id];
        match connection.state() {
            State::Streaming => self.connections_mut().limit(id, expires),
            State::LongPolling => connection.due = connection.due.min(expires),
            // It has its answer.
            State::Head | State::Waiting | State::Closing | State::Condemned => {}
        }
    }

    /// The channels of the request and where to start in each, if it is allowed apart from the
    /// access policy.
    fn check(&self, id: ConnectionId, request: &Request) -> Result<Channels, ErrorResponse> {
        // The control plane has checked a connection of the admin listener, by the rules of that
        // listener.
        match &request.app {
            // The key of an application is public, and nothing that a browser has by itself counts.
            Some(key) => self.check_app_page(request, key)?,
            None if !self[id].has(Flags::VIEWER) => self.check_origin(request)?,
            None => {}
        }
        self.check_presence_events(request)?;
        let names = request.targets.iter().map(name_of).collect();
        Ok(Channels { names, starts: StartAt::of_request(request)? })
    }

    /// Fails unless pages of the request's origin may subscribe, and unless it may follow the
    /// status samples if it asks for them.
    fn check_origin(&self, request: &Request) -> Result<(), ErrorResponse> {
        let (origin, host) = (request.origin.as_deref(), request.host.as_deref());
        let pages = self.settings.pages.load();
        self.settings.origin_policy(&pages).check(origin, host)?;
        let is_elsewhere = self.settings.has_admin_listener;
        if request.is_status() && (is_elsewhere || !is_local(host, self.settings.reachable_ip())) {
            return Err(ErrorResponse::not_local());
        }
        Ok(())
    }

    /// Sets the state, framing and flags that the request asks for, and counts the subscriber.
    fn set_up(&mut self, id: ConnectionId, request: &Request) {
        let connection = &mut self[id];
        // Begins without the flags of an earlier request; the socket's and the place's stay.
        let flags = Flags::default()
            .with(Flags::HEARD, true)
            .with(Flags::SERVED, connection.has(Flags::SERVED))
            .with(Flags::IN_RESERVE, connection.has(Flags::IN_RESERVE))
            .with(Flags::CHUNKED, !request.is_http10)
            .with(Flags::MULTIPLE, request.is_multiple())
            .with(Flags::KEEP_ALIVE, request.keep_alive)
            .with(Flags::BLOCKED, connection.has(Flags::BLOCKED))
            .with(Flags::WATCHES_WRITABLE, connection.has(Flags::WATCHES_WRITABLE))
            .with(Flags::READ_DEFERRED, connection.has(Flags::READ_DEFERRED))
            .with(Flags::DELIVERY_DEFERRED, connection.has(Flags::DELIVERY_DEFERRED))
            .with(Flags::VIEWER, request.is_status())
            .with(Flags::CANARY, connection.has(Flags::CANARY));
        let encoding = Encoding::of_request(request);
        let is_compressed = self.compression.is_on()
            && matches!(request.transport, Transport::WebSocket { deflate: Some(_), .. });
        let encoding = if is_compressed { encoding.compressed() } else { encoding };
        let state = match request.transport {
            Transport::LongPoll { .. } => State::LongPolling,
            Transport::WebSocket { .. } | Transport::Sse | Transport::Stream => State::Streaming,
        };
        self.connections_mut().park(id, state, encoding, flags);
        if state == State::Streaming {
            self.connections_mut().set_options(id, request.options.kept());
        }
        if !flags.has(Flags::CANARY) {
            self.count(Counter::of_subscription(request));
            if encoding.has_deflate() {
                self.count(Counter::SubscribedDeflate);
            }
        }
    }

    fn start_stream(
        &mut self,
        id: ConnectionId,
        request: &Request,
        followed: &[Followed],
        Begun { is_recovered, position, presence, unread, .. }: Begun,
    ) {
        // Where it starts: at the ends of its channels, if these have no messages for it.
        let is_over = self.begins_at_end(request, followed);
        let start = |it: &Followed| if is_over { it.head } else { it.cursor };
        let cursors = || Position(followed.iter().map(start).collect());
        let position =
            position.map_or_else(|| cursors().to_string(), |position| position.to_string());
        let connection = &self[id];
        let connection_name = self.connections().name_of(id, connection).to_string();
        let headers = SubscriptionHeaders {
            id: &position,
            recovered: is_recovered,
            has_ended: false,
            state: None,
            connection: Some(&connection_name),
            request_id: request.request_id.as_deref(),
            allow_origin: request.origin.as_deref(),
            allow_credentials: self.allows_cookies(request.origin.as_deref()),
            no_referrer: request.has_query_token,
            date: Some(self.clock().date()),
        };
        if is_over {
            return self.answer_ended(id, &headers);
        }
        let encoding = connection.encoding();
        let mut out = self.buffers().take_output();
        let deflate = match request.transport {
            Transport::WebSocket { deflate, .. } => deflate.filter(|_| encoding.has_deflate()),
            _ => None,
        };
        encoding.dialect().open(request, deflate, &headers, &mut out);
        let head_bytes = out.len();
        self.greet(id, &mut out, (request, followed), &headers, unread);
        self.greet_with_presence(id, &mut out, &presence);
        self.greet_with_lateness(id, &mut out);
        // Some proxies and clients take a stream of events for open only when its first byte has
        // come. Readers of lines would take an empty one for a message.
        if out.len() == head_bytes && matches!(request.transport, Transport::Sse) {
            out.extend_from_slice(heartbeat_bytes(&self[id]));
        }
        self.send(id, &out);
        self.buffers().return_output(out);
        self.schedule_first_heartbeat(id);
        self.flush_subscriptions(id);
        self.trim_replay_buffers(id);
    }

    /// Appends the notices that precede the first message.
    fn greet(
        &self,
        id: ConnectionId,
        out: &mut Vec<u8>,
        (request, followed): (&Request, &[Followed]),
        headers: &SubscriptionHeaders<'_>,
        unread: Option<u64>,
    ) {
        let connection = &self[id];
        let is_wanted =
            request.options.flag(ConnectionOption::Welcome).unwrap_or(self.settings.welcome);
        let is_greeted = is_wanted || connection.has_commands();
        let welcome = Welcome {
            connection: headers.connection.unwrap_or_default(),
            socket: self.socket(id),
            id: headers.id,
            recovered: headers.recovered,
            unread: is_greeted.then(|| self.unread_of(request, unread)).flatten(),
            terms: Terms {
                heartbeat_s: self.heartbeat_interval(id).as_secs(),
                max_channels: self.max_channels(id),
                max_message_bytes: self.settings.max_message_bytes,
            },
            is_wanted,
        };
        write_saying(connection, &Saying::Welcome(welcome), None, out);
        for (target, followed) in request.targets.iter().zip(followed) {
            let start = Start::of(followed);
            write_saying(connection, &Saying::Subscribed(target, start), None, out);
        }
        if connection.encoding().has_numbers() {
            let numbered = self.unconfirmed_numbers(id);
            if !numbered.is_empty() {
                write_saying(connection, &Saying::Numbers(&numbered), None, out);
            }
        }
    }
}
