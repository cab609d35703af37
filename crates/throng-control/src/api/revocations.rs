//! `/revocations`: tokens that are refused although they have not expired.

use http::request::Parts;
use http::{Method, StatusCode};
use serde_json::json;
use throng_access::token::TokenId;
use throng_access::{Revocation, Subject};
use throng_core::{Kind, clock};
use throng_wire::ErrorCode;
use throng_wire::percent::decode_segment;

use super::parameters::limit;
use crate::control::Control;
use crate::http::answer::{self, Answer, ApiError};
use crate::http::names::{self, Revocable};
use crate::http::{large_answer, query};

/// The longest id of a token, as in tokens themselves.
const TOKEN_ID_BYTES_MAX: usize = 255;

/// The subject that a path names, and the words for it in responses.
struct NamedSubject {
    subject: Subject,
    /// `token` or `user`.
    field: &'static str,
    name: String,
}

impl NamedSubject {
    fn of(kind: Revocable, segment: &str) -> Result<NamedSubject, ApiError> {
        match kind {
            Revocable::User => {
                let name = names::from_segment(Kind::User, segment)?.name().to_owned();
                Ok(NamedSubject {
                    subject: Subject::User(name.as_str().into()),
                    field: "user",
                    name,
                })
            }
            Revocable::Tokens => {
                let name = decode_segment(segment).unwrap_or_default().into_owned();
                if !(1..=TOKEN_ID_BYTES_MAX).contains(&name.len()) {
                    let message = "the id of a token (`jti`) is 1 to 255 bytes of UTF-8";
                    return Err(ApiError::new(ErrorCode::BadName, message));
                }
                Ok(NamedSubject {
                    subject: Subject::Token(TokenId::of(&name)),
                    field: "token",
                    name,
                })
            }
        }
    }

    /// `{"user":"ann","before":1800000000}`, or `{"token":"t1","at":1800000000}`.
    fn answer(&self, status: StatusCode, moment_s: u32) -> Answer {
        let body = json!({ self.field: self.name, word(&self.subject): moment_s });
        answer::json(status, body.to_string().into_bytes())
    }
}

/// The field with the moment of a revocation.
fn word(subject: &Subject) -> &'static str {
    match subject {
        Subject::Token(_) => "at",
        Subject::User(_) => "before",
    }
}

/// `POST`, `GET` and `DELETE` of `/revocations/tokens/{id}` and `/revocations/users/{user}`.
pub(crate) async fn answer(
    control: &Control,
    head: &Parts,
    kind: Revocable,
    segment: &str,
) -> Result<Answer, ApiError> {
    let named = NamedSubject::of(kind, segment)?;
    let is_post = head.method == Method::POST;
    let has_moment = is_post && kind == Revocable::User;
    let query = query::of(head, if has_moment { &["before"] } else { &[] })?;
    if is_post {
        let moment_s = moment(kind, query)?;
        // Until now nobody has a token that is newer.
        let spares_newer = query::find(query, "before")?.is_some();
        let revocation = Revocation::of(named.subject.clone(), moment_s);
        control.revoker.revoke(revocation, spares_newer).await?;
        return Ok(named.answer(StatusCode::CREATED, moment_s));
    }
    if head.method == Method::DELETE {
        let is_lifted = control.revoker.lift(named.subject).await?;
        return if is_lifted { Ok(answer::empty(StatusCode::NO_CONTENT)) } else { Err(none()) };
    }
    let moment_s = control.revoker.revocations()?.find(&named.subject).ok_or_else(none)?;
    Ok(named.answer(StatusCode::OK, moment_s))
}

fn none() -> ApiError {
    ApiError::new(ErrorCode::NotFound, "there is no such revocation")
}

/// The moment of a new revocation, in seconds since 1970.
fn moment(kind: Revocable, query: &str) -> Result<u32, ApiError> {
    let now_s = u32::try_from(clock::machine_ms() / 1000).unwrap_or(u32::MAX);
    let invalid = || ApiError::parameter("`before` is a time in seconds since 1970");
    match (kind, query::find(query, "before")?) {
        (Revocable::Tokens, _) => Ok(now_s),
        // Times of issue are whole seconds, and a token of this second is to be refused, too.
        (Revocable::User, None) => Ok(now_s.saturating_add(1)),
        (Revocable::User, Some(text)) => text.parse().map_err(|_| invalid()),
    }
}

/// `GET /revocations`: a page of the revocations that hold.
pub(crate) async fn list(control: &Control, head: &Parts) -> Result<Answer, ApiError> {
    let query = query::of(head, &["limit", "after"])?;
    let limit = limit(query)?;
    let after = query::find(query, "after")?.map(|text| position(&text)).transpose()?;
    let revocations = control.revoker.revocations()?;
    let page = revocations.page(after.as_ref(), limit);
    let entries = page.revocations.iter().map(|revocation| {
        let moment_s = revocation.moment_s();
        match revocation.subject() {
            // The id itself is not known any more.
            Subject::Token(id) => json!({ "token_hash": id.to_string(), "at": moment_s }),
            Subject::User(user) => json!({ "user": user, "before": moment_s }),
        }
    });
    let mut body = json!({ "revocations": entries.collect::<Vec<_>>(), "more": page.has_more });
    if let Some(last) = page.revocations.last().filter(|_| page.has_more) {
        body["after"] = match last.subject() {
            Subject::Token(id) => format!("token:{id}"),
            Subject::User(user) => format!("user:{user}"),
        }
        .into();
    }
    large_answer::json(&control.read_answers, body.to_string())
}

/// The parameter `after`: what the page before has under that name.
fn position(text: &str) -> Result<Subject, ApiError> {
    let position = match text.split_once(':') {
        Some(("token", digits)) => TokenId::from_digits(digits).map(Subject::Token),
        Some(("user", user)) => Some(Subject::User(user.into())),
        _ => None,
    };
    position.ok_or_else(|| ApiError::parameter("`after` is the `after` of the page before"))
}
