//! Handles what the server sends, piece by piece.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::Client;
use super::expected::{Cursor, Greeting, Request};
use super::message::{Content, Received};
use super::plan::{ACCEPT, Plan, Transport};
use super::view::{View, is_out_of_reach};
use super::volatile::Text;
use crate::decode::Piece;
use crate::decode::events::Event;
use crate::decode::frames::{self, Frame};
use crate::decode::http::Head;
use crate::model::{Begin, VOLATILE};
use crate::{Check, ensure};

/// A way to alter what a client received, which its checks must notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tamper {
    /// A message is lost.
    Drop,
    /// A message comes twice.
    Repeat,
    /// Two messages of a channel are swapped.
    Swap,
    /// One byte of a message differs.
    Change,
}

/// A piece, as this client understands it.
enum Item {
    Message(Received),
    /// The text of a volatile message, or its envelope.
    Volatile(Text),
    /// A JSON object that is not a message.
    Notice(Value),
    /// What a compact frame said: whether it asks for an acknowledgement, and its messages.
    Frame(bool, Vec<Value>),
    Other(Piece),
}

impl Client {
    /// Reads at most `max_bytes` bytes and checks them. Takes `tamper` once it is applied. Returns
    /// the number of bytes.
    pub(crate) fn read(
        &mut self,
        max_bytes: usize,
        tamper: &mut Option<Tamper>,
        view: View<'_>,
    ) -> Check<usize> {
        let mut count = 0;
        while self.bytes_to_next_erasure() < max_bytes - count {
            let part = self.bytes_to_next_erasure();
            let read = self.read_part(part, tamper, view)?;
            count += read;
            if read < part {
                break;
            }
        }
        Ok(count + self.read_part(max_bytes - count, tamper, view)?)
    }

    fn read_part(
        &mut self,
        max_bytes: usize,
        tamper: &mut Option<Tamper>,
        view: View<'_>,
    ) -> Check<usize> {
        let waiting = self.pipe.borrow().waiting_bytes();
        let bytes = self.pipe.borrow_mut().client_reads(max_bytes);
        let fed_from = self.read_total;
        let count = waiting - self.pipe.borrow().waiting_bytes();
        self.read_total += count;
        if self.decoder.is_at_rest() {
            self.piece_from = fed_from;
        }
        let pieces = self.decoder.feed(&bytes)?;
        let (mut items, mut of_first) = (Vec::new(), None);
        for piece in pieces {
            if matches!(&piece, Piece::Frame(Frame { was_compressed: true, .. })) {
                view.notes.saw("deflate: a message came compressed");
            }
            match self.compact_items(&piece)? {
                Some(messages) => {
                    let is_message = |item: &&Item| !matches!(item, Item::Frame(..));
                    let is_joined = messages.iter().filter(is_message).count() > 1;
                    view.notes.saw(if is_joined { "compact: several" } else { "compact: one" });
                    items.extend(messages);
                }
                None => items.push(self.interpret(piece)?),
            }
            of_first.get_or_insert(items.len());
        }
        // Messages of several channels have no order that a swap could violate.
        if self.plan.targets.len() == 1 && self.plan.transport != Transport::V1 {
            alter(&mut items, tamper);
        }
        for (at, item) in items.into_iter().enumerate() {
            if Some(at) == of_first {
                self.piece_from = fed_from;
            }
            self.handle(item, view)?;
        }
        if of_first.is_some() {
            self.piece_from = fed_from;
        }
        let end = self.pipe.borrow().end_seen();
        if let Some(end) = end
            && !self.has_ended
        {
            self.has_ended = true;
            self.check_end(end, view)?;
        }
        Ok(count)
    }

    /// The messages of a piece that has them in compact envelopes; `None` for another piece.
    fn compact_items(&self, piece: &Piece) -> Check<Option<Vec<Item>>> {
        let (id, json) = match piece {
            _ if self.plan.compact.is_none() => return Ok(None),
            Piece::Frame(frame) if frame.opcode == frames::TEXT => {
                ensure!(!frame.was_compressed, "a compressed frame: {frame:?}");
                (None, &frame.payload[..])
            }
            Piece::Line(line) => (None, &line[..]),
            Piece::Event(Event { id, name, data: Some(data), .. })
                if name.as_deref().is_none_or(|name| name == "erased") =>
            {
                (id.clone(), data.as_bytes())
            }
            _ => return Ok(None),
        };
        if !json.starts_with(b"[") {
            return Ok(None);
        }
        let value: Value = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        if self.plan.transport != Transport::V1 {
            return Ok(Some(vec![compact(id, value)]));
        }
        let messages = value.as_array().and_then(|all| all.split_first());
        let messages = messages.filter(|(_, all)| !all.is_empty());
        let (asks, messages) = messages.ok_or_else(|| format!("no messages: {value}"))?;
        ensure!(*asks == 0 || *asks == 1, "neither asks nor does not: {value}");
        let frame = Item::Frame(*asks == 1, messages.to_vec());
        let items = messages.iter().map(|one| match one.as_array().map(|all| &all[..]) {
            Some([number, count]) => {
                let count = count.as_i64().map(i64::wrapping_neg);
                Item::Notice(json!({"type": "conflated", "number": number, "count": count}))
            }
            _ => compact(None, one.clone()),
        });
        Ok(Some(items.chain([frame]).collect()))
    }

    fn interpret(&self, piece: Piece) -> Check<Item> {
        let is_message = |value: &Value| value["type"] == "message" || value["type"] == "erased";
        Ok(match piece {
            Piece::Frame(Frame {
                opcode: opcode @ (frames::TEXT | frames::BINARY),
                payload,
                ..
            }) => {
                let is_binary = opcode == frames::BINARY;
                match notice(&payload).filter(|_| !is_binary) {
                    Some(value) if is_volatile(&value) => Item::Volatile(Text::Envelope(value)),
                    None if payload.starts_with(VOLATILE.as_bytes()) && !is_binary => {
                        Item::Volatile(Text::of(payload)?)
                    }
                    Some(value) if self.plan.has_envelopes() && is_message(&value) => {
                        message(None, Content::Envelope(value))
                    }
                    Some(value) => Item::Notice(value),
                    None => message(None, Content::Exact(payload, Some(is_binary))),
                }
            }
            Piece::Line(line) if !line.is_empty() => match notice(&line) {
                Some(value) if is_volatile(&value) => Item::Volatile(Text::Envelope(value)),
                None if line.starts_with(VOLATILE.as_bytes()) => Item::Volatile(Text::of(line)?),
                Some(value) if self.plan.envelope && is_message(&value) => {
                    message(None, Content::Envelope(value))
                }
                Some(value) => Item::Notice(value),
                None => message(None, Content::Exact(line, None)),
            },
            Piece::Event(Event { id: Some(id), name, data: Some(data), .. }) => {
                let content = match name.as_deref() {
                    None | Some("erased") if self.plan.envelope => Content::Envelope(
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
            Piece::Event(Event { id: None, name: None, data: Some(data), .. }) => {
                Item::Volatile(match notice(data.as_bytes()) {
                    Some(value) => Text::Envelope(value),
                    None => Text::Plain(data),
                })
            }
            Piece::Event(Event { id: None, name: Some(name), data: Some(data), .. }) => {
                let mut value: Value =
                    serde_json::from_str(&data).map_err(|error| format!("{error}: {data}"))?;
                let kind = value.get("type").and_then(Value::as_str);
                ensure!(kind.is_none_or(|kind| kind == name), "the event `{name}` has {data}");
                value["type"] = Value::from(name);
                Item::Notice(value)
            }
            other => Item::Other(other),
        })
    }

    fn handle(&mut self, item: Item, view: View<'_>) -> Check {
        let is_first = std::mem::take(&mut self.is_opening);
        match item {
            Item::Other(Piece::Event(Event { is_comment: true, id: None, data: None, .. }))
                if is_first =>
            {
                view.notes.saw("a heartbeat opens a stream");
                Ok(())
            }
            Item::Message(received) => self.message(&received, view),
            Item::Volatile(text) => self.volatile(&text, view),
            Item::Frame(asks, messages) => self.asked(asks, &messages, view),
            Item::Notice(value)
                if self.plan.transport == Transport::V1 && value["type"] == "heartbeat" =>
            {
                ensure!(value == json!({"type": "heartbeat"}), "a heartbeat with {value}");
                self.heartbeat(view)
            }
            Item::Notice(value) if value["type"] == "unread" => self.unread(&value, view),
            Item::Notice(value) => self.notice(&value, view),
            Item::Other(Piece::Head(head)) => self.head(head, view),
            Item::Other(Piece::Body(body)) => self.body(&body, view),
            Item::Other(Piece::Frame(frame)) => self.control_frame(&frame, view),
            Item::Other(Piece::LastChunk) => {
                self.has_last_chunk = true;
                Ok(())
            }
            Item::Other(Piece::Line(_)) => self.heartbeat(view),
            Item::Other(Piece::Event(Event {
                retry_ms: Some(ms), id: None, data: None, ..
            })) => {
                self.has_retry = true;
                self.check_reconnect_ms(ms, view)
            }
            Item::Other(Piece::Event(Event { is_comment: true, id: None, data: None, .. })) => {
                self.heartbeat(view)
            }
            Item::Other(Piece::Event(event)) => Err(format!("{event:?}")),
        }
    }

    fn heartbeat(&mut self, view: View<'_>) -> Check {
        view.notes.saw(match self.plan.transport {
            Transport::V1 => "heartbeat: throng.v1",
            Transport::Plain => "heartbeat: WebSocket",
            Transport::Sse => "heartbeat: SSE",
            Transport::Stream | Transport::Poll => "heartbeat: stream",
        });
        ensure!(view.terms.heartbeat_ms > 0, "a heartbeat, but they are off");
        ensure!(self.greetings.is_empty(), "a heartbeat before {:?}", self.greetings);
        Ok(())
    }

    fn control_frame(&mut self, frame: &Frame, view: View<'_>) -> Check {
        match frame.opcode {
            frames::PING => {
                view.notes.saw("ping");
                let has_pings = view.terms.heartbeat_ms > 0 && view.terms.ping_ms > 0;
                ensure!(has_pings, "a ping, but they are off");
                if self.answers_pings && self.expected_close.is_none() {
                    self.send_frame(frames::PONG, &frame.payload);
                }
                Ok(())
            }
            // A heartbeat: no client sends pings. Scripts do not see pongs, so `throng.v1` has
            // none.
            frames::PONG => {
                ensure!(self.plan.transport == Transport::Plain, "a pong on throng.v1");
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
        match self.requests.front().cloned() {
            None => {
                // Only an error may answer a request that is not complete.
                ensure!(head.status >= 400, "a response without a request: {head:?}");
                self.refusal(&head, None, view)
            }
            _ if head.status >= 400 => {
                let request = self.requests.pop_front();
                let plan = match &request {
                    Some(Request::Subscription(plan)) => Some(plan),
                    _ => None,
                };
                self.refusal(&head, plan, view)
            }
            Some(Request::Page) => {
                ensure!(head.status == 200, "the page was answered with {head:?}");
                Ok(())
            }
            Some(Request::Subscription(plan)) => {
                let objection = plan.refusal();
                ensure!(objection.is_none(), "not refused with {objection:?}: {head:?}");
                if plan.transport != Transport::Poll && head.status == 204 {
                    return self.begins_at_end(&head, &plan, view);
                }
                if plan.transport != Transport::Poll && head.header("throng-connection").is_none() {
                    return self.refused_with_reconnect(&head, &plan, view);
                }
                let is_denied = plan.targets.iter().any(|&topic| view.is_secret(topic));
                ensure!(!is_denied, "not denied: {head:?}");
                let begins = self.take_begins(&plan)?;
                check_recovered(&head, &plan, &begins, view)?;
                self.gaps += u64::from(all_recovered(&begins) == Some(false));
                if plan.transport == Transport::Poll {
                    return self.poll_head(head, begins, view);
                }
                self.requests.pop_front();
                self.start(&head, &plan, begins, view)
            }
        }
    }

    pub(super) fn take_begins(&mut self, plan: &Plan) -> Check<Vec<Begin>> {
        let mut begins = Vec::new();
        for &target in &plan.targets {
            let begin = self.engine.begins.pop_front().map(|(begin, _)| begin);
            let begin = begin.ok_or("answered, but the engine began no subscription")?;
            ensure!(begin.topic == target, "subscribed to {} instead of {target}", begin.topic);
            begins.push(begin);
        }
        Ok(begins)
    }

    /// A stream, SSE or WebSocket begins.
    fn start(&mut self, head: &Head, plan: &Plan, begins: Vec<Begin>, view: View<'_>) -> Check {
        check_upgrade(head, plan)?;
        let id = |begin: &Begin| view.model.id(begin.topic, begin.cursor);
        let ids: Vec<String> = begins.iter().map(id).collect();
        let id = head.header("throng-id").unwrap_or_default();
        ensure!(id == ids.join(","), "starts at `{id}` and not at {ids:?}");
        let name = head.header("throng-connection").ok_or("no Throng-Connection")?;
        let name = u64::from_str_radix(name, 16).map_err(|_| format!("the name `{name}`"))?;
        self.name = Some(name);
        let recovered = all_recovered(&begins);
        if plan.transport == Transport::V1 {
            self.greetings.push_back(Greeting::WelcomeV1);
            self.greetings.extend(begins.iter().copied().map(Greeting::Subscribed));
        } else {
            if let Some(recovered) = recovered.filter(|_| plan.transport == Transport::Sse) {
                self.greetings.push_back(Greeting::Resumed(recovered));
            }
            if plan.welcome.unwrap_or(view.terms.welcome) {
                self.greetings.push_back(Greeting::Welcome);
            }
            if plan.compact.is_some() {
                self.greetings.push_back(Greeting::Numbers);
            }
        }
        self.is_opening = plan.transport == Transport::Sse && self.greetings.is_empty();
        self.must_expire_ms = self.expires_ms.filter(|_| !self.was_asked_again);
        begins.iter().try_for_each(|begin| self.begin(begin, plan.state, view))?;
        // Now it is known whether it has a user.
        begins.iter().for_each(|begin| self.enters(begin.topic, None, view.model));
        plan.presence.iter().try_for_each(|(channel, _)| self.watch(*channel, view))
    }

    /// It follows one more channel.
    pub(super) fn begin(&mut self, begin: &Begin, wants_state: bool, view: View<'_>) -> Check {
        if view.model.topics[begin.topic].is_changing {
            return self.follow_changing(begin, wants_state);
        }
        self.cursors.push(Cursor::new(begin));
        Ok(())
    }

    fn body(&mut self, body: &[u8], view: View<'_>) -> Check {
        if self.must_reconnect {
            return self.reconnect_events(body, view);
        }
        if self.is_refused {
            let value: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
            let is_complete = value["error"].is_string() && value["message"].is_string();
            ensure!(is_complete, "an error without a code or message: {value}");
            let expected = self.plan.refusal();
            let is_bad = value["error"] == "bad_id";
            ensure!(!is_bad || expected.is_some(), "refused for {value}");
            return Ok(());
        }
        match self.requests.front() {
            Some(Request::Page) => {
                self.requests.pop_front();
                view.notes.saw("control: page answered");
                Ok(())
            }
            _ => self.poll_body(body, view),
        }
    }
}

/// Checks that a head begins the requested transport.
pub(super) fn check_upgrade(head: &Head, plan: &Plan) -> Check {
    if plan.is_websocket() {
        ensure!(head.status == 101, "no upgrade: {head:?}");
        ensure!(
            head.header("sec-websocket-accept") == Some(ACCEPT),
            "Sec-WebSocket-Accept: {head:?}"
        );
        let protocol = (plan.transport == Transport::V1).then_some("throng.v1");
        ensure!(head.header("sec-websocket-protocol") == protocol, "protocol: {head:?}");
        let extension = head.header("sec-websocket-extensions");
        // A WebSocket that is opened only to be told why it is closed does without.
        let is_subscribed = head.header("throng-connection").is_some();
        ensure!(extension.is_some() == (plan.deflate && is_subscribed), "extension: {head:?}");
        let answer = "permessage-deflate; server_no_context_takeover; client_no_context_takeover";
        ensure!(extension.is_none_or(|extension| extension == answer), "extension: {head:?}");
    } else {
        ensure!(head.status == 200, "no stream: {head:?}");
        let is_events = head.header("content-type") == Some("text/event-stream");
        ensure!(is_events == (plan.transport == Transport::Sse), "the content type: {head:?}");
    }
    Ok(())
}

/// Whether all channels are recovered; `None` if the request had no ids.
pub(super) fn all_recovered(begins: &[Begin]) -> Option<bool> {
    begins.iter().filter_map(|begin| begin.is_recovered).reduce(|all, one| all && one)
}

pub(super) fn check_recovered(head: &Head, plan: &Plan, begins: &[Begin], view: View<'_>) -> Check {
    let expected = all_recovered(begins).map(|recovered| recovered.to_string());
    let actual = head.header("throng-recovered");
    // A long-poll learns so of a gap that comes later.
    let may_have_gap = plan.transport == Transport::Poll
        && begins.iter().any(|it| is_out_of_reach(it.cursor, view.model.head(it.topic)));
    if may_have_gap && actual == Some("false") {
        return Ok(());
    }
    ensure!(actual == expected.as_deref(), "recovered: {actual:?} instead of {expected:?}");
    ensure!(actual.is_some() == plan.resumes(), "recovered: {actual:?} for {:?}", plan.start);
    match actual {
        Some("true") => view.notes.saw("resume: whole"),
        Some(_) => view.notes.saw("resume: gap"),
        None => {}
    }
    Ok(())
}

fn message(id: Option<String>, content: Content) -> Item {
    Item::Message(Received { id, content })
}

/// A message in a compact envelope: a volatile one has no offset.
fn compact(id: Option<String>, value: Value) -> Item {
    if value[1].is_null() && id.is_none() {
        Item::Volatile(Text::Compact(value))
    } else {
        message(id, Content::Compact(value))
    }
}

/// True if an object is the envelope of a volatile message.
fn is_volatile(value: &Value) -> bool {
    value["type"] == "message" && value.get("id").is_none()
}

/// A JSON object with a type. Clients of the simulation publish none.
fn notice(bytes: &[u8]) -> Option<Value> {
    if !bytes.starts_with(br#"{"type":"#) {
        return None;
    }
    serde_json::from_slice(bytes).ok()
}

/// Applies `tamper` if the items have a message that it applies to.
fn alter(items: &mut Vec<Item>, tamper: &mut Option<Tamper>) {
    let Some(kind) = *tamper else { return };
    let is_message = |item: &Item| matches!(item, Item::Message(_));
    let Some(at) = items.iter().position(is_message) else { return };
    let next = items.iter().skip(at + 1).position(is_message).map(|next| at + 1 + next);
    match kind {
        Tamper::Drop => drop(items.remove(at)),
        Tamper::Repeat => {
            let Item::Message(received) = &items[at] else { return };
            let again = Item::Message(received.clone());
            items.insert(at, again);
        }
        Tamper::Swap => match next {
            Some(next) => items.swap(at, next),
            None => return,
        },
        Tamper::Change => {
            let Item::Message(received) = &mut items[at] else { return };
            match &mut received.content {
                Content::Exact(bytes, _) => bytes[0] ^= 1,
                Content::Lines(text) => text.push('.'),
                Content::Envelope(value) => value["time"] = Value::from(1),
                Content::Compact(value) => value[1] = Value::from(0),
            }
        }
    }
    *tamper = None;
}
