//! Whether the server may end the connection, and whether a message is missing.

use super::Client;
use super::expected::{Command, Cursor, Follower, Request};
use super::plan::Transport;
use super::reconnect::{ANSWER_MS, UNREAD_MS, reconnect_ms_of};
use super::view::{View, is_out_of_reach};
use crate::pipe::End;
use crate::{Check, ensure};

/// The times to reconnect for clients closed for overload, in milliseconds.
const BUSY_WINDOW_MS: std::ops::Range<u64> = 1_000..5_000;

/// How late a heartbeat may be. Ticks of a world are at most 12 s apart, except for the one right
/// after a leap; and during a fan-out, heartbeats wait for up to 2 s.
const SLACK_MS: u64 = 15_000;

impl Client {
    /// Checks the end of the connection, after the client has read all bytes before it.
    pub(super) fn check_end(&mut self, end: End, view: View<'_>) -> Check {
        let handoff_failed = self.pipe.borrow().handoff_failed;
        self.check_end_of_tls(end, view)?;
        if self.must_reconnect && !self.has_left {
            return self.check_end_of_refused(end, view);
        }
        if self.has_left || self.is_refused || handoff_failed {
            return Ok(());
        }
        if self.is_over {
            return self.check_end_of_channel(end, view);
        }
        if view.terms.is_tight() && self.may_be_replaced() {
            view.notes.saw("closed: for room");
            return Ok(());
        }
        if self.is_unread(end, view) {
            self.is_given_up = true;
            view.notes.saw("closed: did not read");
            return Ok(());
        }
        let is_cut = end.is_full && self.close.is_none() && !self.has_all_answers();
        if is_cut && self.may_buffer(view) && !is_late(end, view) {
            self.is_given_up = true;
            // A stream may also be beyond the lag limit, and a handshake beyond its time. So may a
            // client with a frame of several messages that is half written.
            let is_stream = matches!(self.plan.transport, Transport::Sse | Transport::Stream)
                || self.plan.compact.is_some();
            self.is_evicted = !is_stream && !self.is_keyless();
            view.notes.saw("overload: cut off");
            return Ok(());
        }
        if !self.requests.is_empty() && self.plan.transport != Transport::Poll {
            // It may have exceeded the lag limit before it read the response to its request.
            let begins = self.engine.begins.iter().take(self.plan.targets.len());
            let begins: Vec<_> = begins.map(|(begin, _)| *begin).collect();
            let wants_state = self.plan.state;
            begins.iter().try_for_each(|begin| self.begin(begin, wants_state, view))?;
        }
        if !self.follows_some() && self.plan.transport != Transport::V1 {
            return self.check_idle_end(end, view);
        }
        if self.plan.is_websocket() {
            return self.check_close(end, view);
        }
        self.check_end_of_stream(end, view)
    }

    /// Checks that the end is told by TLS, too: without that, it would pass for one that somebody
    /// else has caused.
    fn check_end_of_tls(&self, end: End, view: View<'_>) -> Check {
        let pipe = self.pipe.borrow();
        let Some(tls) = &pipe.tls else { return Ok(()) };
        // A full socket does not take it, and a worker that ends does not wait for that.
        let is_known = !self.has_left && !pipe.handoff_failed && !end.is_full;
        if tls.is_told_end {
            view.notes.saw("tls: told the end");
        } else {
            let is_cut = is_known && tls.content_bytes > 0 && !is_late(end, view);
            ensure!(!is_cut, "the end of TLS is not told: {end:?}");
            view.notes.saw("tls: cut off");
        }
        Ok(())
    }

    /// True if the client did not read for so long that the server may close the connection.
    fn is_unread(&self, end: End, view: View<'_>) -> bool {
        let is_slow = end.full_ms.is_some_and(|full_ms| full_ms >= ANSWER_MS);
        let is_stuck = end.stuck_ms >= self.max_unread_ms(view);
        end.is_full && (is_stuck || (is_slow && self.awaits_answer(view)))
    }

    /// True if what the server writes may be a response or a close frame, rather than a stream
    /// without an end.
    fn awaits_answer(&self, view: View<'_>) -> bool {
        match self.plan.transport {
            Transport::Poll | Transport::Plain | Transport::V1 => true,
            // A stream whose channel has ended has an end, too.
            Transport::Sse | Transport::Stream => {
                (!self.requests.is_empty() && self.engine.begins.is_empty())
                    || self.may_have_ended(view)
            }
        }
    }

    /// True if it has polled, and every request has its whole answer: only the end of TLS can have
    /// filled its socket, and the worker buffers nothing for which to evict it.
    fn has_all_answers(&self) -> bool {
        let is_poll = self.plan.transport == Transport::Poll;
        is_poll && self.requests.is_empty() && self.decoder.is_at_rest()
    }

    /// True if the worker may buffer enough for this client alone, responses, events or incomplete
    /// input, to evict it.
    fn may_buffer(&self, view: View<'_>) -> bool {
        let has_own = match self.plan.transport {
            Transport::Poll | Transport::Plain | Transport::V1 => true,
            // Events with ids of several channels are not shared with other clients.
            Transport::Sse if self.plan.targets.len() > 1 => true,
            // The rest of a compact message is its own once its worker has been frozen.
            // So are notices about a changing channel.
            Transport::Sse | Transport::Stream => {
                self.plan.compact.is_some() || !self.followers.is_empty() || self.plan.state
            }
        };
        // Over TLS, the rest of a record that was taken in part.
        view.terms.held_bytes_floor.is_some() && (has_own || self.pipe.borrow().tls.is_some())
    }

    /// True if it has not got any content over TLS: its handshake may not be done.
    fn is_keyless(&self) -> bool {
        self.pipe.borrow().tls.as_ref().is_some_and(|tls| tls.content_bytes == 0)
    }

    /// True if the worker may have evicted a client that has sent `bytes` of something incomplete.
    /// Over TLS, a handshake and half a record take more than that.
    pub(super) fn may_evict(&self, bytes: usize, view: View<'_>) -> bool {
        let is_tls = self.pipe.borrow().tls.is_some();
        view.may_evict(bytes) || (is_tls && view.terms.held_bytes_floor.is_some())
    }

    /// The bytes that the server had read of an incomplete request or frame when it ended.
    fn incomplete_bytes(&self, end: End) -> usize {
        let complete = self.sent_ends.partition_point(|&sent_end| sent_end <= end.read_bytes);
        let begin = complete.checked_sub(1).map_or(0, |last| self.sent_ends[last]);
        end.read_bytes - begin
    }

    /// How long the server waits for a client that reads nothing.
    fn max_unread_ms(&self, view: View<'_>) -> u64 {
        let is_refused = !self.requests.is_empty() && self.engine.begins.is_empty();
        match self.plan.transport {
            Transport::Poll => view.terms.idle_ms.min(UNREAD_MS),
            Transport::Plain | Transport::V1 => UNREAD_MS,
            Transport::Sse | Transport::Stream if is_refused => UNREAD_MS,
            // Its last chunk waits behind what it does not read.
            Transport::Sse | Transport::Stream
                if view.may_send_away() || self.may_have_ended(view) =>
            {
                UNREAD_MS
            }
            // Only the lag limit ends any other.
            Transport::Sse | Transport::Stream => u64::MAX,
        }
    }

    /// Checks the end of a connection without a subscription.
    fn check_idle_end(&mut self, end: End, view: View<'_>) -> Check {
        if view.drain.is_some() {
            return Ok(());
        }
        ensure!(self.decoder.is_at_rest(), "the end comes within a response: {end:?}");
        let timeout_ms = view.terms.head_ms.min(view.terms.idle_ms);
        // Over TLS, bytes may come that are no content yet: a handshake, half a record.
        let is_silent = self.pipe.borrow().tls.is_some() || end.silent_ms >= timeout_ms;
        let is_idle = end.at.now_ms >= self.opened_ms + timeout_ms && is_silent;
        // Requests refused before there are keys get no answer.
        if !is_idle && self.is_keyless() && view.terms.held_bytes_floor.is_some() {
            self.is_evicted = true;
            view.notes.saw("overload: a handshake cut off");
            return Ok(());
        }
        ensure!(is_idle, "closed, and these have no response: {:?}, {end:?}", self.requests);
        view.notes.saw("closed: idle");
        Ok(())
    }

    /// Checks the end of a stream or of SSE.
    fn check_end_of_stream(&mut self, end: End, view: View<'_>) -> Check {
        let is_late = is_late(end, view);
        if self.has_expired || (end.is_full && self.may_have_expired(end.at.now_ms)) {
            ensure!(self.may_have_expired(end.at.now_ms), "expired at {:?}", self.expires_ms);
            self.is_given_up = true;
            view.notes.saw("expired: stream");
            return Ok(());
        }
        if self.has_come_to_end(view) {
            return self.check_end_of_channel(end, view);
        }
        // Without chunks, a drained stream ends like one beyond the lag limit.
        let may_be_drained = self.plan.is_http10 && view.may_send_away();
        if self.has_last_chunk || (may_be_drained && self.check_lag(end, view).is_err()) {
            ensure!(view.may_send_away(), "a body ends for no reason");
            let is_sse = self.plan.transport == Transport::Sse;
            ensure!(!is_sse || self.has_retry || is_late, "drained without a retry");
            ensure!(is_late || self.decoder.is_at_rest(), "the end comes within a message");
            view.notes.saw(if is_sse { "drain: SSE" } else { "drain: stream" });
            return self.check_drained(end, view);
        }
        self.is_given_up = true;
        if is_late && end.is_full {
            view.notes.saw("drain: too late for some");
            return Ok(());
        }
        view.notes.saw("lag: stream closed");
        self.check_lag(end, view)
    }

    /// Checks the end of a WebSocket.
    fn check_close(&mut self, end: End, view: View<'_>) -> Check {
        let Some((code, reason)) = &self.close else {
            let is_unanswered = !self.follows_some() && !self.requests.is_empty();
            if is_unanswered {
                return self.check_idle_end(end, view);
            }
            // The worker ended before the socket took the close frame.
            let is_given_up = is_late(end, view) && end.is_full;
            ensure!(is_given_up, "a WebSocket ends without a close frame: {end:?}");
            return Ok(());
        };
        ensure!(self.decoder.is_at_rest(), "bytes follow the close frame");
        let (code, reason) = (*code, reason.clone());
        if self.expected_close == Some(code) {
            let is_answer = matches!(code, 1000 | 1005);
            view.notes.saw(match code {
                1000 | 1005 => "close: answered",
                4008 => "ack: of what was not sent",
                _ => "close: violation",
            });
            if is_answer && end.full_ms.is_none() {
                self.check_has_all(self.last_published, view)?;
            }
            return Ok(());
        }
        self.check_close_code(code, &reason, end, view)
    }

    /// Checks a close code that the client did not cause.
    ///
    /// If the close frame could not be written at once (`full_ms`), it is unknown when the server
    /// decided to close, and so whether the client had exceeded a time or size by then.
    fn check_close_code(&mut self, code: u16, reason: &str, end: End, view: View<'_>) -> Check {
        match code {
            1012 => {
                ensure!(view.may_send_away(), "drained for no reason");
                let wait_ms =
                    reconnect_ms_of(reason).ok_or_else(|| format!("the reason `{reason}`"))?;
                ensure!(wait_ms <= view.away_ms_max(), "the reason `{reason}`");
                let is_v1 = self.plan.transport == Transport::V1;
                view.notes.saw(if is_v1 { "drain: throng.v1" } else { "drain: WebSocket" });
                self.check_drained(end, view)
            }
            3008 if reason.starts_with("too_slow: a message must arrive") => {
                let took_ms = end.at.now_ms.saturating_sub(self.message_ms);
                let is_slow = took_ms >= view.terms.message_ms || end.full_ms.is_some();
                ensure!(is_slow, "closed after {took_ms} ms of a message");
                view.notes.saw("close: slow message");
                Ok(())
            }
            1013 if reason.starts_with("delivery lags") => {
                ensure!(self.is_busy, "closed as busy, with {:?} to publish", self.publications);
                view.notes.saw("busy: WebSocket closed");
                check_busy_reason(reason)
            }
            1013 if reason.starts_with("whether this is allowed") => {
                ensure!(view.may_be_late(), "closed as undecided");
                view.notes.saw("wait: WebSocket closed");
                check_busy_reason(reason)
            }
            1013 if reason.starts_with("too many unread responses") => {
                let bytes = self.incomplete_bytes(end);
                // A command that waits for its answer is buffered, with what follows on it.
                let may_wait =
                    view.may_be_late() || self.commands.iter().any(|(_, it)| takes_turns(it));
                let may_evict = self.may_evict(bytes, view) || end.full_ms.is_some() || may_wait;
                let commands = &self.commands;
                ensure!(may_evict, "evicted with {bytes} bytes incomplete, and {commands:?}");
                // A list that takes turns is closed before it counts as evicted.
                self.is_evicted = !self.commands.iter().any(|(_, it)| takes_turns(it));
                view.notes.saw("overload: WebSocket closed");
                check_busy_reason(reason)
            }
            4002 => {
                ensure!(self.may_have_expired(end.at.now_ms), "expired at {:?}", self.expires_ms);
                view.notes.saw("expired: WebSocket");
                Ok(())
            }
            4000 => {
                view.notes.saw("lag: WebSocket closed");
                self.check_lag(end, view)
            }
            4001 => {
                view.notes.saw("close: silent");
                // A ping may be late by a quarter of its interval.
                let least_ms = view.terms.answer_ms() * 3 / 4;
                // Half a record over TLS is no answer.
                let is_tls = self.pipe.borrow().tls.is_some();
                let is_silent = is_tls || end.silent_ms >= least_ms || end.full_ms.is_some();
                ensure!(least_ms > 0 && is_silent, "silent for only {} ms", end.silent_ms);
                Ok(())
            }
            _ => Err(format!("closed with {code} `{reason}`, not {:?}", self.expected_close)),
        }
    }

    /// Checks that a client that was sent away got all messages published before the server began
    /// to, unless the drain timeout has passed.
    fn check_drained(&self, end: End, view: View<'_>) -> Check {
        let Some(moment) = view.sent_away(end.at) else { return Ok(()) };
        if is_late(end, view) {
            view.notes.saw("drain: too late for some");
            return Ok(());
        }
        if view.drain.is_none() {
            view.notes.saw("leave: asked");
        }
        self.check_has_facts(moment.now_ms, view)?;
        self.check_has_all(moment.published, view)
    }

    /// True if some of its subscriptions have begun.
    fn follows_some(&self) -> bool {
        !self.cursors.is_empty() || !self.followers.is_empty()
    }

    /// Checks that the client got all followed messages among the first `number` of the world.
    fn check_has_all(&self, number: u64, view: View<'_>) -> Check {
        let reader = view.reader(self.name);
        for cursor in &self.cursors {
            let head = view.model.head_at(cursor.topic, number);
            let has_all = cursor.offset >= head || cursor.passes_over(head, reader, view.model);
            let name = view.model.topics[cursor.topic].name;
            ensure!(has_all, "ended at {} of {head} on {name}", cursor.offset);
        }
        Ok(())
    }

    /// Checks that a client closed for its lag exceeded the limit of a channel whose policy is to
    /// close.
    fn check_lag(&self, end: End, view: View<'_>) -> Check {
        if self.may_lag_in_state(view) {
            view.notes.saw("changing: closed before the end of its state");
            return Ok(());
        }
        let lags_of_members =
            |it: &Follower| view.model.topics[it.topic()].is_of_members() && it.may_lag(view);
        if self.followers.iter().any(lags_of_members) {
            view.notes.saw("members: closed for a lag");
            return Ok(());
        }
        // Those of commands have begun before the client learns of it.
        let begins = self.engine.begins.iter().map(|(begin, _)| begin);
        let begins = begins.filter(|begin| !view.model.topics[begin.topic].is_changing);
        let begun: Vec<_> = begins.map(Cursor::new).collect();
        let may_close = self.cursors.iter().chain(&begun).any(|cursor| {
            let head = view.model.head_at(cursor.topic, end.at.published);
            view.model.topics[cursor.topic].closes()
                && (view.model.exceeds_lag(cursor.topic, cursor.offset, head)
                    || view.may_be_dropped(cursor.topic, cursor.offset + 1)
                    || is_out_of_reach(cursor.offset, head))
        });
        let cursors = &self.cursors;
        let heads = cursors.iter().map(|it| view.model.head_at(it.topic, end.at.published));
        ensure!(
            may_close,
            "closed for its lag at {cursors:?}, heads {:?}, {:?}, {end:?}",
            heads.collect::<Vec<_>>(),
            self.followers
        );
        Ok(())
    }

    /// True if its handshake may have been given up because others waited. Then nothing that it
    /// sends is acted upon, until the time for its first request is over.
    pub(crate) fn may_be_stalled(&self, view: View<'_>) -> bool {
        let is_unanswered = !self.requests.is_empty() && self.engine.begins.is_empty();
        let is_here = !self.has_left && !self.pipe.borrow().is_ended();
        view.terms.has_few_handshakes && is_here && self.is_keyless() && is_unanswered
    }

    /// Once everything is sent, handled and read: checks that nothing is missing.
    pub(crate) fn check_rest(&self, view: View<'_>) -> Check {
        let pipe = self.pipe.borrow();
        if self.has_left {
            ensure!(pipe.is_ended(), "the client has left, but the server keeps the connection");
            return Ok(());
        }
        if self.has_ended || pipe.is_ended() || self.may_be_stalled(view) {
            return Ok(());
        }
        ensure!(self.decoder.is_at_rest(), "the last piece is incomplete");
        ensure!(!self.is_refused, "the connection is refused, but not closed");
        ensure!(self.expected_close.is_none(), "no close frame with {:?}", self.expected_close);
        ensure!(!self.is_busy, "no close frame for a publication refused as busy");
        ensure!(self.greetings.is_empty(), "missing: {:?}", self.greetings);
        ensure!(self.commands.is_empty(), "unanswered: {:?}", self.commands);
        ensure!(self.publications.is_empty(), "not published: {:?}", self.publications);
        let is_expired = self.must_expire_ms.is_some_and(|ms| ms + SLACK_MS < view.now.now_ms);
        ensure!(!is_expired, "allowed until {:?}, and not closed", self.must_expire_ms);
        for cursor in &self.cursors {
            let (name, head) =
                (view.model.topics[cursor.topic].name, view.model.head(cursor.topic));
            let has_all = cursor.passes_over(head, view.reader(self.name), view.model);
            if !has_all && self.may_be_held(cursor.topic, view) {
                view.notes.saw("ack: held for want of one");
                continue;
            }
            ensure!(has_all, "got {} of {head} on {name}", cursor.offset);
        }
        self.check_facts_at_rest(view)?;
        let interval_ms = view.terms.heartbeat_ms;
        if interval_ms > 0 && self.follows_some() && !pipe.was_full() {
            let quiet_ms = view.now.now_ms - pipe.written_ms();
            ensure!(quiet_ms <= interval_ms + SLACK_MS, "no heartbeat for {quiet_ms} ms");
        }
        self.check_request_at_rest(pipe.is_kept_alive, view)
    }

    /// At rest, only a long poll without messages may be unanswered.
    fn check_request_at_rest(&self, is_kept_alive: bool, view: View<'_>) -> Check {
        let plan = match self.requests.front() {
            Some(Request::Page) => return Err("the page has no response".into()),
            Some(Request::Subscription(plan)) => plan,
            None => return Ok(()),
        };
        ensure!(plan.transport == Transport::Poll, "no response: {plan:?}");
        ensure!(is_kept_alive, "a long poll waits, and TCP keepalive is off");
        ensure!(self.engine.begins.len() >= plan.targets.len(), "the long poll has not begun");
        for (begin, since) in self.engine.begins.iter().take(plan.targets.len()) {
            // One that resumes where only the newest counts gets nothing if that has expired.
            let newest = view.model.previous(begin.topic, view.model.head(begin.topic));
            let is_newest_alone =
                view.model.topics[begin.topic].is_latest() && begin.is_recovered.is_some();
            let from = if is_newest_alone { begin.cursor.max(newest) } else { begin.cursor };
            let has_nothing = view.model.next_for(begin.topic, from, view.reader(None)).is_none();
            ensure!(has_nothing, "the long poll has no response: {begin:?}");
            let waited_ms = view.now.now_ms - since.now_ms;
            ensure!(waited_ms <= plan.wait_s * 1000 + 1000, "waited for {waited_ms} ms");
        }
        Ok(())
    }
}

/// True if the answer to a command may come in a later turn.
fn takes_turns(command: &Command) -> bool {
    use Command::{Presence, SubscribeMany, UnsubscribeMany};
    matches!(command, Presence(_) | SubscribeMany(_) | UnsubscribeMany(_))
}

/// True if the drain timeout had passed when the server ended the connection.
fn is_late(end: End, view: View<'_>) -> bool {
    end.at.now_ms >= view.late_ms
}

/// The reason for a close under overload ends with a time to reconnect.
fn check_busy_reason(reason: &str) -> Check {
    let ms = reason.rsplit_once("; ").and_then(|(_, advice)| reconnect_ms_of(advice));
    ensure!(ms.is_some_and(|ms| BUSY_WINDOW_MS.contains(&ms)), "the reason `{reason}`");
    Ok(())
}
