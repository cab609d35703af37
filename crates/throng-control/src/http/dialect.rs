//! Requests of other dialects: each means one of our own API, whose answer it gets in its own form.

use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, ETAG,
    HeaderName, HeaderValue,
};
use http::request::Parts;
use http::{StatusCode, Uri};
use http_body_util::{BodyExt as _, Collected, Either, Full};
use throng_dialect::{Dialect, paths};

use super::answer::{Answer, Refused};

/// Makes a request of another dialect the one of our API that it means. Returns the dialect; `None`
/// if the request is ours.
pub(crate) fn move_to_own_path(head: &mut Parts) -> Option<&'static dyn Dialect> {
    let path = paths::find(head.uri.path())?;
    let own = path.native_of(head.uri.path_and_query()?.as_str())?;
    head.uri = own.parse::<Uri>().ok()?;
    // The dialect reads the answer.
    head.headers.remove(ACCEPT_ENCODING);
    Some(path.dialect)
}

/// The answer of our API in the form of another dialect.
pub(crate) async fn translate(answer: Answer, dialect: &dyn Dialect) -> Answer {
    let (mut parts, body) = answer.into_parts();
    let error = parts.extensions.get::<Refused>().map(|Refused(error)| error.clone());
    let body = match body {
        // Complete: it does not fail.
        Either::Left(body) => body.collect().await.unwrap_or_default().to_bytes(),
        // Made in memory as well: a path of the API that is not known, for one.
        Either::Right(page) => page.collect().await.map(Collected::to_bytes).unwrap_or_default(),
    };
    let own = match &error {
        Some(error) => dialect.answer(Err(error)),
        None => dialect.answer(Ok((parts.status.as_u16(), &body))),
    };
    let Some(own) = own else {
        return Answer::from_parts(parts, Either::Left(Full::new(body)));
    };
    parts.status = StatusCode::from_u16(own.status).unwrap_or(parts.status);
    for name in [CONTENT_TYPE, CONTENT_LENGTH, CONTENT_ENCODING, CACHE_CONTROL, ETAG] {
        parts.headers.remove(name);
    }
    for (name, value) in own.headers {
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::try_from(value)) {
            parts.headers.insert(name, value);
        }
    }
    let body = Bytes::from_owner(Translated { body: own.body, _own: body });
    Answer::from_parts(parts, Either::Left(Full::new(body)))
}

/// A body with the one that it was made of, which may have reserved memory until the client has
/// read it.
struct Translated {
    body: Vec<u8>,
    _own: Bytes,
}

impl AsRef<[u8]> for Translated {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}
