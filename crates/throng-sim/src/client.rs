//! A client: it sends requests, decodes what the server sends, and checks it against the model.
//!
//! | module | what it does |
//! |---|---|
//! | [`view`] | the state of the world that the checks depend on |
//! | [`plan`] | the request |
//! | `follower` | subscriptions to changing channels |
//! | [`member`] | what it is as a member of channels, and what it is told of others |
//! | `expected` | requests, commands and publications that await an answer |
//! | `receive` | handles what the server sends, piece by piece |
//! | [`message`] | compares a message with the model's log |
//! | `acks` | acknowledgements of frames |
//! | `answers` | answers of `throng.v1`, notices, and error responses |
//! | `poll` | long polls |
//! | `reconnect` | subscriptions that are refused with a time to reconnect |
//! | `websocket` | publications and commands on a WebSocket |
//! | `volatile` | volatile messages |
//! | `ending` | whether the server may end the connection, and whether a message is missing |

mod acks;
mod answers;
mod ending;
mod expected;
mod follower;
pub(crate) mod member;
pub(crate) mod message;
pub(crate) mod plan;
mod poll;
mod receive;
mod reconnect;
pub(crate) mod view;
mod volatile;
mod websocket;

use std::collections::{BTreeMap, VecDeque};

use crate::decode::Decoder;
use crate::decode::http::Head;
use crate::model::Begin;
use crate::pipe::SharedPipe;
use crate::random::Random;
use crate::stamp::Moment;
use expected::{Command, Cursor, EngineAnswers, Follower, Greeting, Outgoing, Own, Request};
use plan::{Plan, Transport};
pub use receive::Tamper;
use view::View;

#[derive(Debug)]
pub(crate) struct Client {
    /// Its index among the clients of its world.
    pub(crate) number: usize,
    pub(crate) pipe: SharedPipe,
    pub(crate) plan: Plan,
    pub(crate) is_reading: bool,
    pub(crate) answers_pings: bool,
    /// True if it acknowledges the frames that ask for that.
    pub(crate) acknowledges: bool,
    /// Frames that it has read and not acknowledged.
    owed: u64,
    /// Bytes to send.
    unsent: VecDeque<u8>,
    /// True if it has sent a part of what it has to send.
    is_mid_message: bool,
    /// When it sent the first byte of what the server may not have read completely.
    message_ms: u64,
    decoder: Decoder,
    requests: VecDeque<Request>,
    /// The head of a response to a long poll whose body has not arrived.
    poll_head: Option<(Head, Vec<Begin>)>,
    engine: EngineAnswers,
    greetings: VecDeque<Greeting>,
    /// True if a stream of events has begun and nothing has come yet: a heartbeat opens it,
    /// whatever their interval.
    is_opening: bool,
    cursors: Vec<Cursor>,
    /// Its subscriptions to changing channels.
    followers: Vec<Follower>,
    /// The channels with members that it follows.
    own: Vec<Own>,
    /// What it has said of itself in such channels, by numbers.
    said: Vec<(usize, u64)>,
    /// True if it was told that its only channel has ended.
    is_over: bool,
    /// The bytes that the server had written after each erasure of the world.
    erasures: Vec<usize>,
    /// The bytes that it has read.
    read_total: usize,
    /// A place in these bytes at which the present piece had not begun, or just began.
    piece_from: usize,
    /// The numbers of channels that it was told, by channel.
    numbers: BTreeMap<usize, u64>,
    /// The name that the server gave the connection.
    name: Option<u64>,
    /// The offsets, one for each channel, that the last long poll returned.
    position: Vec<u64>,
    /// Commands that await an answer, by their `ref`.
    commands: Vec<(u64, Command)>,
    next_reference: u64,
    /// The channels that it follows once its commands are done.
    will_follow: Vec<usize>,
    /// Publications sent on a WebSocket that the engine has not received.
    publications: VecDeque<Outgoing>,
    /// The world's number of the last message that it published.
    last_published: u64,
    opened_ms: u64,
    /// True if it has half-closed, reset or closed the connection.
    has_left: bool,
    /// Set once the server must close with this code: the client sent a close frame, or violated
    /// the protocol.
    expected_close: Option<u16>,
    is_refused: bool,
    /// True if its subscription was refused in the form of its transport: with a time to reconnect,
    /// unless `is_denied`.
    must_reconnect: bool,
    /// A WebSocket was opened only to say that its subscription is not allowed.
    is_denied: bool,
    /// True if its first request was complete when it was accepted.
    pub(crate) is_prompt: bool,
    has_last_chunk: bool,
    has_retry: bool,
    /// Code and reason of the server's close frame.
    close: Option<(u16, String)>,
    /// True if the client has seen the end of the connection.
    has_ended: bool,
    /// True if the server gave up messages that it had for the client.
    pub(crate) is_given_up: bool,
    pub(crate) messages: u64,
    /// The number of the last volatile message of each channel.
    volatile: BTreeMap<usize, usize>,
    /// Channel and offset of each of them.
    received: Vec<(usize, u64)>,
    /// The number of gaps that the server reported.
    pub(crate) gaps: u64,
    /// The positions, in all that it sends, at which each request and frame ends.
    sent_ends: Vec<usize>,
    /// True if the engine refused a publication that only a close frame can answer.
    pub(crate) is_busy: bool,
    /// The earliest end of what the access policy allowed.
    expires_ms: Option<u64>,
    /// The same, as far as the client surely follows something because of it.
    must_expire_ms: Option<u64>,
    /// True if a permission that it had got may have been replaced by another one.
    was_asked_again: bool,
    /// True if the server has said that the end has come.
    has_expired: bool,
    /// True if it stopped sending in the middle of a message.
    pub(crate) is_halting: bool,
    /// True if the server evicted it for what it buffered.
    pub(crate) is_evicted: bool,
    /// True if its first request was for a page.
    visits_control: bool,
}

impl Client {
    /// A client that sends `plan` as its first request, after a request for a page if
    /// `visits_control`.
    pub(crate) fn new(
        number: usize,
        pipe: SharedPipe,
        plan: Plan,
        visits_control: bool,
        view: View<'_>,
    ) -> Client {
        let mut client = Client {
            number,
            pipe,
            plan: plan.clone(),
            is_reading: true,
            answers_pings: true,
            acknowledges: true,
            owed: 0,
            unsent: VecDeque::new(),
            is_mid_message: false,
            message_ms: view.now.now_ms,
            decoder: Decoder::default(),
            requests: VecDeque::new(),
            poll_head: None,
            engine: EngineAnswers::default(),
            greetings: VecDeque::new(),
            is_opening: false,
            cursors: Vec::new(),
            followers: Vec::new(),
            own: Vec::new(),
            said: Vec::new(),
            is_over: false,
            erasures: Vec::new(),
            read_total: 0,
            piece_from: 0,
            numbers: BTreeMap::new(),
            name: None,
            position: Vec::new(),
            commands: Vec::new(),
            next_reference: 1,
            will_follow: plan.targets.clone(),
            publications: VecDeque::new(),
            last_published: 0,
            opened_ms: view.now.now_ms,
            has_left: false,
            expected_close: None,
            is_refused: false,
            must_reconnect: false,
            is_denied: false,
            is_prompt: false,
            has_last_chunk: false,
            has_retry: false,
            close: None,
            has_ended: false,
            is_given_up: false,
            messages: 0,
            volatile: BTreeMap::new(),
            received: Vec::new(),
            gaps: 0,
            sent_ends: Vec::new(),
            is_busy: false,
            expires_ms: None,
            must_expire_ms: None,
            was_asked_again: false,
            has_expired: false,
            is_halting: false,
            is_evicted: false,
            visits_control,
        };
        if visits_control {
            client.queue(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
            client.requests.push_back(Request::Page);
        }
        client.request(plan, view);
        client
    }

    /// True if the server may have answered a request of its connection before.
    pub(crate) fn may_have_been_served(&self) -> bool {
        self.visits_control || self.plan.transport == Transport::Poll
    }

    /// Queues a request that subscribes.
    fn request(&mut self, plan: Plan, view: View<'_>) {
        self.queue(plan.request(view.model).as_bytes());
        self.requests.push_back(Request::Subscription(plan));
    }

    /// Queues a complete request or frame.
    fn queue(&mut self, bytes: &[u8]) {
        self.unsent.extend(bytes);
        let before = self.sent_ends.last().copied().unwrap_or_default();
        self.sent_ends.push(before + bytes.len());
    }

    pub(crate) fn has_received(&self, topic: usize, offset: u64) -> bool {
        self.received.contains(&(topic, offset))
    }

    /// True if neither side has ended the connection.
    pub(crate) fn is_here(&self) -> bool {
        !self.has_left && !self.has_ended
    }

    /// True if it has a WebSocket on which it may publish and send commands.
    pub(crate) fn may_speak(&self) -> bool {
        self.is_here()
            && self.requests.is_empty()
            && self.plan.is_websocket()
            && self.expected_close.is_none()
            && !self.is_busy
            && !self.is_refused
            && self.close.is_none()
            && self.greetings.is_empty()
    }

    /// A request that waited is asked again, and a permission that it had got so far may be
    /// replaced by another one.
    pub(crate) fn asked_again(&mut self) {
        self.was_asked_again = true;
    }

    /// Records that the access policy allows it something until this time only.
    pub(crate) fn allowed_until(&mut self, until_ms: u64) {
        self.expires_ms = self.expires_ms.into_iter().chain([until_ms]).min();
    }

    /// True if the server may have closed it at this time because a permission has ended.
    fn may_have_expired(&self, now_ms: u64) -> bool {
        self.expires_ms.is_some_and(|expires_ms| expires_ms <= now_ms)
    }

    /// True if it does not know yet what it follows, because a subscription may still be refused.
    pub(crate) fn awaits_subscription(&self) -> bool {
        let subscribes = |command: &Command| {
            matches!(
                command,
                Command::Subscribe(..) | Command::Enter { .. } | Command::SubscribeMany(_)
            )
        };
        self.commands.iter().any(|(_, command)| subscribes(command))
    }

    /// The name that the server gave the connection, once it is subscribed.
    pub(crate) fn name(&self) -> Option<u64> {
        self.name
    }

    /// True if it has bytes to send.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty() && !self.has_left
    }

    /// Sends at most `max_bytes` bytes.
    pub(crate) fn send(&mut self, max_bytes: usize) {
        let count = max_bytes.min(self.unsent.len());
        let bytes: Vec<u8> = self.unsent.drain(..count).collect();
        let mut pipe = self.pipe.borrow_mut();
        // A message that begins after the server has ended its side does not count.
        if !self.is_mid_message && !pipe.has_unread() && !pipe.is_ended() {
            self.message_ms = pipe.now_ms();
        }
        self.is_mid_message = !self.unsent.is_empty();
        pipe.client_sends(bytes);
    }

    /// Sends all but the last `bytes` bytes.
    pub(crate) fn send_all_but(&mut self, bytes: usize) {
        self.send(self.unsent.len().saturating_sub(bytes));
    }

    /// Leaves without a close frame.
    pub(crate) fn leave(&mut self, how: Leave, random: &mut Random) {
        self.has_left = true;
        let mut pipe = self.pipe.borrow_mut();
        match how {
            Leave::HalfClose => pipe.client_ends(),
            Leave::Vanish => pipe.client_vanishes(),
            Leave::Reset => pipe.client_resets(random.percent(50)),
        }
    }

    /// Records that the engine began one of this client's subscriptions.
    pub(crate) fn add_begin(&mut self, begin: Begin, now: Moment) {
        self.engine.begins.push_back((begin, now));
    }

    /// Records that the engine answered this client's request for a page of history.
    pub(crate) fn add_page(&mut self, offsets: Vec<u64>, has_more: bool) {
        self.engine.pages.push_back((offsets, has_more));
    }

    /// Gaps of subscriptions whose answer has not arrived.
    pub(crate) fn pending_gaps(&self) -> u64 {
        let begins = self.engine.begins.iter();
        let gaps = begins.filter(|(begin, _)| begin.is_recovered == Some(false)).count() as u64;
        // A request has one gap, however many channels it names; so has each channel of a command,
        // whose client may be closed before the answer.
        let is_command = self.plan.transport == Transport::V1 && self.requests.is_empty();
        if is_command { gaps } else { gaps.min(1) }
    }

    /// If its socket is full and the server has more: the bytes in the socket, and the client's
    /// channels with their offsets.
    pub(crate) fn stuck(&self) -> Option<(usize, Vec<(usize, u64)>)> {
        let bytes = self.pipe.borrow().stuck_bytes().filter(|_| self.is_here())?;
        let cursors = self.cursors.iter().map(|cursor| (cursor.topic, cursor.offset)).collect();
        Some((bytes, cursors))
    }

    /// The offset of the last message of a channel that it follows.
    pub(crate) fn offset(&self, topic: usize) -> Option<u64> {
        self.cursors.iter().find(|cursor| cursor.topic == topic).map(|cursor| cursor.offset)
    }

    /// True if it may send its next long poll.
    pub(crate) fn may_poll(&self) -> bool {
        self.is_here()
            && self.plan.transport == Transport::Poll
            && self.requests.is_empty()
            && !self.is_refused
            && !self.position.is_empty()
            && !self.pipe.borrow().is_ended()
    }
}

/// A way to leave without a close frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leave {
    /// Sends no more, and still reads.
    HalfClose,
    /// Closes the socket.
    Vanish,
    Reset,
}
