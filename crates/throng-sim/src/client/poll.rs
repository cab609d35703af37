//! The answers to long-polls.

use throng_core::Body;

use super::plan::{From, Given, Plan, Way};
use super::{Asked, Client, View};
use crate::decode::http::Head;
use crate::model::{Begin, Entry};
use crate::random::Random;
use crate::{Check, ensure};

impl Client {
    /// Asks again: mostly where the last answer ended, sometimes from now on, sometimes twice.
    pub fn poll_again(&mut self, random: &mut Random, view: View<'_>) {
        let ids = self.position.iter().map(|&offset| Given::Ours(offset)).collect();
        let from = match random.percent(85) {
            true => From::Since(ids, random.percent(50)),
            false => From::Live,
        };
        // Some wait until the end comes.
        let wait_s = if random.percent(30) { 60 } else { random.between(0, 5) as u64 };
        let plan = Plan { from, wait_s, ..self.plan.clone() };
        if plan.keep_alive && random.percent(20) {
            view.notes.saw("poll: pipelined");
            self.ask(plan.clone(), view);
        }
        self.ask(plan, view);
    }

    /// Before the end it asks once more for what it has not got.
    pub fn poll_last(&mut self, view: View<'_>) {
        let ids = self.position.iter().map(|&offset| Given::Ours(offset)).collect();
        let plan = Plan { from: From::Since(ids, false), wait_s: 60, ..self.plan.clone() };
        self.ask(plan, view);
    }

    /// A long-poll was refused while the server drains: nothing that was accepted before may be
    /// ready for it, as the logs are about to be lost.
    pub(super) fn judge_refused_poll(&self, plan: &Plan, view: View<'_>) -> Check {
        let (From::Since(ids, _), Some(drain)) = (&plan.from, view.drain) else { return Ok(()) };
        let is_late = view.now.now_ms >= view.late_ms;
        // One that comes in pieces may be refused before it is whole.
        let is_whole = self.is_prompt && self.position.is_empty();
        let was_read = is_whole || !self.known.begins.is_empty();
        if plan.way != Way::Poll || view.terms.is_scarce || is_late || !was_read {
            return Ok(());
        }
        for (&topic, id) in plan.targets.iter().zip(ids) {
            let Given::Ours(offset) = *id else { return Ok(()) };
            let head = view.model.head_at(topic, drain.published);
            let is_whole =
                offset >= head || view.model.is_only_excepted(topic, offset, head, self.name);
            ensure!(is_whole, "a long-poll from {offset} is refused, and {head} is ready");
        }
        view.notes.saw("drain: long-poll with nothing ready");
        Ok(())
    }

    pub(super) fn poll_head(&mut self, head: Head, begins: Vec<Begin>, view: View<'_>) -> Check {
        ensure!(matches!(head.status, 200 | 204), "a long-poll was answered with {head:?}");
        if head.status == 204 {
            return self.poll_answer(&head, &begins, None, view);
        }
        self.poll_head = Some((head, begins));
        Ok(())
    }

    pub(super) fn poll_body(&mut self, body: &[u8], view: View<'_>) -> Check {
        let (head, begins) = self.poll_head.take().ok_or("a body without head")?;
        self.poll_answer(&head, &begins, Some(body), view)
    }

    fn poll_answer(
        &mut self,
        head: &Head,
        begins: &[Begin],
        body: Option<&[u8]>,
        view: View<'_>,
    ) -> Check {
        let Some(Asked::Subscription(plan)) = self.asked.pop_front() else {
            return Err("a long-poll's answer to nothing".into());
        };
        let id = head.header("throng-id").ok_or("a long-poll's answer without id")?;
        let offsets = id.split(',').map(|id| view.model.offset(id)).collect::<Check<Vec<u64>>>()?;
        ensure!(offsets.len() == begins.len(), "the id `{id}` for {} channels", begins.len());
        let mut promised: Vec<(usize, u64, &Entry)> = Vec::new();
        for (begin, &to) in begins.iter().zip(&offsets) {
            let is_ours = begin.cursor <= to && to <= view.model.head(begin.topic);
            ensure!(is_ours, "from {} to {to}", begin.cursor);
            let range = (begin.cursor + 1)..=to;
            let entry = |at| Some((begin.topic, at, view.model.entry(begin.topic, at)?));
            promised.extend(range.filter_map(entry));
        }
        let expected = (!promised.is_empty()).then(|| join(&promised, &plan, view));
        ensure!(
            body == expected.as_deref(),
            "the body {:?} instead of {:?}, from {begins:?} to {offsets:?}",
            body.map(String::from_utf8_lossy),
            expected.as_deref().map(String::from_utf8_lossy)
        );
        if body.is_some() {
            let content_type = content_type(&promised, &plan);
            let told = head.header("content-type");
            ensure!(told == Some(&content_type), "{told:?} and not {content_type}");
        }
        self.messages += promised.len() as u64;
        match promised.len() {
            0 => view.notes.saw("poll: nothing"),
            1 => view.notes.saw("poll: one message"),
            _ => view.notes.saw("poll: several messages"),
        }
        self.position = offsets;
        self.end_poll(head, &plan, view)
    }

    fn end_poll(&mut self, head: &Head, plan: &Plan, view: View<'_>) -> Check {
        let is_parting = head.header("retry-after").is_some();
        if view.drain.is_some() && !is_parting && head.status == 200 {
            view.notes.saw("drain: long-poll answered");
        }
        ensure!(!is_parting || view.drain.is_some(), "sent away: {head:?}");
        if is_parting {
            view.notes.saw("drain: long-poll");
        }
        let is_kept = plan.keep_alive && !is_parting;
        let told = head.header("connection");
        let expected = if is_kept { "keep-alive" } else { "close" };
        ensure!(told == Some(expected), "the connection: {told:?} and not {expected}");
        if !is_kept {
            self.refused = true;
            self.asked.clear();
        }
        Ok(())
    }
}

fn join(promised: &[(usize, u64, &Entry)], plan: &Plan, view: View<'_>) -> Vec<u8> {
    let one = |&(topic, offset, entry): &(usize, u64, &Entry)| match plan.envelope {
        true => ordered_envelope(view, topic, offset, entry).into_bytes(),
        false => entry.body.bytes().to_vec(),
    };
    promised.iter().map(one).collect::<Vec<_>>().join(&b'\n')
}

/// The envelope, letter by letter: a body of several cannot be compared otherwise.
fn ordered_envelope(view: View<'_>, topic: usize, offset: u64, entry: &Entry) -> String {
    let value = super::message::envelope(view.model, topic, offset, entry);
    let noun = super::message::noun(view.model.topics[topic].kind);
    let mut out = String::from("{");
    for field in ["type", noun, "id", "time", "content_type", "encoding", "data"] {
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

fn content_type(promised: &[(usize, u64, &Entry)], plan: &Plan) -> String {
    const TEXT: &str = "text/plain; charset=utf-8";
    let one = |entry: &Entry| match (&entry.content_type, &entry.body) {
        _ if plan.envelope => "application/x-ndjson".to_owned(),
        (Some(content_type), _) => content_type.to_string(),
        (None, Body::Text(_)) => TEXT.into(),
        (None, Body::Json(_)) => "application/json".into(),
        (None, Body::Binary(_)) => "application/octet-stream".into(),
    };
    let mut all = promised.iter().map(|(_, _, entry)| one(entry));
    let first = all.next().unwrap_or_default();
    if all.all(|other| other == first) { first } else { TEXT.into() }
}
