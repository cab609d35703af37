//! A subscription that is refused for now: in the form of its transport, with a moment to come
//! back.

use super::ending::UNREAD_MS;
use super::plan::{Plan, Way};
use super::receive::check_upgrade;
use super::{Asked, Client, View};
use crate::decode::http::Head;
use crate::pipe::End;
use crate::{Check, ensure};

/// Who finds no room comes back within this, in milliseconds.
const FULL_WINDOW_MS: std::ops::Range<u64> = 1_000..10_000;

impl Client {
    /// The head of an answer that begins no subscription.
    pub(super) fn turned_away(&mut self, head: &Head, plan: &Plan, view: View<'_>) -> Check {
        check_upgrade(head, plan)?;
        ensure!(plan.way != Way::Stream, "a stream is refused with {head:?}");
        ensure!(head.header("throng-id").is_none(), "refused with an id: {head:?}");
        ensure!(view.terms.is_scarce || view.has_stopped_accepting, "refused with {head:?}");
        if plan.way == Way::Sse {
            let is_last = head.header("connection") == Some("close");
            ensure!(is_last && head.header("retry-after").is_some(), "refused with {head:?}");
        }
        self.asked.clear();
        self.is_turned_away = true;
        Ok(())
    }

    /// The whole stream of events with which a subscription is refused.
    pub(super) fn events_of_refusal(&mut self, body: &[u8], view: View<'_>) -> Check {
        let text = str::from_utf8(body).map_err(|error| error.to_string())?;
        let lines: Vec<&str> = text.split('\n').collect();
        let [comment, retry, "", ""] = lines[..] else { return Err(format!("refused: {text}")) };
        ensure!(comment.starts_with(": "), "refused: {text}");
        let ms = retry.strip_prefix("retry: ").and_then(|digits| digits.parse().ok());
        self.has_retry = true;
        self.check_moment(ms.ok_or_else(|| format!("refused: {text}"))?, view)
    }

    /// The end of a connection that was refused.
    pub(super) fn judge_turned_away(&self, end: End, view: View<'_>) -> Check {
        // What did not fit was given up: with the worker, for want of room, or as it was not read.
        let is_unread = end.stuck_ms >= UNREAD_MS;
        let may_end = view.terms.is_tight() || view.drain.is_some() || is_unread;
        let is_given_up = end.is_full && may_end;
        if self.plan.way == Way::Sse {
            ensure!(self.has_retry || is_given_up, "refused without a retry");
            view.notes.saw("refused: SSE with a reconnect time");
            return Ok(());
        }
        let Some((code, reason)) = &self.close else {
            ensure!(is_given_up, "refused without a close frame");
            return Ok(());
        };
        ensure!(matches!(code, 1012 | 1013), "refused with {code}");
        ensure!(*code == 1013 || view.has_stopped_accepting, "refused with {code}");
        let ms = moment_of(reason).ok_or_else(|| format!("the reason `{reason}`"))?;
        view.notes.saw("refused: WebSocket with a reconnect time");
        self.check_moment(ms, view)
    }

    pub(super) fn check_moment(&self, ms: u64, view: View<'_>) -> Check {
        let is_drain = view.has_stopped_accepting && ms <= view.terms.drain_window_ms;
        let is_full = self.is_turned_away && FULL_WINDOW_MS.contains(&ms);
        ensure!(is_drain || is_full, "come back in {ms} ms");
        Ok(())
    }

    /// Whether it may have been closed for a newer connection: not with its first request whole.
    pub(super) fn gave_way(&self) -> bool {
        let is_answered = self.known.begins.is_empty() && !self.asked.is_empty();
        let is_page = matches!(self.asked.front(), Some(Asked::Page));
        is_answered && !(is_page && self.is_prompt) && self.position.is_empty()
    }
}

/// When a close frame says to come back.
pub(super) fn moment_of(reason: &str) -> Option<u64> {
    reason.strip_prefix("reconnect in ")?.strip_suffix(" ms")?.parse().ok()
}
