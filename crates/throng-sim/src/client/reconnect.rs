//! Subscriptions that are refused in the form of their transport, with a time to reconnect.

use throng_core::MemoryStep;

use super::Client;
use super::expected::Request;
use super::plan::{Plan, Transport};
use super::receive::check_upgrade;
use super::view::View;
use crate::decode::http::Head;
use crate::pipe::End;
use crate::{Check, ensure};

/// The time after which a server may close a connection whose client reads nothing.
pub(super) const UNREAD_MS: u64 = 30_000;

/// The time after which a server may close a connection whose client has not read a response
/// completely, even if it reads steadily.
pub(super) const ANSWER_MS: u64 = 15 * 60_000;

/// The times to reconnect to a full server, in milliseconds.
const FULL_WINDOW_MS: std::ops::Range<u64> = 1_000..10_000;

/// The times to reconnect in a storm, in milliseconds.
const STORM_WINDOW_MS: std::ops::RangeInclusive<u64> = 250..=61_000;

impl Client {
    /// Checks the head of a response that begins the transport, but no subscription.
    pub(super) fn refused_with_reconnect(
        &mut self,
        head: &Head,
        plan: &Plan,
        view: View<'_>,
    ) -> Check {
        check_upgrade(head, plan)?;
        ensure!(plan.transport != Transport::Stream, "a stream is refused with {head:?}");
        ensure!(head.header("throng-id").is_none(), "refused with an id: {head:?}");
        self.is_denied = head.header("retry-after").is_none();
        let is_full = view.terms.is_scarce || view.has_stopped_accepting;
        if self.is_denied {
            let is_secret = plan.targets.iter().any(|&topic| view.is_secret(topic));
            let is_websocket = plan.transport != Transport::Sse;
            let is_missing = self.may_lack_channels(Some(plan), view);
            ensure!((is_secret || is_missing) && is_websocket, "denied with {head:?}");
        } else {
            let may_be_short = view.may_be_short(MemoryStep::RefuseSubscriptions);
            let may_refuse = is_full || view.may_be_late() || may_be_short || view.may_be_told();
            ensure!(may_refuse, "refused with {head:?}");
            if view.may_be_late() && !is_full && !may_be_short && !view.may_be_told() {
                view.notes.saw("wait: request refused");
            }
            if may_be_short && !is_full && !view.may_be_late() && !view.may_be_told() {
                view.notes.saw("memory: request refused");
            }
            if view.may_be_told() && !is_full && !view.may_be_late() && !may_be_short {
                view.notes.saw("storm: request told");
            }
        }
        if plan.transport == Transport::Sse {
            let is_last = head.header("connection") == Some("close");
            ensure!(is_last && head.header("retry-after").is_some(), "refused with {head:?}");
        }
        self.requests.clear();
        self.must_reconnect = true;
        Ok(())
    }

    /// Checks the body of a refused SSE request: a comment and the time to reconnect.
    pub(super) fn reconnect_events(&mut self, body: &[u8], view: View<'_>) -> Check {
        let text = str::from_utf8(body).map_err(|error| error.to_string())?;
        let lines: Vec<&str> = text.split('\n').collect();
        let [comment, retry, "", ""] = lines[..] else { return Err(format!("refused: {text}")) };
        ensure!(comment.starts_with(": "), "refused: {text}");
        let ms = retry.strip_prefix("retry: ").and_then(|digits| digits.parse().ok());
        self.has_retry = true;
        self.check_reconnect_ms(ms.ok_or_else(|| format!("refused: {text}"))?, view)
    }

    /// Checks the end of a connection that was refused with a time to reconnect, or denied.
    pub(super) fn check_end_of_refused(&self, end: End, view: View<'_>) -> Check {
        // The server gives up what the socket does not take: when the worker ends, when its reserve
        // is full, or when the client reads nothing, or too slowly.
        let is_unread = end.stuck_ms >= UNREAD_MS;
        let is_slow = end.full_ms.is_some_and(|full_ms| full_ms >= ANSWER_MS);
        let may_end = view.terms.is_tight() || view.drain.is_some() || is_unread || is_slow;
        let is_given_up = end.is_full && may_end;
        if self.plan.transport == Transport::Sse {
            ensure!(self.has_retry || is_given_up, "refused without a retry");
            view.notes.saw("refused: SSE with a reconnect time");
            return Ok(());
        }
        let Some((code, reason)) = &self.close else {
            ensure!(is_given_up, "refused without a close frame");
            return Ok(());
        };
        if self.is_denied {
            let is_missing = *code == 1008 && reason.starts_with("not_created");
            let is_right = *code == 4005 && !reason.is_empty() || is_missing;
            ensure!(is_right, "denied with {code} `{reason}`");
            view.notes.saw(if is_missing {
                "made: WebSocket refused before"
            } else {
                "decision: WebSocket denied"
            });
            return Ok(());
        }
        ensure!(matches!(code, 1012 | 1013), "refused with {code}");
        ensure!(*code == 1013 || view.has_stopped_accepting, "refused with {code}");
        let ms = reconnect_ms_of(reason).ok_or_else(|| format!("the reason `{reason}`"))?;
        view.notes.saw("refused: WebSocket with a reconnect time");
        self.check_reconnect_ms(ms, view)
    }

    pub(super) fn check_reconnect_ms(&self, ms: u64, view: View<'_>) -> Check {
        let is_drain = view.has_stopped_accepting && ms <= view.away_ms_max();
        let is_full = self.must_reconnect && FULL_WINDOW_MS.contains(&ms);
        let is_storm = self.must_reconnect && view.may_be_told() && STORM_WINDOW_MS.contains(&ms);
        ensure!(is_drain || is_full || is_storm, "told to reconnect in {ms} ms");
        Ok(())
    }

    /// True if the server may have closed it for a newer connection, because its request is
    /// incomplete.
    pub(super) fn may_be_replaced(&self) -> bool {
        let is_unanswered = self.engine.begins.is_empty() && !self.requests.is_empty();
        let is_page = matches!(self.requests.front(), Some(Request::Page));
        is_unanswered && !(is_page && self.is_prompt) && self.position.is_empty()
    }
}

/// The time to reconnect in the reason of a close frame.
pub(super) fn reconnect_ms_of(reason: &str) -> Option<u64> {
    reason.strip_prefix("reconnect in ")?.strip_suffix(" ms")?.parse().ok()
}
