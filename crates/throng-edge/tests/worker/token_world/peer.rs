//! A client, what it may expect, and the checks of all that it is written.
//!
//! What it knows of its token and its subscriptions is as of the piece that it reads: the answer to
//! a command stands in its stream before the messages that came after it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::Value;

use super::facts::{Facts, Token};
use super::stream::{Piece, Stream};
use super::{APP_ALLOWS_BRIEFLY, APP_DENIES, BRIEF_MS, CHANNELS, NOBODY_MS, WAIT_MS};
use crate::rig::Client;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    Plain,
    V1,
    Sse,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Its request has no answer.
    Waiting,
    Open,
    /// Its WebSocket stands, and it has to show who it is.
    Nobody,
    /// Its WebSocket was opened to say why its request is refused.
    Refused,
    /// The client has gone. While a command waits, the worker does not notice.
    Left,
    Ended,
}

/// A command that has no answer.
#[derive(Debug)]
pub(super) enum Command {
    Subscribe(usize),
    Unsubscribe(usize),
    /// Shows a token, and whether the server would have accepted it when it was sent.
    Auth(Token, bool),
}

/// Why a request or command is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    Token,
    Forbidden,
    Busy,
}

pub(super) struct Peer {
    pub(super) client: Client,
    pub(super) transport: Transport,
    pub(super) token: Token,
    /// True if the server would have accepted it when the client connected.
    was_good: bool,
    pub(super) state: State,
    /// The channels that it follows, with the offset of the last message that it has.
    pub(super) follows: BTreeMap<usize, u64>,
    /// The channels that its request names, and how many of them are not confirmed.
    asked: Vec<usize>,
    unconfirmed: usize,
    pub(super) commands: VecDeque<Command>,
    /// Channels that a newer token does not grant. The client must be told next.
    to_end: BTreeSet<usize>,
    /// Until when the application allows what it follows: not before the first of these times, in
    /// milliseconds, and not after the second.
    brief_ms: Option<(u64, u64)>,
    /// Since when it does not read, in milliseconds.
    pub(super) stalled_ms: Option<u64>,
    /// True if it did not read since the worker last had nothing left to do.
    is_behind: bool,
    stream: Stream,
    /// If it comes without a token: when the worker may close it at the earliest, and when it has
    /// to have done so, in milliseconds.
    nobody_ms: Option<(u64, u64)>,
    /// True if another process has taken it over before it has shown who it is.
    was_replaced: bool,
}

fn is(channel: usize, name: &str) -> bool {
    CHANNELS[channel] == name
}

impl Peer {
    pub(super) fn new(
        client: Client,
        transport: Transport,
        token: Token,
        asked: Vec<usize>,
        facts: &Facts,
    ) -> Peer {
        let mut peer = Peer {
            client,
            transport,
            was_good: facts.is_good(&token),
            token,
            state: State::Waiting,
            follows: BTreeMap::new(),
            unconfirmed: asked.len(),
            asked,
            commands: VecDeque::new(),
            to_end: BTreeSet::new(),
            brief_ms: None,
            stalled_ms: None,
            is_behind: false,
            stream: Stream::default(),
            nobody_ms: None,
            was_replaced: false,
        };
        for channel in peer.asked.clone() {
            peer.note_asked(channel, facts);
        }
        peer
    }

    /// A client that comes without a token, and means to show this one.
    pub(super) fn nobody(client: Client, token: Token, facts: &Facts) -> Peer {
        let until_ms = facts.now_ms() + NOBODY_MS;
        let mut peer = Peer::new(client, Transport::V1, token, Vec::new(), facts);
        // A tick, and the time for which an answer about it is awaited.
        peer.nobody_ms = Some((until_ms, until_ms + WAIT_MS + 200));
        peer
    }

    /// Another process takes over: it asks again what was asked.
    pub(super) fn note_replaced(&mut self, now_ms: u64) {
        if let Some((_, latest_ms)) = self.nobody_ms.as_mut().filter(|_| !self.commands.is_empty())
        {
            *latest_ms = (*latest_ms).max(now_ms + 2 * WAIT_MS + 200);
        }
        self.was_replaced |= self.state == State::Nobody;
    }

    /// The client asks for a channel now.
    pub(super) fn note_asked(&mut self, channel: usize, facts: &Facts) {
        if is(channel, APP_ALLOWS_BRIEFLY) {
            let from_ms = facts.now_ms() + BRIEF_MS;
            self.brief_ms.get_or_insert((from_ms, u64::MAX));
        }
    }

    /// The client does not read any more.
    pub(super) fn stall(&mut self, after_bytes: usize, facts: &Facts) {
        self.client.stall_after(after_bytes);
        (self.stalled_ms, self.is_behind) = (Some(facts.now_ms()), true);
    }

    /// Checks what it has been written in this step.
    pub(super) fn look(&mut self, facts: &mut Facts) {
        let bytes = self.client.received_bytes();
        if self.state == State::Left {
            return;
        }
        let pieces = self.stream.feed(&bytes, facts.step());
        for (began, piece) in pieces {
            let context = format!(
                "in step {} (began in {began}), {:?} {:?} {:?} {:?} {:?}: {piece:?}",
                facts.step(),
                self.transport,
                self.state,
                self.token,
                self.follows,
                self.commands,
            );
            self.piece(piece, began, &context, facts);
        }
        if self.client.is_closed()
            && matches!(self.state, State::Waiting | State::Open | State::Nobody)
        {
            // Output that a stalled client does not take is given up.
            let may_end = self.may_end(facts);
            assert!(may_end, "closed without a word: {:?} {:?}", self.transport, self.token);
            self.state = State::Ended;
        }
    }

    /// True if the server may have ended it, as far as the client knows.
    fn may_end(&self, facts: &Facts) -> bool {
        let is_over = |(from_ms, _): (u64, u64)| from_ms <= facts.now_ms();
        if self.state == State::Nobody {
            return self.nobody_ms.is_some_and(is_over);
        }
        facts.is_bad(&self.token) || self.brief_ms.is_some_and(is_over)
    }

    fn piece(&mut self, piece: Piece, began: u64, context: &str, facts: &mut Facts) {
        match piece {
            Piece::Head(status, head) => self.head(status, &head, began, context, facts),
            Piece::Close(code, reason) => self.closed(code, &reason, context, facts),
            Piece::LastChunk => {
                assert!(self.state == State::Ended, "a stream ends for no reason: {context}");
            }
            Piece::Text(text) => match self.transport {
                Transport::Plain => self.message_of_text(&text, began, context, facts),
                Transport::V1 => {
                    let value = serde_json::from_str(&text).expect("JSON");
                    self.v1(&value, began, context, facts);
                }
                Transport::Sse => self.event(&text, began, context, facts),
            },
        }
    }

    fn head(&mut self, status: u16, head: &str, began: u64, context: &str, facts: &mut Facts) {
        assert_eq!(self.state, State::Waiting, "{context}");
        let header = |name: &str| {
            let line = head.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default()
        };
        if header("Throng-Connection: ").is_empty() {
            if status == 101 {
                self.state = State::Refused;
                return;
            }
            self.state = State::Ended;
            let why = match status {
                401 => Why::Token,
                403 => Why::Forbidden,
                // A busy server answers server-sent events with a time to come back.
                200 | 503 => Why::Busy,
                _ => panic!("{context}"),
            };
            return self.check_refused(why, context, facts);
        }
        if self.nobody_ms.is_some() {
            self.state = State::Nobody;
            facts.seen.insert("opened as nobody");
            return;
        }
        assert!(facts.is_good(&self.token), "opened with a bad token: {context}");
        let ids = header("Throng-Id: ").split(',').filter(|id| !id.is_empty());
        let offsets: Vec<u64> = ids.map(offset_of).collect();
        assert_eq!(offsets.len(), self.asked.len(), "{context}");
        self.state = State::Open;
        for (channel, offset) in self.asked.clone().into_iter().zip(offsets) {
            self.begin(channel, offset, began, context, facts);
        }
        facts.seen.insert("opened");
    }

    fn begin(&mut self, channel: usize, offset: u64, began: u64, context: &str, facts: &mut Facts) {
        let is_allowed = self.token.granted.contains(&channel) && !is(channel, APP_DENIES);
        assert!(is_allowed, "{} is not allowed: {context}", CHANNELS[channel]);
        // The answers to a client that did not read may be old.
        let is_late = !self.is_behind && facts.is_cut_off(&self.token, began);
        assert!(!is_late, "subscribed too late: {context}");
        if is(channel, APP_ALLOWS_BRIEFLY)
            && let Some((_, to_ms)) = &mut self.brief_ms
        {
            // The decision came before.
            *to_ms = (*to_ms).min(facts.now_ms() + BRIEF_MS);
        }
        let known = self.follows.insert(channel, offset);
        assert!(known.is_none(), "subscribed twice: {context}");
    }

    fn check_refused(&self, why: Why, context: &str, facts: &mut Facts) {
        let is_denied =
            |channel: &usize| !self.token.granted.contains(channel) || is(*channel, APP_DENIES);
        let (may_refuse, event) = match why {
            Why::Token => {
                let was_bad = !self.was_good || !facts.is_good(&self.token);
                (was_bad || self.token.has_late_key, "refused: token")
            }
            Why::Forbidden => (self.asked.iter().any(is_denied), "refused: forbidden"),
            Why::Busy => (facts.is_late || self.token.has_late_key, "refused: busy"),
        };
        assert!(may_refuse, "refused as {why:?}: {context}");
        facts.seen.insert(event);
    }

    fn closed(&mut self, code: u16, reason: &str, context: &str, facts: &mut Facts) {
        let state = std::mem::replace(&mut self.state, State::Ended);
        if state == State::Refused {
            let why = match code {
                4002..=4004 => Why::Token,
                4005 => Why::Forbidden,
                1013 => Why::Busy,
                _ => panic!("{context}"),
            };
            return self.check_refused(why, context, facts);
        }
        if state == State::Nobody {
            let is_late = self.nobody_ms.is_some_and(|(from_ms, _)| from_ms <= facts.now_ms());
            assert!(code == 4003 && is_late, "closed before its time: {context}");
            facts.seen.insert("ended as nobody");
            return;
        }
        assert_eq!(state, State::Open, "{context}");
        match code {
            4002 if reason.starts_with("the token") => self.check_expired(context, facts),
            4002 => self.check_brief(context, facts),
            4004 => self.check_revoked(context, facts),
            _ => panic!("closed for no reason: {context}"),
        }
    }

    fn check_expired(&self, context: &str, facts: &mut Facts) {
        assert!(facts.is_over(&self.token), "the token has not expired: {context}");
        facts.seen.insert(if self.stalled_ms.is_some() { "expired, stalled" } else { "expired" });
    }

    fn check_revoked(&self, context: &str, facts: &mut Facts) {
        assert!(facts.is_revoked(&self.token), "the token is not revoked: {context}");
        facts.seen.insert("revoked");
    }

    fn check_brief(&self, context: &str, facts: &mut Facts) {
        let is_over = self.brief_ms.is_some_and(|(from_ms, _)| from_ms <= facts.now_ms());
        assert!(is_over, "the application still allows it: {context}");
        facts.seen.insert("ended by the application");
    }

    fn event(&mut self, text: &str, began: u64, context: &str, facts: &mut Facts) {
        if let Some(json) = text.strip_prefix("event: closed\ndata: ") {
            assert_eq!(self.state, State::Open, "{context}");
            self.state = State::Ended;
            return if json.contains("\"token_expired\"") {
                self.check_expired(context, facts)
            } else {
                assert!(json.contains("\"token_revoked\""), "{context}");
                self.check_revoked(context, facts)
            };
        }
        if text.starts_with("event: expired") {
            self.state = State::Ended;
            return self.check_brief(context, facts);
        }
        // A stream opens with a comment.
        if text == ":\n\n" {
            return;
        }
        if text.starts_with(": ") {
            assert_eq!(self.state, State::Ended, "{context}");
            return;
        }
        let data = text.lines().find_map(|line| line.strip_prefix("data: "));
        self.message_of_text(data.expect("a message"), began, context, facts);
    }

    /// A message that comes without its channel and id.
    fn message_of_text(&mut self, text: &str, began: u64, context: &str, facts: &mut Facts) {
        let at = |log: &Vec<String>| log.iter().position(|known| known == text);
        let found = facts.logs.iter().enumerate().find_map(|(nth, log)| Some((nth, at(log)?)));
        let (channel, index) = found.unwrap_or_else(|| panic!("not published: {context}"));
        self.message(channel, index as u64 + 1, began, context, facts);
    }

    /// Checks that a message is the next one of a channel, and that it may be delivered.
    fn message(
        &mut self,
        channel: usize,
        offset: u64,
        began: u64,
        context: &str,
        facts: &mut Facts,
    ) {
        assert_eq!(self.state, State::Open, "a message: {context}");
        assert!(self.to_end.is_empty(), "not told of {:?}: {context}", self.to_end);
        let last = self.follows.get_mut(&channel);
        let last = last.unwrap_or_else(|| panic!("a channel that it does not follow: {context}"));
        assert_eq!(offset, *last + 1, "not the next message: {context}");
        *last = offset;
        assert!(self.token.granted.contains(&channel), "not granted: {context}");
        assert!(!facts.is_cut_off(&self.token, began), "after the end of its token: {context}");
        let is_brief = self.brief_ms.is_some_and(|(_, to_ms)| to_ms <= facts.time_ms(began));
        assert!(!is_brief, "after the end of what the application allows: {context}");
        let was_stalled = self.stalled_ms.is_some();
        facts.seen.insert(if was_stalled { "delivered, stalled" } else { "delivered" });
    }

    fn v1(&mut self, value: &Value, began: u64, context: &str, facts: &mut Facts) {
        let channel = || {
            let name = value["channel"].as_str().expect("a channel");
            CHANNELS.iter().position(|known| *known == name).expect("one of them")
        };
        let offset = || offset_of(value["id"].as_str().expect("an id"));
        let kind = value["type"].as_str().expect("a type");
        let is_notice = kind == "unsubscribed" && value.get("code").is_some();
        assert!(is_notice || self.to_end.is_empty(), "not told of {:?}: {context}", self.to_end);
        assert!(matches!(self.state, State::Open | State::Nobody), "{context}");
        match kind {
            "welcome" => {}
            "expiring" => drop(facts.seen.insert("expiring")),
            "message" => {
                let (channel, offset) = (channel(), offset());
                let text = &facts.logs[channel][offset as usize - 1];
                assert_eq!(value["data"], *text, "{context}");
                self.message(channel, offset, began, context, facts);
            }
            "subscribed" if self.unconfirmed > 0 => {
                self.unconfirmed -= 1;
                assert_eq!(self.follows.get(&channel()), Some(&offset()), "{context}");
            }
            "subscribed" => {
                let Some(Command::Subscribe(asked)) = self.commands.pop_front() else {
                    panic!("no such command: {context}")
                };
                assert_eq!(asked, channel(), "{context}");
                self.begin(asked, offset(), began, context, facts);
                facts.seen.insert("subscribed");
            }
            "unsubscribed" if is_notice => {
                assert!(self.to_end.remove(&channel()), "it is granted: {context}");
                facts.seen.insert("subscription ended");
            }
            "unsubscribed" => {
                let Some(Command::Unsubscribe(asked)) = self.commands.pop_front() else {
                    panic!("no such command: {context}")
                };
                assert_eq!(asked, channel(), "{context}");
                assert!(self.follows.remove(&asked).is_some(), "{context}");
            }
            "authenticated" => self.authenticated(context, facts),
            "error" => self.error(value["code"].as_str().expect("a code"), context, facts),
            _ => panic!("{context}"),
        }
    }

    fn authenticated(&mut self, context: &str, facts: &mut Facts) {
        let Some(Command::Auth(token, was_good)) = self.commands.pop_front() else {
            panic!("no such command: {context}")
        };
        let is_new = self.state == State::Nobody;
        assert!(is_new || token.user == self.token.user, "another user: {context}");
        // One with a late key may have become good since.
        let may_be_good = was_good || (token.has_late_key && facts.has_late_key);
        assert!(may_be_good, "{token:?} is accepted: {context}");
        let is_kept = |channel: &usize| token.granted.contains(channel);
        self.to_end = self.follows.keys().copied().filter(|channel| !is_kept(channel)).collect();
        self.follows.retain(|channel, _| is_kept(channel));
        self.state = State::Open;
        facts.seen.insert(match (self.stalled_ms, token.has_late_key) {
            _ if is_new && self.was_replaced => "signed in after an upgrade",
            (_, true) if is_new => "signed in with a late key",
            _ if is_new => "signed in",
            (Some(_), _) => "refreshed, stalled",
            (None, true) => "refreshed with a late key",
            (None, false) => "refreshed",
        });
        self.token = token;
    }

    fn error(&mut self, code: &str, context: &str, facts: &mut Facts) {
        let command = self.commands.pop_front();
        let command = command.unwrap_or_else(|| panic!("no command: {context}"));
        let is_nobody = self.state == State::Nobody;
        let (may_refuse, event) = match (&command, code) {
            (Command::Subscribe(_), "unauthorized") => (is_nobody, "nobody may do nothing"),
            (Command::Auth(..), "unauthorized") => (is_nobody && self.may_end(facts), "too late"),
            (Command::Subscribe(channel), "forbidden") => {
                let is_granted = self.token.granted.contains(channel);
                (!is_granted || is(*channel, APP_DENIES), "command: forbidden")
            }
            (Command::Subscribe(_), "busy") => (facts.is_late, "command: busy"),
            (Command::Unsubscribe(channel), "not_subscribed") => {
                (!self.follows.contains_key(channel), "command: not subscribed")
            }
            (Command::Auth(token, _), "forbidden") => {
                (token.user != self.token.user, "refresh: another user")
            }
            (Command::Auth(token, _), "invalid_token" | "busy") => {
                (token.has_late_key, "refresh: late key")
            }
            (Command::Auth(token, _), "token_expired") => {
                (facts.is_over(token), "refresh: expired")
            }
            (Command::Auth(token, _), "token_revoked") => {
                (facts.is_revoked(token), "refresh: revoked")
            }
            _ => (false, ""),
        };
        assert!(may_refuse, "{command:?} is refused: {context}");
        facts.seen.insert(event);
    }

    /// Checks a client that reads, once the worker has nothing left to do: it has all that it may
    /// have, and is there only if it may be.
    pub(super) fn check_at_rest(&mut self, open_questions: usize, facts: &Facts) {
        if self.stalled_ms.is_some() || matches!(self.state, State::Left | State::Ended) {
            return;
        }
        self.is_behind = false;
        let context = format!(
            "at rest in step {}: {:?} {:?} {:?} {:?} {:?}",
            facts.step(),
            self.transport,
            self.state,
            self.token,
            self.follows,
            self.commands
        );
        let awaits_key = |token: &Token| token.has_late_key && !facts.has_late_key;
        assert!(self.stream.is_at_rest() && self.to_end.is_empty(), "{context}");
        match self.state {
            State::Waiting => {
                let may_wait = open_questions > 0 || awaits_key(&self.token);
                assert!(may_wait, "its request is not answered: {context}");
            }
            State::Nobody => {
                let is_over = self.nobody_ms.is_some_and(|(_, to_ms)| to_ms <= facts.now_ms());
                assert!(!is_over, "it has not shown who it is: {context}");
            }
            State::Refused => panic!("its WebSocket is not closed: {context}"),
            State::Open | State::Left | State::Ended => {
                assert!(!facts.is_cut_off(&self.token, facts.step()), "still open: {context}");
                let is_brief = self.brief_ms.is_some_and(|(_, to_ms)| to_ms <= facts.now_ms());
                assert!(!is_brief, "the application has ended it: {context}");
                let awaits_key = |command: &Command| match command {
                    Command::Auth(token, _) => awaits_key(token),
                    Command::Subscribe(_) | Command::Unsubscribe(_) => false,
                };
                let may_wait = open_questions > 0 || self.commands.iter().any(awaits_key);
                assert!(self.commands.is_empty() || may_wait, "not answered: {context}");
                for (&channel, &offset) in &self.follows {
                    let head = facts.logs[channel].len() as u64;
                    assert_eq!(offset, head, "{} lacks messages: {context}", CHANNELS[channel]);
                }
            }
        }
    }
}

fn offset_of(id: &str) -> u64 {
    let (_, offset) = id.split_once('-').expect("an id");
    offset.parse().expect("an offset")
}
