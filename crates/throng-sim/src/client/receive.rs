//! What the server sends, piece by piece.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::message::{Content, Received};
use super::plan::{ACCEPT, Plan, Way};
use super::{Asked, Client, Cursor, Greeting, View};
use crate::decode::Piece;
use crate::decode::events::Event;
use crate::decode::frames::{self, Frame};
use crate::decode::http::Head;
use crate::model::Begin;
use crate::{Check, ensure};

/// A way to spoil what a client received, to see that it objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tamper {
    /// A message is lost.
    Drop,
    /// A message comes twice.
    Repeat,
    /// Two messages of a channel change places.
    Swap,
    /// A byte of a message is another one.
    Change,
}

/// A piece, seen with the eyes of this client.
enum Told {
    Message(Received),
    Notice(Value),
    Other(Piece),
}

impl Client {
    /// Reads at most so many bytes and judges them. `tamper` is taken when it has been applied.
    pub fn read(
        &mut self,
        bytes_max: usize,
        tamper: &mut Option<Tamper>,
        view: View<'_>,
    ) -> Check<usize> {
        let bytes = self.pipe.borrow_mut().client_reads(bytes_max);
        self.received_bytes += bytes.len() as u64;
        let pieces = self.decoder.feed(&bytes)?;
        let mut told = Vec::new();
        for piece in pieces {
            told.push(self.tell(piece)?);
        }
        // Between several channels there is no order to be spoilt.
        if self.plan.targets.len() == 1 && self.plan.way != Way::V1 {
            spoil(&mut told, tamper);
        }
        for piece in told {
            self.hear(piece, view)?;
        }
        let end = self.pipe.borrow().end_seen();
        if let Some(end) = end
            && !self.is_over
        {
            self.is_over = true;
            self.judge_end(end, view)?;
        }
        Ok(bytes.len())
    }

    fn tell(&self, piece: Piece) -> Check<Told> {
        let is_message = |value: &Value| value["type"] == "message";
        Ok(match piece {
            Piece::Frame(Frame { opcode: opcode @ (frames::TEXT | frames::BINARY), payload }) => {
                let is_binary = opcode == frames::BINARY;
                match notice(&payload).filter(|_| !is_binary) {
                    Some(value) if self.plan.has_envelopes() && is_message(&value) => {
                        message(None, Content::Envelope(value))
                    }
                    Some(value) => Told::Notice(value),
                    None => message(None, Content::Exact(payload, Some(is_binary))),
                }
            }
            Piece::Line(line) if !line.is_empty() => match notice(&line) {
                Some(value) if self.plan.envelope && is_message(&value) => {
                    message(None, Content::Envelope(value))
                }
                Some(value) => Told::Notice(value),
                None => message(None, Content::Exact(line, None)),
            },
            Piece::Event(Event { id: Some(id), name, data: Some(data), .. }) => {
                let content = match name.as_deref() {
                    None if self.plan.envelope => Content::Envelope(
                        serde_json::from_str(&data).map_err(|error| format!("{error}: {data}"))?,
                    ),
                    None => Content::Lines(data),
                    Some("binary") => {
                        let bytes = STANDARD.decode(&data).map_err(|error| error.to_string())?;
                        Content::Exact(bytes, Some(true))
                    }
                    Some(other) => return Err(format!("the event `{other}` has an id")),
                };
                message(Some(id), content)
            }
            Piece::Event(Event { id: None, name: Some(name), data: Some(data), .. }) => {
                let mut value: Value =
                    serde_json::from_str(&data).map_err(|error| format!("{error}: {data}"))?;
                let kind = value.get("type").and_then(Value::as_str);
                ensure!(kind.is_none_or(|kind| kind == name), "the event `{name}` holds {data}");
                value["type"] = Value::from(name);
                Told::Notice(value)
            }
            other => Told::Other(other),
        })
    }

    fn hear(&mut self, told: Told, view: View<'_>) -> Check {
        match told {
            Told::Message(received) => self.message(&received, view),
            Told::Notice(value) if self.plan.way == Way::V1 && value["type"] == "heartbeat" => {
                ensure!(value == json!({"type": "heartbeat"}), "a heartbeat says {value}");
                self.heartbeat(view)
            }
            Told::Notice(value) => self.notice(&value, view),
            Told::Other(Piece::Head(head)) => self.head(head, view),
            Told::Other(Piece::Body(body)) => self.body(&body, view),
            Told::Other(Piece::Frame(frame)) => self.control_frame(&frame, view),
            Told::Other(Piece::LastChunk) => {
                self.has_last_chunk = true;
                Ok(())
            }
            Told::Other(Piece::Line(_)) => self.heartbeat(view),
            Told::Other(Piece::Event(Event {
                retry_ms: Some(ms), id: None, data: None, ..
            })) => {
                self.has_retry = true;
                self.check_moment(ms, view)
            }
            Told::Other(Piece::Event(Event { is_comment: true, id: None, data: None, .. })) => {
                self.heartbeat(view)
            }
            Told::Other(Piece::Event(event)) => Err(format!("{event:?}")),
        }
    }

    fn heartbeat(&mut self, view: View<'_>) -> Check {
        view.notes.saw(match self.plan.way {
            Way::V1 => "heartbeat: throng.v1",
            Way::Plain => "heartbeat: WebSocket",
            Way::Sse => "heartbeat: SSE",
            Way::Stream | Way::Poll => "heartbeat: stream",
        });
        ensure!(view.terms.heartbeat_ms > 0, "a heartbeat where there are none");
        ensure!(self.greetings.is_empty(), "a heartbeat before {:?}", self.greetings);
        Ok(())
    }

    fn control_frame(&mut self, frame: &Frame, view: View<'_>) -> Check {
        match frame.opcode {
            frames::PING => {
                view.notes.saw("ping");
                let has_pings = view.terms.heartbeat_ms > 0 && view.terms.ping_ms > 0;
                ensure!(has_pings, "a ping where there are none");
                if self.answers_pings && self.said.is_none() {
                    self.say(frames::PONG, &frame.payload);
                }
                Ok(())
            }
            // No client asks for one: it is a sign of life. A page could not see it.
            frames::PONG => {
                ensure!(self.plan.way == Way::Plain, "a pong on throng.v1");
                ensure!(frame.payload.is_empty(), "a pong with a payload");
                self.heartbeat(view)
            }
            _ => {
                ensure!(self.close.is_none(), "a second close frame");
                let (code, reason) = match frame.payload.split_first_chunk() {
                    Some((code, reason)) => (u16::from_be_bytes(*code), reason),
                    None => (1005, &frame.payload[..]),
                };
                let reason = String::from_utf8(reason.to_vec()).map_err(|_| "a close's reason")?;
                self.close = Some((code, reason));
                Ok(())
            }
        }
    }

    fn head(&mut self, head: Head, view: View<'_>) -> Check {
        match self.asked.front().cloned() {
            None => {
                // Nobody asked: only a refusal of what came so far says something all the same.
                ensure!(head.status >= 400, "an answer to nothing: {head:?}");
                self.refusal(&head, None, view)
            }
            _ if head.status >= 400 => {
                let asked = self.asked.pop_front();
                let plan = match &asked {
                    Some(Asked::Subscription(plan)) => Some(plan),
                    _ => None,
                };
                self.refusal(&head, plan, view)
            }
            Some(Asked::Page) => {
                ensure!(head.status == 200, "the page was answered with {head:?}");
                Ok(())
            }
            Some(Asked::Subscription(plan)) => {
                let objection = plan.refusal();
                ensure!(objection.is_none(), "not refused with {objection:?}: {head:?}");
                if plan.way != Way::Poll && head.header("throng-connection").is_none() {
                    return self.turned_away(&head, &plan, view);
                }
                let begins = self.take_begins(&plan)?;
                check_recovered(&head, &plan, &begins, view)?;
                self.gaps += u64::from(all_recovered(&begins) == Some(false));
                if plan.way == Way::Poll {
                    return self.poll_head(head, begins, view);
                }
                self.asked.pop_front();
                self.start(&head, &plan, begins, view)
            }
        }
    }

    fn take_begins(&mut self, plan: &Plan) -> Check<Vec<Begin>> {
        let mut begins = Vec::new();
        for &target in &plan.targets {
            let begin = self.known.begins.pop_front().map(|(begin, _)| begin);
            let begin = begin.ok_or("answered without a subscription")?;
            ensure!(begin.topic == target, "subscribed to {} for {target}", begin.topic);
            begins.push(begin);
        }
        Ok(begins)
    }

    /// A stream, SSE or WebSocket begins.
    fn start(&mut self, head: &Head, plan: &Plan, begins: Vec<Begin>, view: View<'_>) -> Check {
        check_upgrade(head, plan)?;
        let ids: Vec<String> = begins.iter().map(|begin| view.model.id(begin.cursor)).collect();
        let id = head.header("throng-id").unwrap_or_default();
        ensure!(id == ids.join(","), "starts at `{id}` and not at {ids:?}");
        let name = head.header("throng-connection").ok_or("no Throng-Connection")?;
        let name = u64::from_str_radix(name, 16).map_err(|_| format!("the name `{name}`"))?;
        self.name = Some(name);
        let recovered = all_recovered(&begins);
        if plan.way == Way::V1 {
            self.greetings.push_back(Greeting::WelcomeV1);
            self.greetings.extend(begins.iter().copied().map(Greeting::Subscribed));
        } else {
            if let Some(recovered) = recovered.filter(|_| plan.way == Way::Sse) {
                self.greetings.push_back(Greeting::Resumed(recovered));
            }
            if plan.welcome.unwrap_or(view.terms.welcome) {
                self.greetings.push_back(Greeting::Welcome);
            }
        }
        let cursor = |begin: &Begin| Cursor { topic: begin.topic, at: begin.cursor };
        self.cursors = begins.iter().map(cursor).collect();
        Ok(())
    }

    fn body(&mut self, body: &[u8], view: View<'_>) -> Check {
        if self.is_turned_away {
            return self.events_of_refusal(body, view);
        }
        if self.refused {
            let value: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
            let is_whole = value["error"].is_string() && value["message"].is_string();
            ensure!(is_whole, "the refusal says {value}");
            let expected = self.plan.refusal();
            let is_bad = value["error"] == "bad_id";
            ensure!(!is_bad || expected.is_some(), "refused for {value}");
            return Ok(());
        }
        match self.asked.front() {
            Some(Asked::Page) => {
                self.asked.pop_front();
                view.notes.saw("control: page answered");
                Ok(())
            }
            _ => self.poll_body(body, view),
        }
    }
}

/// The head is that of the transport that was asked for.
pub(super) fn check_upgrade(head: &Head, plan: &Plan) -> Check {
    if plan.is_websocket() {
        ensure!(head.status == 101, "no upgrade: {head:?}");
        ensure!(head.header("sec-websocket-accept") == Some(ACCEPT), "the accept: {head:?}");
        let protocol = (plan.way == Way::V1).then_some("throng.v1");
        ensure!(head.header("sec-websocket-protocol") == protocol, "protocol: {head:?}");
    } else {
        ensure!(head.status == 200, "no stream: {head:?}");
        let is_events = head.header("content-type") == Some("text/event-stream");
        ensure!(is_events == (plan.way == Way::Sse), "the content type: {head:?}");
    }
    Ok(())
}

/// Whether an id was given, and every channel is whole.
pub(super) fn all_recovered(begins: &[Begin]) -> Option<bool> {
    begins.iter().filter_map(|begin| begin.is_recovered).reduce(|all, one| all && one)
}

fn check_recovered(head: &Head, plan: &Plan, begins: &[Begin], view: View<'_>) -> Check {
    let expected = all_recovered(begins).map(|recovered| recovered.to_string());
    let told = head.header("throng-recovered");
    ensure!(told == expected.as_deref(), "recovered: {told:?} and not {expected:?}");
    ensure!(told.is_some() == plan.resumes(), "recovered: {told:?} for {:?}", plan.from);
    match told {
        Some("true") => view.notes.saw("resume: whole"),
        Some(_) => view.notes.saw("resume: gap"),
        None => {}
    }
    Ok(())
}

fn message(id: Option<String>, content: Content) -> Told {
    Told::Message(Received { id, content })
}

/// A JSON object of the server's own; what is published here never looks like one.
fn notice(bytes: &[u8]) -> Option<Value> {
    if !bytes.starts_with(br#"{"type":"#) {
        return None;
    }
    serde_json::from_slice(bytes).ok()
}

fn spoil(told: &mut Vec<Told>, tamper: &mut Option<Tamper>) {
    let Some(kind) = *tamper else { return };
    let is_message = |told: &Told| matches!(told, Told::Message(_));
    let Some(at) = told.iter().position(is_message) else { return };
    let next = told.iter().skip(at + 1).position(is_message).map(|next| at + 1 + next);
    match kind {
        Tamper::Drop => drop(told.remove(at)),
        Tamper::Repeat => {
            let Told::Message(received) = &told[at] else { return };
            let again = Told::Message(received.clone());
            told.insert(at, again);
        }
        Tamper::Swap => match next {
            Some(next) => told.swap(at, next),
            None => return,
        },
        Tamper::Change => {
            let Told::Message(received) = &mut told[at] else { return };
            match &mut received.content {
                Content::Exact(bytes, _) => bytes[0] ^= 1,
                Content::Lines(text) => text.push('.'),
                Content::Envelope(value) => value["time"] = Value::from(1),
            }
        }
    }
    *tamper = None;
}
