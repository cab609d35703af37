//! A dialect that only tests have. It uses every part of the interface, as dialects of others do
//! that are not ours: its own words, several commands in a message, answers joined in one frame,
//! close codes and reasons, errors in band, refusals before the upgrade, HTTP statuses.
//!
//! A message has lines, in both directions. A line of a client is a number, which the answer
//! repeats, a verb and its object: `1 sub news`.

use std::time::Duration;

use throng_core::Message;
use throng_wire::head::Head;
use throng_wire::member::{MemberInfoError, member_info_of};
use throng_wire::page_range::PageRange;
use throng_wire::percent::decode_segment;
use throng_wire::subscribe::{self, Request, Route};
use throng_wire::v1::{Command, MemberEvent, Publication, RawValue, Received};
use throng_wire::{ErrorCode, ErrorResponse, Kind, Labels, MemberClaim, Target, check_target_name};

use crate::close_reason::CloseReason;
use crate::dialect::{Answer, Dialect, End, Ended, Heard, LateIdentity, Shown, Speaker};
use crate::framing::Out;
use crate::saying::{Saying, Welcome};

/// The number of its encoding. Other builds may give it to another dialect.
pub(crate) const ENCODING: u8 = 22;
/// The number of its encoding with compression.
pub(crate) const DEFLATE: u8 = 23;

/// A line in a frame.
const HEARTBEAT: &[u8] = b"\x81\x01~";

/// The dialect.
#[derive(Debug)]
pub struct Testing;

impl Dialect for Testing {
    fn has_commands(&self) -> bool {
        true
    }

    fn late_identity(&self) -> LateIdentity {
        LateIdentity { within: Some(Duration::from_secs(10)), may_sign_in: false }
    }

    fn max_input_bytes(&self, max_message_bytes: usize) -> usize {
        max_message_bytes + 64
    }

    fn answer(&self, answer: Result<(u16, &[u8]), &ErrorResponse>) -> Option<Answer> {
        let (status, word, body) = match answer {
            Ok((_, body)) => (200, "ok", [b"ok ", body].concat()),
            Err(error) => {
                let status = if error.code.status() < 500 { 400 } else { 503 };
                (status, error.code.name(), error.message.as_bytes().to_vec())
            }
        };
        let headers =
            vec![("Content-Type", "text/plain".to_owned()), ("X-Testing", word.to_owned())];
        Some(Answer { status, headers, body })
    }

    fn message(&self, message: &Message, _: Shown<'_>, out: &mut Out<'_>) {
        let body = String::from_utf8_lossy(message.body.bytes());
        out.text(format!("msg {} {body}", message.channel.name()).as_bytes());
    }

    fn say(&self, saying: &Saying<'_>, reference: Option<&RawValue>, out: &mut Out<'_>) {
        let words = match saying {
            Saying::Welcome(Welcome { connection, .. }) => format!("hello {connection}"),
            Saying::Subscribed(target, _) => format!("subscribed {}", target.name),
            Saying::Unsubscribed(target) => format!("unsubscribed {}", target.name),
            Saying::Revoked(target, error) => format!("revoked {} {}", target.name, error.code),
            Saying::Gap { target, missed, .. } => {
                format!("gap {} {}", target.name, missed.unwrap_or(0))
            }
            Saying::Conflated { target, count } => {
                format!("conflated {} {}", target.name, count.unwrap_or(0))
            }
            Saying::State { target, .. } => format!("state {}", target.name),
            Saying::Ended { target, id, .. } => format!("ended {} {id}", target.name),
            Saying::Late(is_late) => format!("late {is_late}"),
            Saying::Expiring(left_s) => format!("expiring {left_s}"),
            Saying::Error(error) => format!("error {}", error.code),
            Saying::Published { subscribers, .. } => format!("published {subscribers}"),
            Saying::Authenticated(user, _) => format!("user {}", user.unwrap_or("?")),
            Saying::Pong => "pong".to_owned(),
            Saying::Presence(object) => format!("presence {}", String::from_utf8_lossy(object)),
            Saying::History(_, envelopes) => {
                let bytes = envelopes.concat();
                format!("history {} {}", envelopes.len(), String::from_utf8_lossy(&bytes))
            }
            Saying::Present(target, present) => {
                format!("present {} {}", target.name, present.connections)
            }
            Saying::Member(MemberEvent { channel, event, object, .. }) => {
                format!("{event} {channel} {object}")
            }
            Saying::Members { channel, count, .. } => format!("members {channel} {count}"),
            Saying::Partial(event) => format!("partial {} {}", event.channel, event.is_partial),
            Saying::Updated(target) => format!("updated {}", target.name),
            // It has no such users.
            Saying::Watched { .. } | Saying::Unwatched(_) => return,
            // No command of it names many channels, and its messages have no numbers.
            Saying::Read(..) | Saying::Unread(..) | Saying::Many(_) | Saying::Numbers(_) => return,
        };
        let reference = reference.map_or("*", RawValue::get);
        out.text(format!("{reference} {words}").as_bytes());
    }

    fn end(&self, end: &End<'_>, out: &mut Out<'_>) -> Ended {
        let (code, reason) = match end.reason {
            _ if end.may_stay => {
                out.text(format!("* refused {}", end.message).as_bytes());
                return Ended::Stays;
            }
            CloseReason::Draining => (4200, "another server takes over"),
            CloseReason::Lagging | CloseReason::Slow => (4201, "you do not read"),
            CloseReason::PingTimeout => (4202, "you do not answer"),
            CloseReason::TokenExpired | CloseReason::Revoked | CloseReason::Unidentified => {
                (4009, "who are you?")
            }
            CloseReason::Violation(_) => (1002, "no frame"),
            _ => (4100, "later"),
        };
        out.close(code, reason);
        Ended::Closes
    }

    fn hear(&self, payload: &[u8], is_text: bool, _: &dyn Speaker) -> (Heard, usize) {
        let Some(text) = str::from_utf8(payload).ok().filter(|_| is_text) else {
            return (Heard::Refused(CloseReason::BinaryCommand), payload.len());
        };
        let line = text.split('\n').next().unwrap_or_default();
        let length = payload.len().min(line.len() + 1);
        if line == "~" {
            return (Heard::Nothing, length);
        }
        let mut words = line.splitn(3, ' ');
        let reference = words.next().and_then(|word| RawValue::from_string(word.to_owned()).ok());
        let verb = words.next().unwrap_or_default();
        let command = command(verb, words.next().unwrap_or_default());
        (Heard::Command(Received { reference, command }), length)
    }

    fn between_answers(&self) -> Option<&'static [u8]> {
        Some(b"\n")
    }

    fn heartbeat(&self, _: bool) -> &'static [u8] {
        HEARTBEAT
    }

    fn heartbeat_interval(&self) -> Option<Duration> {
        Some(Duration::from_secs(5))
    }
}

fn target(name: &str) -> Result<Target, ErrorResponse> {
    check_target_name(name, "channel")?;
    Ok(Target { kind: Kind::Channel, name: name.to_owned() })
}

fn command(verb: &str, object: &str) -> Result<Command, ErrorResponse> {
    let subscribe = |name, since, presence, member, expires_in_s| {
        let (target, replay, pace_ms) = (target(name)?, None, None);
        Ok(Command::Subscribe { target, since, replay, presence, member, expires_in_s, pace_ms })
    };
    Ok(match verb {
        // For how many seconds, as which user, and with what it shows of itself.
        "sub" => {
            let mut words = object.splitn(4, ' ');
            let name = words.next().unwrap_or_default();
            let expires_in_s = words.next().and_then(|seconds| seconds.parse().ok());
            let user = words.next().map(Box::from);
            let info = words.next().map(member_info_of).transpose();
            let info = info.map_err(MemberInfoError::of_field)?;
            let member = user.is_some().then(|| Box::new(MemberClaim { user, info }));
            return subscribe(name, None, false, member, expires_in_s);
        }
        // With presence events.
        "watch" => return subscribe(object, None, true, None, None),
        // Behind an id.
        "resume" => {
            let (name, since) = object.split_once(' ').unwrap_or((object, ""));
            return subscribe(name, Some(since.to_owned()), false, None, None);
        }
        "history" => {
            let target = target(object)?;
            Command::History { target, page: PageRange::NEWEST, limit: None }
        }
        "who" => Command::Presence { target: target(object)?, limit: None, after: None },
        "unsub" => Command::Unsubscribe { target: target(object)? },
        "pub" => {
            let (name, text) = object.split_once(' ').unwrap_or((object, ""));
            let publication = Publication {
                body: text.as_bytes().to_vec(),
                content_type: None,
                key: None,
                expires_in_s: None,
                is_volatile: false,
                labels: Labels::default(),
            };
            Command::Publish { target: target(name)?, publication, echo: true }
        }
        "auth" => Command::Auth { token: throng_wire::credential::Token::new(object)? },
        "ping" => Command::Ping,
        _ => return Err(ErrorResponse::new(ErrorCode::BadRequest, "no such verb")),
    })
}

/// Reads `GET /testing/{channel}`, or `/testing/` for no channel. Parameters that it does not know,
/// which are all, are ignored.
pub(crate) fn read(head: &Head<'_>) -> Result<Route, ErrorResponse> {
    let path = head.target.split('?').next().unwrap_or_default();
    let rest = path.strip_prefix("/testing/").unwrap_or_default();
    if head.method != "GET" || rest.contains('/') {
        return Ok(Route::Other);
    }
    let name = decode_segment(rest).unwrap_or_default();
    let targets = if name.is_empty() { Vec::new() } else { vec![target(&name)?] };
    let request = Request::of(head, targets, subscribe::websocket(head)?)?;
    Ok(Route::Subscribe(Box::new(Request { encoding: Some(ENCODING), ..request })))
}

/// `POST /testing/{channel}` publishes, and what is below it is as below our channels.
pub(crate) fn native(rest: &str) -> Option<String> {
    Some(format!("/channels/{rest}"))
}
