//! Whether the server was right to end the connection, and what must have come when all is quiet.

use super::later::moment_of;
use super::plan::Way;
use super::{Asked, Client, Cursor, View};
use crate::pipe::End;
use crate::{Check, ensure};

/// When clients closed for overload are to come back.
const BUSY_WINDOW_MS: std::ops::Range<u64> = 1_000..5_000;

/// A server may give up on one who has not read for so long.
pub(super) const UNREAD_MS: u64 = 30_000;

/// And on one who has not read an answer to its end after this, however steadily.
const ANSWER_MS: u64 = 15 * 60_000;

/// Ticks of a world are at most 12 s apart, but for one that comes at once after a leap; and while
/// a fan-out is under way, heartbeats wait for 2 s.
const SLACK_MS: u64 = 15_000;

impl Client {
    /// The server has ended its side, and everything before has been read.
    pub(super) fn judge_end(&mut self, end: End, view: View<'_>) -> Check {
        let was_turned_away = self.pipe.borrow().was_turned_away;
        if self.is_turned_away && !self.has_left {
            return self.judge_turned_away(end, view);
        }
        if self.has_left || self.refused || was_turned_away {
            return Ok(());
        }
        if view.terms.is_tight() && self.gave_way() {
            view.notes.saw("closed: for room");
            return Ok(());
        }
        let is_over = end.full_ms.is_some_and(|full_ms| full_ms >= ANSWER_MS);
        let is_stuck = end.stuck_ms >= self.patience_ms(view);
        if end.is_full && (is_stuck || (is_over && self.awaits_answer())) {
            self.is_cut = true;
            view.notes.saw("closed: did not read");
            return Ok(());
        }
        if end.is_full && self.may_hold(view) && !self.is_late(end, view) {
            self.is_cut = true;
            // One of several channels may also be behind.
            self.is_overload = self.plan.way != Way::Sse;
            view.notes.saw("overload: cut off");
            return Ok(());
        }
        if !self.asked.is_empty() && self.plan.way != Way::Poll {
            // It has fallen behind before it has read that it follows anything.
            let begins = self.known.begins.iter().take(self.plan.targets.len());
            self.cursors =
                begins.map(|(begin, _)| Cursor { topic: begin.topic, at: begin.cursor }).collect();
        }
        if self.cursors.is_empty() && self.plan.way != Way::V1 {
            return self.judge_idle_end(end, view);
        }
        let is_late = self.is_late(end, view);
        if self.plan.is_websocket() {
            return self.judge_close(end, is_late, view);
        }
        // Without chunks the end of one that was sent home looks like that of one that is behind.
        let may_be_sent_home = self.plan.is_http10 && view.drain.is_some();
        if self.has_last_chunk || (may_be_sent_home && self.judge_behind(end, view).is_err()) {
            ensure!(view.drain.is_some(), "a body ends for no reason");
            let is_sse = self.plan.way == Way::Sse;
            ensure!(!is_sse || self.has_retry || is_late, "sent home without a retry");
            ensure!(is_late || self.decoder.is_at_rest(), "the end comes within something");
            let event = if is_sse { "drain: SSE" } else { "drain: stream" };
            view.notes.saw(event);
            return self.judge_parting(is_late, view);
        }
        self.is_cut = true;
        if is_late && end.is_full {
            view.notes.saw("drain: too late for some");
            return Ok(());
        }
        view.notes.saw("lag: stream closed");
        self.judge_behind(end, view)
    }

    /// Whether what the server writes may be an answer or its last words, which come to an end.
    fn awaits_answer(&self) -> bool {
        match self.plan.way {
            Way::Poll | Way::Plain | Way::V1 => true,
            Way::Sse | Way::Stream => !self.asked.is_empty() && self.known.begins.is_empty(),
        }
    }

    /// Whether the worker may hold so much of answers and events of this client's own, or of what
    /// it has half sent, that it has to give way. Others must not be hit.
    fn may_hold(&self, view: View<'_>) -> bool {
        let has_own = match self.plan.way {
            Way::Poll | Way::Plain | Way::V1 => true,
            // Only ids of several channels make an event its own.
            Way::Sse => self.plan.targets.len() > 1,
            Way::Stream => false,
        };
        view.terms.held_bytes_floor.is_some() && has_own
    }

    /// Bytes that the server had read of what it had not read whole when it ended.
    fn half_sent_bytes(&self, end: End) -> usize {
        let whole = self.sent_ends.partition_point(|&sent_end| sent_end <= end.read_bytes);
        let begin = whole.checked_sub(1).map_or(0, |last| self.sent_ends[last]);
        end.read_bytes - begin
    }

    /// How long the server waits for one who does not read.
    fn patience_ms(&self, view: View<'_>) -> u64 {
        let is_refused = !self.asked.is_empty() && self.known.begins.is_empty();
        match self.plan.way {
            Way::Poll => view.terms.idle_ms.min(UNREAD_MS),
            Way::Plain | Way::V1 => UNREAD_MS,
            Way::Sse | Way::Stream if is_refused => UNREAD_MS,
            // A stream is only ended for being behind.
            Way::Sse | Way::Stream => u64::MAX,
        }
    }

    fn is_late(&self, end: End, view: View<'_>) -> bool {
        end.at.now_ms >= view.late_ms
    }

    /// Nothing was under way but a request, or not even that.
    fn judge_idle_end(&self, end: End, view: View<'_>) -> Check {
        if view.drain.is_some() {
            return Ok(());
        }
        ensure!(self.decoder.is_at_rest(), "the end comes within an answer: {end:?}");
        let patience_ms = view.terms.head_ms.min(view.terms.idle_ms);
        let is_idle = end.at.now_ms >= self.opened_ms + patience_ms && end.silent_ms >= patience_ms;
        ensure!(is_idle, "closed while {:?} was asked", self.asked);
        view.notes.saw("closed: idle");
        Ok(())
    }

    fn judge_close(&mut self, end: End, is_late: bool, view: View<'_>) -> Check {
        let Some((code, reason)) = &self.close else {
            // The farewell was given up with the worker.
            let is_given_up = is_late && end.is_full;
            let is_unasked = self.cursors.is_empty() && !self.asked.is_empty();
            if is_unasked {
                return self.judge_idle_end(end, view);
            }
            ensure!(is_given_up, "a WebSocket ends without a close frame: {end:?}");
            return Ok(());
        };
        ensure!(self.decoder.is_at_rest(), "something follows the close frame");
        if let Some(said) = self.said
            && said.0 == *code
        {
            let is_answer = matches!(code, 1000 | 1005);
            view.notes.saw(if is_answer { "close: answered" } else { "close: violation" });
            if is_answer && end.full_ms.is_none() {
                self.judge_whole(self.spoken, view)?;
            }
            return Ok(());
        }
        match code {
            1012 => {
                ensure!(view.drain.is_some(), "sent home for no reason");
                let wait_ms = moment_of(reason).ok_or_else(|| format!("the reason `{reason}`"))?;
                ensure!(wait_ms <= view.terms.drain_window_ms, "the reason `{reason}`");
                let is_v1 = self.plan.way == Way::V1;
                view.notes.saw(if is_v1 { "drain: throng.v1" } else { "drain: WebSocket" });
                self.judge_parting(is_late, view)
            }
            1008 if reason.starts_with("a message must arrive") => {
                // When the close was queued is not known, if it could not be written at once.
                let took_ms = end.at.now_ms.saturating_sub(self.message_ms);
                let is_slow = took_ms >= view.terms.message_ms || end.full_ms.is_some();
                ensure!(is_slow, "closed after {took_ms} ms of a message");
                view.notes.saw("close: slow message");
                Ok(())
            }
            1013 if reason.starts_with("delivery is behind") => {
                ensure!(self.is_busy, "closed as busy, having said {:?}", self.publishing);
                view.notes.saw("busy: WebSocket closed");
                check_busy_moment(reason)
            }
            1013 if reason.starts_with("too much is half sent") => {
                let bytes = self.half_sent_bytes(end);
                // When the close was queued is not known, if it could not be written at once.
                let is_it = view.may_be_much(bytes) || end.full_ms.is_some();
                ensure!(is_it, "closed for holding much, and had half sent {bytes} bytes");
                self.is_overload = true;
                view.notes.saw("overload: WebSocket closed");
                check_busy_moment(reason)
            }
            4000 => {
                view.notes.saw("lag: WebSocket closed");
                self.judge_behind(end, view)
            }
            4001 => {
                view.notes.saw("close: silent");
                // When the close was queued is not known, if it could not be written at once.
                // A ping may be late by a quarter.
                let least_ms = view.terms.answer_ms() * 3 / 4;
                let is_silent = end.silent_ms >= least_ms || end.full_ms.is_some();
                ensure!(least_ms > 0 && is_silent, "silent for {} ms only", end.silent_ms);
                Ok(())
            }
            _ => Err(format!("closed with {code} `{reason}`, having said {:?}", self.said)),
        }
    }

    /// Sent home: everything that was published before has come.
    fn judge_parting(&self, is_late: bool, view: View<'_>) -> Check {
        let Some(drain) = view.drain else { return Ok(()) };
        if is_late {
            view.notes.saw("drain: too late for some");
            return Ok(());
        }
        self.judge_whole(drain.published, view)
    }

    /// The first `number` messages of the world have come, as far as they are for the client.
    fn judge_whole(&self, number: u64, view: View<'_>) -> Check {
        for cursor in &self.cursors {
            let head = view.model.head_at(cursor.topic, number);
            let is_whole = cursor.at >= head
                || view.model.is_only_excepted(cursor.topic, cursor.at, head, self.name);
            let name = view.model.topics[cursor.topic].name;
            ensure!(is_whole, "ended at {} of {head} on {name}", cursor.at);
        }
        Ok(())
    }

    /// Closed for being behind: it must be, on a channel where that is the policy.
    fn judge_behind(&self, end: End, view: View<'_>) -> Check {
        let may = self.cursors.iter().any(|cursor| {
            let head = view.model.head_at(cursor.topic, end.at.published);
            !view.model.topics[cursor.topic].skips()
                && (view.model.may_be_behind(cursor.topic, cursor.at, head)
                    || view.may_be_dropped(cursor.topic, cursor.at + 1))
        });
        let cursors = &self.cursors;
        let heads = cursors.iter().map(|it| view.model.head_at(it.topic, end.at.published));
        ensure!(may, "closed as behind at {cursors:?}, heads {:?}", heads.collect::<Vec<_>>());
        Ok(())
    }

    /// Everything has been sent, handled and read: nothing may be missing.
    pub fn judge_rest(&self, view: View<'_>) -> Check {
        let pipe = self.pipe.borrow();
        if self.has_left {
            ensure!(pipe.is_ended(), "the client has gone, and the server has not noticed");
            return Ok(());
        }
        if self.is_over || pipe.is_ended() {
            return Ok(());
        }
        ensure!(self.decoder.is_at_rest(), "something is not whole");
        ensure!(!self.refused, "the connection was to be closed");
        ensure!(self.said.is_none(), "no close frame came for {:?}", self.said);
        ensure!(!self.is_busy, "refused as busy, and never told");
        ensure!(self.greetings.is_empty(), "{:?} did not come", self.greetings);
        ensure!(self.commands.is_empty(), "unanswered: {:?}", self.commands);
        ensure!(self.publishing.is_empty(), "not published: {:?}", self.publishing);
        for cursor in &self.cursors {
            let next = view.model.next_for(cursor.topic, cursor.at, self.name);
            let (name, head) =
                (view.model.topics[cursor.topic].name, view.model.head(cursor.topic));
            ensure!(next.is_none(), "got {} of {head} on {name}", cursor.at);
        }
        let interval_ms = view.terms.heartbeat_ms;
        if interval_ms > 0 && !self.cursors.is_empty() && !pipe.was_full() {
            let quiet_ms = view.now.now_ms - pipe.written_ms();
            ensure!(quiet_ms <= interval_ms + SLACK_MS, "no heartbeat for {quiet_ms} ms");
        }
        let is_polling = matches!(self.asked.front(), Some(Asked::Subscription(_)));
        let is_waiting = self.plan.way == Way::Poll && is_polling;
        ensure!(!is_waiting || pipe.is_kept_alive, "nothing finds out whether the client is there");
        match self.asked.front() {
            Some(Asked::Page) => Err("the page was not answered".into()),
            Some(Asked::Subscription(plan)) => {
                ensure!(plan.way == Way::Poll, "not answered: {plan:?}");
                ensure!(
                    self.known.begins.len() >= plan.targets.len(),
                    "the long-poll has not begun"
                );
                for (begin, since) in self.known.begins.iter().take(plan.targets.len()) {
                    let is_all = view.model.next_for(begin.topic, begin.cursor, None).is_none();
                    ensure!(is_all, "the long-poll was not answered: {begin:?}");
                    let waited_ms = view.now.now_ms - since.now_ms;
                    ensure!(waited_ms <= plan.wait_s * 1000 + 1000, "waited for {waited_ms} ms");
                }
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// A WebSocket that is closed for overload is told when to come back.
fn check_busy_moment(reason: &str) -> Check {
    let moment = reason.rsplit_once("; ").and_then(|(_, told)| moment_of(told));
    ensure!(moment.is_some_and(|ms| BUSY_WINDOW_MS.contains(&ms)), "the reason `{reason}`");
    Ok(())
}
