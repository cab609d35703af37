//! Answers and refusals, as `docs/reference/http.md` words them.

use std::borrow::Cow;
use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use http::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, UPGRADE,
};
use http::{Response, StatusCode};
use http_body_util::{Either, Full};
use throng_core::{clock, spread};
use throng_wire::refusal::{ComeBack, ResponseOptions};
use throng_wire::subscribe::Request;
use throng_wire::v1::CommandError;
use throng_wire::{Date, Refusal, Unavailable};

use crate::control::Control;
use crate::memory_quota::{Cut, Pot, Share};

/// The body of an answer: whole for the API, axum's for pages.
pub(crate) type Payload = Either<Full<Bytes>, Body>;

/// An answer.
pub(crate) type Answer = Response<Payload>;

/// Where a subscription starts or a log ends.
pub(crate) const THRONG_ID: HeaderName = HeaderName::from_static("throng-id");
/// Whether nothing is missing after the id that was given.
pub(crate) const THRONG_RECOVERED: HeaderName = HeaderName::from_static("throng-recovered");
/// The connection that does not get the message.
pub(crate) const THRONG_EXCLUDE: HeaderName = HeaderName::from_static("throng-exclude");
/// The content type of most answers.
pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// The same key on the same channel publishes once.
pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

macro_rules! codes {
    ($($variant:ident $status:ident $name:literal,)*) => {
        /// Why a request was refused.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(usize)]
        pub(crate) enum Code { $($variant,)* }

        impl Code {
            /// All of them.
            pub(crate) const ALL: &'static [Code] = &[$(Code::$variant,)*];

            /// The word in the body and in the metrics.
            pub(crate) const fn name(self) -> &'static str {
                match self { $(Code::$variant => $name,)* }
            }

            /// The status.
            pub(crate) const fn status(self) -> StatusCode {
                match self { $(Code::$variant => StatusCode::$status,)* }
            }

            /// The code of that name.
            pub(crate) fn of(name: &str) -> Option<Code> {
                Code::ALL.iter().copied().find(|code| code.name() == name)
            }
        }
    };
}

codes! {
    BadRequest BAD_REQUEST "bad_request",
    BadLength BAD_REQUEST "bad_length",
    BadName BAD_REQUEST "bad_name",
    BadId BAD_REQUEST "bad_id",
    BadParameter BAD_REQUEST "bad_parameter",
    TooManyChannels BAD_REQUEST "too_many_channels",
    BadJson BAD_REQUEST "bad_json",
    BadUtf8 BAD_REQUEST "bad_utf8",
    BadHandshake BAD_REQUEST "bad_handshake",
    OriginRefused FORBIDDEN "origin_refused",
    HostRefused FORBIDDEN "host_refused",
    Forbidden FORBIDDEN "forbidden",
    NotFound NOT_FOUND "not_found",
    MethodNotAllowed METHOD_NOT_ALLOWED "method_not_allowed",
    TooSlow REQUEST_TIMEOUT "too_slow",
    TooLarge PAYLOAD_TOO_LARGE "too_large",
    UriTooLong URI_TOO_LONG "uri_too_long",
    HeadTooLarge REQUEST_HEADER_FIELDS_TOO_LARGE "head_too_large",
    UpgradeRequired UPGRADE_REQUIRED "upgrade_required",
    NotImplemented NOT_IMPLEMENTED "not_implemented",
    Full SERVICE_UNAVAILABLE "full",
    Busy SERVICE_UNAVAILABLE "busy",
    Draining SERVICE_UNAVAILABLE "draining",
    BadVersion HTTP_VERSION_NOT_SUPPORTED "bad_version",
}

impl Code {
    /// What passes, for every `503`.
    pub(crate) const fn unavailable(self) -> Option<Unavailable> {
        match self {
            Code::Full => Some(Unavailable::Full),
            Code::Busy => Some(Unavailable::Busy),
            Code::Draining => Some(Unavailable::Draining),
            _ => None,
        }
    }
}

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    /// Its kind.
    pub(crate) code: Code,
    /// One sentence for the client.
    pub(crate) sentence: Cow<'static, str>,
    /// The methods that there are, for [`Code::MethodNotAllowed`].
    pub(crate) allow: Option<&'static str>,
    /// Whether the rest of the request is not worth reading.
    pub(crate) closes: bool,
}

impl Refused {
    pub(crate) fn new(code: Code, sentence: impl Into<Cow<'static, str>>) -> Refused {
        Refused { code, sentence: sentence.into(), allow: None, closes: false }
    }

    /// … and the connection ends with it.
    pub(crate) fn closing(self) -> Refused {
        Refused { closes: true, ..self }
    }

    pub(crate) fn not_found() -> Refused {
        Refused::new(Code::NotFound, "there is nothing at this path")
    }

    pub(crate) fn method(allow: &'static str) -> Refused {
        let sentence = format!("this path takes {allow}");
        Refused { allow: Some(allow), ..Refused::new(Code::MethodNotAllowed, sentence) }
    }

    pub(crate) fn parameter(sentence: impl Into<Cow<'static, str>>) -> Refused {
        Refused::new(Code::BadParameter, sentence)
    }

    pub(crate) fn draining() -> Refused {
        Unavailable::Draining.refusal().into()
    }

    /// Counts it.
    pub(crate) fn count(&self, control: &Control) {
        control.figures.refused(self.code).add(1);
    }

    /// `{"error":…,"message":…}`.
    pub(crate) fn body(&self) -> Vec<u8> {
        self.refusal().body().into_bytes()
    }

    fn refusal(&self) -> Refusal {
        Refusal::new(self.code.status().as_u16(), self.code.name(), self.sentence.clone())
    }

    /// Counts it and makes the answer of it.
    pub(crate) fn into_answer(self, control: &Control) -> Answer {
        self.count(control);
        let mut answer = json(self.code.status(), self.body());
        answer.extensions_mut().insert(self.code);
        let headers = answer.headers_mut();
        if let Some(allow) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        if let Some(why) = self.code.unavailable() {
            headers.insert(RETRY_AFTER, HeaderValue::from(come_back(control, why).after_s));
        }
        if self.code == Code::UpgradeRequired {
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        }
        if self.closes {
            close(&mut answer);
        }
        answer
    }

    /// Counts it and writes the whole answer, for a connection that hyper does not hold (any more).
    /// Pages of `allow_origin` may read it. If it is the answer to a `subscription`, it may need
    /// another form.
    pub(crate) fn write_raw(
        &self,
        control: &Control,
        allow_origin: Option<&str>,
        subscription: Option<&Request>,
        out: &mut Vec<u8>,
    ) {
        self.count(control);
        let date = Some(Date::at_ms(clock::told_ms(clock::now_ms())));
        let when = self.code.unavailable().map(|why| (why, come_back(control, why)));
        if let (Some((why, when)), Some(request)) = (when, subscription) {
            return why.write(out, request, &ComeBack { allow_origin, date, ..when });
        }
        let retry_after_s = when.map(|(_, when)| when.after_s);
        let options = ResponseOptions { keep_alive: false, allow_origin, retry_after_s, date };
        self.refusal().write_response(out, &options);
    }
}

/// The next client's moment to come back.
pub(crate) fn come_back(control: &Control, why: Unavailable) -> ComeBack<'static> {
    let after_ms = control.moments.next_ms(&why.window_ms(control.settings.drain_window));
    ComeBack { after_ms, after_s: spread::retry_after_s(after_ms), ..ComeBack::default() }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Refused {
        let code = Code::of(refusal.code).unwrap_or(Code::BadRequest);
        Refused::new(code, refusal.message)
    }
}

impl From<CommandError> for Refused {
    fn from(error: CommandError) -> Refused {
        let code = Code::of(error.code).unwrap_or(Code::BadRequest);
        Refused::new(code, error.message)
    }
}

/// Makes it the last answer of its connection.
pub(crate) fn close(answer: &mut Answer) {
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
}

/// A short answer in JSON. What it says is true only now.
pub(crate) fn json(status: StatusCode, body: Vec<u8>) -> Answer {
    whole(status, JSON, body.into())
}

/// An answer that may be large, of any type. It takes of a pot until the client has taken it, or
/// until its connection has to give way.
pub(crate) fn large(content_type: HeaderValue, body: Vec<u8>, room: Room) -> Answer {
    let Room(mut share) = room;
    share.settle(body.len());
    // Only tests answer outside of a connection's task, where `OWN_CUT` is not set.
    let _ = OWN_CUT.try_with(|cut| share.set_movable(cut));
    whole(StatusCode::OK, content_type, Bytes::from_owner(Counted { body, _share: share }))
}

tokio::task_local! {
    /// Tells the connection that is being served that its answers have to give way.
    pub(crate) static OWN_CUT: Arc<Cut>;
}

/// Room in `pot` for an answer of `bytes`, unless clients leave too much unread.
pub(crate) fn room(control: &Control, pot: &Arc<Pot>, bytes: usize) -> Result<Room, Refused> {
    let mut share = Share::of(pot);
    // Whatever the limit is, one answer alone can be given.
    let max = control.settings.answer_bytes_max.max(bytes as u64);
    if share.grow_within(bytes, max) {
        return Ok(Room(share));
    }
    let sentence = "too many answers have not been read by their clients; try again in a second";
    Err(Refused::new(Code::Busy, sentence))
}

/// Room for a large answer.
#[derive(Debug)]
pub(crate) struct Room(Share);

/// Bytes that are counted for as long as they are there. Hyper keeps them, not a copy, until they
/// are written.
struct Counted {
    body: Vec<u8>,
    _share: Share,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

fn whole(status: StatusCode, content_type: HeaderValue, body: Bytes) -> Answer {
    let mut answer = Response::new(Either::Left(Full::new(body)));
    *answer.status_mut() = status;
    answer.headers_mut().reserve(4);
    answer.headers_mut().insert(CONTENT_TYPE, content_type);
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

/// An answer without a body.
pub(crate) fn empty(status: StatusCode) -> Answer {
    let mut answer = Response::new(Either::Left(Full::new(Bytes::new())));
    *answer.status_mut() = status;
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_found_by_name() {
        for code in Code::ALL {
            assert_eq!(Code::of(code.name()), Some(*code));
            let is_unavailable = code.status() == StatusCode::SERVICE_UNAVAILABLE;
            assert_eq!(code.unavailable().is_some(), is_unavailable, "{code:?}");
            if let Some(why) = code.unavailable() {
                assert_eq!(Refused::from(why.refusal()).code, *code);
            }
        }
        assert_eq!(Code::of("nonsense"), None);
    }

    #[test]
    fn sentences_are_escaped() {
        let body = Refused::new(Code::BadName, "a \"name\"").body();
        let expected = br#"{"error":"bad_name","message":"a \"name\""}"#;
        assert_eq!(body.trim_ascii(), expected);
    }
}
