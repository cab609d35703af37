//! Requests of long polls, and their responses.

use throng_core::Body;

use super::Client;
use super::expected::Request;
use super::message::{envelope, noun};
use super::plan::{Plan, SinceId, Start, Transport};
use super::view::{View, is_out_of_reach};
use crate::decode::http::Head;
use crate::model::{Begin, Entry};
use crate::random::Random;
use crate::{Check, ensure};

/// The content type of text.
const TEXT: &str = "text/plain; charset=utf-8";

impl Client {
    /// Sends the next long poll: mostly from where the last one ended, sometimes live, sometimes
    /// two at once.
    pub(crate) fn poll_again(&mut self, random: &mut Random, view: View<'_>) {
        let start = if random.percent(85) {
            Start::Since(self.position_ids(), random.percent(50))
        } else {
            Start::Live
        };
        // A drain comes while some still wait.
        let wait_s = if random.percent(30) { 60 } else { random.between(0, 5) as u64 };
        let plan = Plan { start, wait_s, ..self.plan.clone() };
        if plan.keep_alive && random.percent(20) {
            view.notes.saw("poll: pipelined");
            self.request(plan.clone(), view);
        }
        self.request(plan, view);
    }

    /// Sends a last long poll from where the one before ended, while the server drains.
    pub(crate) fn poll_last(&mut self, view: View<'_>) {
        let start = Start::Since(self.position_ids(), false);
        self.request(Plan { start, wait_s: 60, ..self.plan.clone() }, view);
    }

    fn position_ids(&self) -> Vec<SinceId> {
        self.position.iter().map(|&offset| SinceId::Ours(offset)).collect()
    }

    /// A long poll was refused while the server drains: it must have nothing that was accepted
    /// before the drain to return, because the logs are about to be lost.
    pub(super) fn check_refused_poll(&self, plan: &Plan, view: View<'_>) -> Check {
        let (Start::Since(ids, _), Some(drain)) = (&plan.start, view.drain) else { return Ok(()) };
        let is_late = view.now.now_ms >= view.late_ms;
        // A head that arrives in parts may be refused before it is complete.
        let is_complete = self.is_prompt && self.position.is_empty();
        let was_read = is_complete || !self.engine.begins.is_empty();
        // One that waits for a decision may be refused before it is decided.
        let may_be_late = is_late || view.may_be_late();
        let may_be_refused =
            view.terms.is_scarce || view.terms.memory_varies || view.may_be_told() || may_be_late;
        if plan.transport != Transport::Poll || may_be_refused || !was_read {
            return Ok(());
        }
        for (&topic, id) in plan.targets.iter().zip(ids) {
            let SinceId::Ours(offset) = *id else { return Ok(()) };
            let head = view.model.head_at(topic, drain.published);
            // Where only the newest counts, it gets nothing if that is not for it.
            let newest = view.model.previous(topic, view.model.head(topic));
            let is_latest = view.model.topics[topic].is_latest();
            let from = if is_latest { offset.max(newest) } else { offset };
            let has_all =
                from >= head || view.model.passes_over(topic, from, head, view.reader(self.name));
            ensure!(has_all, "a long poll after {offset} is refused, but the head is {head}");
        }
        view.notes.saw("drain: long-poll with nothing ready");
        Ok(())
    }

    pub(super) fn poll_head(&mut self, head: Head, begins: Vec<Begin>, view: View<'_>) -> Check {
        ensure!(matches!(head.status, 200 | 204), "a long poll was answered with {head:?}");
        if head.status == 204 {
            return self.poll_answer(&head, &begins, None, view);
        }
        self.poll_head = Some((head, begins));
        Ok(())
    }

    pub(super) fn poll_body(&mut self, body: &[u8], view: View<'_>) -> Check {
        let (head, begins) = self.poll_head.take().ok_or("a body without a head")?;
        self.poll_answer(&head, &begins, Some(body), view)
    }

    /// Checks that the response has all messages from the start of the poll to the id that it
    /// names.
    fn poll_answer(
        &mut self,
        head: &Head,
        begins: &[Begin],
        body: Option<&[u8]>,
        view: View<'_>,
    ) -> Check {
        let Some(Request::Subscription(plan)) = self.requests.pop_front() else {
            return Err("a response to a long poll that was not sent".into());
        };
        let id = head.header("throng-id").ok_or("a long poll's response without an id")?;
        let ids: Vec<&str> = id.split(',').collect();
        ensure!(ids.len() == begins.len(), "the id `{id}` for {} channels", begins.len());
        let offset = |(begin, id): (&Begin, &str)| view.model.offset(begin.topic, id);
        let offsets: Vec<u64> = begins.iter().zip(ids).map(offset).collect::<Check<_>>()?;
        for (begin, &to) in begins.iter().zip(&offsets) {
            let head = view.model.head(begin.topic);
            // One that is so far behind has no place that could be told.
            let is_far = to == 0 && is_out_of_reach(begin.cursor, head);
            let is_lost = is_far && view.model.topics[begin.topic].is_latest();
            let is_possible = is_lost || (begin.cursor <= to && to <= head);
            ensure!(is_possible, "from {} to {to}", begin.cursor);
        }
        let answer = (&plan, begins, &*offsets);
        let (body, is_volatile) = self.volatile_in_answer(body, answer, view)?;
        let has_gap = head.header("throng-recovered") == Some("false");
        let gaps = possible_gaps(begins, view).filter(|_| has_gap);
        let mut expected = between(begins, &offsets, (0, 0, 0), view);
        let mut expected_body = (!expected.is_empty()).then(|| joined(&expected, &plan, view));
        for gaps in std::iter::once(0).chain(gaps) {
            for at_ms in possible_times(begins, &offsets, view) {
                for skipped in 0..possible_skips(begins, &offsets, view) {
                    if body == expected_body.as_deref() {
                        break;
                    }
                    expected = between(begins, &offsets, (gaps, at_ms, skipped), view);
                    expected_body = (!expected.is_empty()).then(|| joined(&expected, &plan, view));
                }
            }
        }
        ensure!(
            body == expected_body.as_deref(),
            "the body {:?} instead of {:?}, from {begins:?} to {offsets:?}",
            body.map(String::from_utf8_lossy),
            expected_body.as_deref().map(String::from_utf8_lossy)
        );
        if body.is_some() || is_volatile {
            // A volatile message is text.
            let content_type = match is_volatile && !plan.envelope {
                true => TEXT.into(),
                false if expected.is_empty() => "application/x-ndjson".into(),
                false => content_type(&expected, &plan),
            };
            let actual = head.header("content-type");
            ensure!(actual == Some(&content_type), "{actual:?} instead of {content_type}");
        }
        self.messages += expected.len() as u64;
        self.received.extend(expected.iter().map(|(topic, entry)| (*topic, entry.offset)));
        match expected.len() {
            0 => view.notes.saw("poll: nothing"),
            1 => view.notes.saw("poll: one message"),
            _ => view.notes.saw("poll: several messages"),
        }
        self.position = offsets;
        self.end_poll(head, &plan, view)
    }

    /// Checks whether the connection stays open, and whether the client must reconnect later.
    fn end_poll(&mut self, head: &Head, plan: &Plan, view: View<'_>) -> Check {
        let must_reconnect = head.header("retry-after").is_some();
        if view.drain.is_some() && !must_reconnect && head.status == 200 {
            view.notes.saw("drain: long-poll answered");
        }
        ensure!(!must_reconnect || view.may_send_away(), "told to reconnect: {head:?}");
        if must_reconnect {
            view.notes.saw("drain: long-poll");
        }
        let is_kept = plan.keep_alive && !must_reconnect;
        let actual = head.header("connection");
        let expected = if is_kept { "keep-alive" } else { "close" };
        ensure!(actual == Some(expected), "the connection: {actual:?} instead of {expected}");
        if !is_kept {
            self.is_refused = true;
            self.requests.clear();
        }
        Ok(())
    }
}

/// The body of a response with these messages.
fn joined(messages: &[(usize, &Entry)], plan: &Plan, view: View<'_>) -> Vec<u8> {
    let text = |&(topic, entry): &(usize, &Entry)| {
        if plan.envelope {
            ordered_envelope(view, topic, entry).into_bytes()
        } else {
            entry.body.bytes().to_vec()
        }
    };
    messages.iter().map(text).collect::<Vec<_>>().join(&b'\n')
}

/// The exact text of an envelope: a body of several envelopes is not one JSON value that could be
/// compared.
fn ordered_envelope(view: View<'_>, topic: usize, entry: &Entry) -> String {
    let value = envelope(view.model, topic, entry);
    let noun = noun(view.model.topics[topic].kind);
    let mut out = String::from("{");
    for field in ["type", noun, "id", "time", "expires", "content_type", "encoding", "data"] {
        let Some(part) = value.get(field) else { continue };
        let part = match (&entry.body, field) {
            (Body::Json(text), "data") => text.replace(['\n', '\r'], " "),
            _ => part.to_string(),
        };
        let comma = if out.len() > 1 { "," } else { "" };
        out.push_str(&format!("{comma}\"{field}\":{part}"));
    }
    out + "}"
}

/// The content type of a response: the messages' common one, or that of lines if all are JSON,
/// otherwise text.
fn content_type(messages: &[(usize, &Entry)], plan: &Plan) -> String {
    let one = |entry: &Entry| match (&entry.content_type, &entry.body) {
        _ if plan.envelope => "application/x-ndjson".to_owned(),
        (Some(content_type), _) => content_type.to_string(),
        (None, Body::Text(_)) => TEXT.into(),
        (None, Body::Json(_)) => "application/json".into(),
        (None, Body::Binary(_)) => "application/octet-stream".into(),
    };
    let mut all = messages.iter().map(|(_, entry)| one(entry));
    let first = all.next().unwrap_or_default();
    match all.all(|other| other == first) {
        true if first == "application/json" && messages.len() > 1 => "application/x-ndjson".into(),
        true => first,
        false => TEXT.into(),
    }
}

/// The messages of a poll from `begins` to `offsets`. The channels with a bit in `gaps` have a gap,
/// and add none; those that had expired when the answer was made are left out, and so are the first
/// of channels that skip messages for newer ones, in one of [`possible_skips`].
fn between<'a>(
    begins: &[Begin],
    offsets: &[u64],
    (gaps, at_ms, mut skips): (u32, u64, usize),
    view: View<'a>,
) -> Vec<(usize, &'a Entry)> {
    let mut messages = Vec::new();
    for (nth, (begin, &to)) in begins.iter().zip(offsets).enumerate() {
        if gaps >> nth & 1 == 0 {
            let entries = view.model.between(begin.topic, begin.cursor, to);
            let is_latest = view.model.topics[begin.topic].is_latest();
            let ways = if is_latest { entries.len() + 1 } else { 1 };
            let skipped = skips % ways;
            skips /= ways;
            let entries = entries[skipped..].iter().filter(|entry| !entry.is_expired(at_ms));
            messages.extend(entries.map(|entry| (begin.topic, entry)));
        }
    }
    messages
}

/// When the answer to a poll may have been made, as far as that decides which messages it has.
fn possible_times(begins: &[Begin], offsets: &[u64], view: View<'_>) -> Vec<u64> {
    let of_one = |(begin, &to): (&Begin, &u64)| {
        let entries = view.model.between(begin.topic, begin.cursor, to).iter();
        entries.filter_map(|entry| entry.expires_ms).collect::<Vec<_>>()
    };
    let mut times: Vec<u64> = begins.iter().zip(offsets).flat_map(of_one).collect();
    times.retain(|&expires_ms| expires_ms <= view.now.now_ms);
    times.push(0);
    times
}

/// In how many ways the answer to a poll may skip messages for newer ones.
fn possible_skips(begins: &[Begin], offsets: &[u64], view: View<'_>) -> usize {
    let of_one = |(begin, &to): (&Begin, &u64)| {
        let is_latest = view.model.topics[begin.topic].is_latest();
        let lacked = view.model.between(begin.topic, begin.cursor, to).len();
        if is_latest { lacked + 1 } else { 1 }
    };
    begins.iter().zip(offsets).map(of_one).product()
}

/// Which channels of a poll may have a gap, one bit each: some of those that are out of reach.
fn possible_gaps(begins: &[Begin], view: View<'_>) -> impl Iterator<Item = u32> {
    let mut out_of_reach = 0;
    for (nth, begin) in begins.iter().enumerate() {
        let head = view.model.head(begin.topic);
        out_of_reach |= u32::from(is_out_of_reach(begin.cursor, head)) << nth;
    }
    (1..=out_of_reach).filter(move |gaps| gaps & !out_of_reach == 0)
}
