//! A client: what it asks, decodes and believes.
//!
//! | module | what it does |
//! |---|---|
//! | [`plan`] | the request |
//! | `receive` | what the server sends, piece by piece |
//! | [`message`] | one message, held against the log |
//! | `answers` | the answers of `throng.v1` and the notices |
//! | `poll` | the answers to long-polls |
//! | `later` | refusals that pass |
//! | `speak` | what it says on a WebSocket |
//! | `ending` | whether the server was right to end, and what must have come by then |

mod answers;
mod ending;
mod later;
pub mod message;
pub mod plan;
mod poll;
mod receive;
mod speak;

use std::collections::VecDeque;

use throng_core::QueueLimits;

use crate::decode::Decoder;
use crate::decode::http::Head;
use crate::model::{Begin, Model};
use crate::notes::Notes;
use crate::pipe::SharedPipe;
use crate::random::Random;
use crate::stamp::Moment;
use plan::{Plan, Way};
pub use receive::Tamper;
pub use speak::{MESSAGE_BYTES_MAX, Violation};

/// What a client may look at to judge the server.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// What is true.
    pub model: &'a Model,
    /// What is remembered.
    pub notes: &'a Notes,
    /// The current moment.
    pub now: Moment,
    /// The server's settings.
    pub terms: &'a Terms,
    /// Whether the server was told to take nobody in any more.
    pub has_stopped_accepting: bool,
    /// When the server was told to end.
    pub drain: Option<Moment>,
    /// What is not delivered by then is given up.
    pub late_ms: u64,
}

/// Settings that clients can feel.
#[derive(Debug, Clone)]
pub struct Terms {
    /// Interval of heartbeats; 0 for none, and no pings.
    pub heartbeat_ms: u64,
    /// Interval of pings; 0 for none.
    pub ping_ms: u64,
    /// A head must be there by then.
    pub head_ms: u64,
    /// A connection without request is closed after this.
    pub idle_ms: u64,
    /// Who does not say gets a welcome.
    pub welcome: bool,
    /// Clients sent home come back within this.
    pub drain_window_ms: u64,
    /// What is not delivered by then is given up.
    pub drain_timeout_ms: u64,
    /// Whether workers may be full.
    pub is_scarce: bool,
    /// A WebSocket message that has begun must be complete after this.
    pub message_ms: u64,
    /// Where so little may be held that it is too much now and then: those who hold fewer bytes
    /// are spared all the same.
    pub held_bytes_floor: Option<usize>,
    /// Each worker may hold this much for those who do not read.
    pub blocked_bytes_max: usize,
    /// What may wait in a worker's queue.
    pub queue: QueueLimits,
    /// All logs together may keep this much, if it is less than their channels' rules add up to.
    pub logs_bytes_max: Option<usize>,
    /// Places beyond a worker's room, if they are few: for heads, and for those that close.
    pub reserve: Option<(u32, u32)>,
}

impl View<'_> {
    /// Whether a worker may hold too much of one who has half sent so many bytes.
    fn may_be_much(&self, bytes: usize) -> bool {
        // A buffer may have twice the room of what is in it.
        self.terms.held_bytes_floor.is_some_and(|floor| bytes * 2 >= floor)
    }

    /// Whether a message may have been dropped because a worker held too much for all who do not
    /// read.
    fn may_be_dropped(&self, topic: usize, offset: u64) -> bool {
        self.model.held_bytes_max(topic, offset) > self.terms.blocked_bytes_max
    }
}

impl Terms {
    /// Whether heads that do not end may have to give way.
    pub fn is_tight(&self) -> bool {
        self.reserve.is_some()
    }
}

impl Terms {
    /// From one ping to the next, in milliseconds: a multiple of the heartbeat's interval. 0 for no
    /// pings.
    pub fn ping_interval_ms(&self) -> u64 {
        if self.heartbeat_ms == 0 || self.ping_ms == 0 {
            return 0;
        }
        let every = (self.ping_ms + self.heartbeat_ms / 2) / self.heartbeat_ms;
        every.max(1) * self.heartbeat_ms
    }

    /// The time that a client has for its answer to a ping, in milliseconds: two heartbeats or
    /// 20 s, whichever is longer, within the ping interval.
    pub fn answer_ms(&self) -> u64 {
        let heartbeats = 20_000_u64.div_ceil(self.heartbeat_ms.max(1)).max(2);
        (heartbeats * self.heartbeat_ms).min(self.ping_interval_ms())
    }
}

/// A response that is awaited.
#[derive(Debug, Clone)]
enum Asked {
    /// Of the control plane.
    Page,
    /// To a request that subscribes.
    Subscription(Plan),
}

/// A subscription as the client knows it.
#[derive(Debug, Clone, Copy)]
struct Cursor {
    topic: usize,
    /// The offset of the last message that came.
    at: u64,
}

/// What stands before the first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Greeting {
    Resumed(bool),
    Welcome,
    WelcomeV1,
    Subscribed(Begin),
}

/// A command whose answer is awaited.
#[derive(Debug, Clone)]
enum Command {
    Subscribe(usize),
    Unsubscribe(usize),
    Publish(usize),
    History(usize),
    Presence(usize),
    Ping,
    /// One that must be refused with this code.
    Refused(&'static str),
}

/// What the engine answered to this client's worker, for the client to hold its own answer against.
#[derive(Debug, Default)]
struct Known {
    begins: VecDeque<(Begin, Moment)>,
    published: VecDeque<Option<(String, u64, bool)>>,
    pages: VecDeque<(Vec<u64>, bool)>,
}

/// A simulated client.
#[derive(Debug)]
pub struct Client {
    /// Its place among the clients of its world.
    pub number: usize,
    /// Its end of the connection.
    pub pipe: SharedPipe,
    /// What it asked for.
    pub plan: Plan,
    /// Whether it takes what comes.
    pub is_reading: bool,
    /// Whether it answers pings.
    pub answers_pings: bool,
    /// Bytes it wants to send.
    outgoing: VecDeque<u8>,
    /// Whether it has sent some of what it wants to send.
    is_mid_message: bool,
    /// When it sent the first byte that may belong to something that the server has not got whole.
    message_ms: u64,
    decoder: Decoder,
    asked: VecDeque<Asked>,
    /// A long-poll's head that waits for its body.
    poll_head: Option<(Head, Vec<Begin>)>,
    known: Known,
    greetings: VecDeque<Greeting>,
    cursors: Vec<Cursor>,
    /// What the server calls the connection.
    name: Option<u64>,
    /// Where the last long-poll ended.
    position: Vec<u64>,
    commands: Vec<(u64, Command)>,
    next_reference: u64,
    /// What it will follow once its commands are done.
    will_follow: Vec<usize>,
    /// What it has said on a WebSocket and the engine has not heard.
    publishing: VecDeque<speak::Said>,
    /// The number of the last message that it published.
    spoken: u64,
    opened_ms: u64,
    /// It has ended, reset or vanished.
    has_left: bool,
    /// It has sent a close frame, or something that must be answered with this close code.
    said: Option<speak::Violation>,
    refused: bool,
    /// It was to subscribe, and was told to come back, in the form of its transport.
    is_turned_away: bool,
    /// Its first request was there, whole, when it was accepted.
    pub is_prompt: bool,
    has_last_chunk: bool,
    has_retry: bool,
    close: Option<(u16, String)>,
    /// The connection is over for the client.
    is_over: bool,
    /// The server has given up what it had for the client.
    pub is_cut: bool,
    /// The number of messages received.
    pub messages: u64,
    /// Gaps told of.
    pub gaps: u64,
    /// The number of bytes received.
    pub received_bytes: u64,
    /// Where in all that it sends each request and frame ends.
    sent_ends: Vec<usize>,
    /// A worker has refused to publish what it said, and is to close the connection.
    pub is_busy: bool,
    /// It leaves off in the middle of what it sends.
    pub is_halting: bool,
    /// The server has closed the connection for holding much.
    pub is_overload: bool,
}

impl Client {
    /// A client that is about to ask for `plan`; first for a page, if `visits_control`.
    pub fn new(
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
            outgoing: VecDeque::new(),
            is_mid_message: false,
            message_ms: view.now.now_ms,
            decoder: Decoder::default(),
            asked: VecDeque::new(),
            poll_head: None,
            known: Known::default(),
            greetings: VecDeque::new(),
            cursors: Vec::new(),
            name: None,
            position: Vec::new(),
            commands: Vec::new(),
            next_reference: 1,
            will_follow: plan.targets.clone(),
            publishing: VecDeque::new(),
            spoken: 0,
            opened_ms: view.now.now_ms,
            has_left: false,
            said: None,
            refused: false,
            is_turned_away: false,
            is_prompt: false,
            has_last_chunk: false,
            has_retry: false,
            close: None,
            is_over: false,
            is_cut: false,
            messages: 0,
            gaps: 0,
            received_bytes: 0,
            sent_ends: Vec::new(),
            is_busy: false,
            is_halting: false,
            is_overload: false,
        };
        if visits_control {
            client.queue(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
            client.asked.push_back(Asked::Page);
        }
        client.ask(plan, view);
        client
    }

    fn ask(&mut self, plan: Plan, view: View<'_>) {
        self.queue(plan.request(view.model).as_bytes());
        self.asked.push_back(Asked::Subscription(plan));
    }

    /// Something whole, to be sent.
    fn queue(&mut self, bytes: &[u8]) {
        self.outgoing.extend(bytes);
        let before = self.sent_ends.last().copied().unwrap_or_default();
        self.sent_ends.push(before + bytes.len());
    }

    /// Whether it still takes part.
    pub fn is_here(&self) -> bool {
        !self.has_left && !self.is_over
    }

    /// Whether it follows channels on a WebSocket, and may speak.
    pub fn may_speak(&self) -> bool {
        self.is_here()
            && self.asked.is_empty()
            && self.plan.is_websocket()
            && self.said.is_none()
            && !self.is_busy
            && !self.refused
            && self.close.is_none()
            && self.greetings.is_empty()
    }

    /// What the server calls the connection, if it follows something.
    pub fn name(&self) -> Option<u64> {
        self.name
    }

    /// Whether bytes wait to be sent.
    pub fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty() && !self.has_left
    }

    /// Sends at most so many bytes.
    pub fn send(&mut self, bytes_max: usize) {
        let count = bytes_max.min(self.outgoing.len());
        let bytes: Vec<u8> = self.outgoing.drain(..count).collect();
        let mut pipe = self.pipe.borrow_mut();
        // What is begun after the server has ended is not judged.
        if !self.is_mid_message && !pipe.has_unread() && !pipe.is_ended() {
            self.message_ms = pipe.now_ms();
        }
        self.is_mid_message = !self.outgoing.is_empty();
        pipe.client_sends(bytes);
    }

    /// Sends all but the last so many bytes.
    pub fn send_all_but(&mut self, bytes: usize) {
        self.send(self.outgoing.len().saturating_sub(bytes));
    }

    /// Leaves: half-closes, resets or vanishes.
    pub fn leave(&mut self, how: Leave, random: &mut Random) {
        self.has_left = true;
        let mut pipe = self.pipe.borrow_mut();
        match how {
            Leave::HalfClose => pipe.client_ends(),
            Leave::Vanish => pipe.client_vanishes(),
            Leave::Reset => pipe.client_resets(random.percent(50)),
        }
    }

    /// The engine has let one of this client's subscriptions begin.
    pub fn begins(&mut self, begin: Begin, now: Moment) {
        self.known.begins.push_back((begin, now));
    }

    /// Gaps of subscriptions whose answer has not come.
    pub fn gaps_to_come(&self) -> u64 {
        let mut begins = self.known.begins.iter();
        // Only long-polls wait, and one after the other.
        u64::from(begins.any(|(begin, _)| begin.is_recovered == Some(false)))
    }

    /// If the server has more for it than it takes: the bytes that wait, and channels with the
    /// offsets at which it stands.
    pub fn stuck(&self) -> Option<(usize, Vec<(usize, u64)>)> {
        let bytes = self.pipe.borrow().stuck_bytes().filter(|_| self.is_here())?;
        let at = self.cursors.iter().map(|cursor| (cursor.topic, cursor.at)).collect();
        Some((bytes, at))
    }

    /// How far it stands in a channel.
    pub fn offset(&self, topic: usize) -> Option<u64> {
        self.cursors.iter().find(|cursor| cursor.topic == topic).map(|cursor| cursor.at)
    }

    /// The engine has answered this client's page.
    pub fn pages(&mut self, offsets: Vec<u64>, has_more: bool) {
        self.known.pages.push_back((offsets, has_more));
    }

    /// Whether the next long-poll may be asked.
    pub fn may_poll(&self) -> bool {
        self.is_here()
            && self.plan.way == Way::Poll
            && self.asked.is_empty()
            && !self.refused
            && !self.position.is_empty()
            && !self.pipe.borrow().is_ended()
    }
}

/// A way to leave without a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// Sends no more, and still reads.
    HalfClose,
    /// Closes the socket.
    Vanish,
    /// Resets the connection.
    Reset,
}
