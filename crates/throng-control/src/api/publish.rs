//! `POST` and `PUT /channels/{channel}`, `/users/{user}`: one message.

use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use hyper::body::Incoming;
use throng_core::{Action, Body, ChannelName, ConnectionName, Kind, Publication, Published};
use throng_wire::v1::{self, CONTENT_TYPE_BYTES_MAX, KEY_BYTES_MAX};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::api::{ANSWER_TIMEOUT, permit};
use crate::control::Control;
use crate::http::answer::{self, Answer, IDEMPOTENCY_KEY, Refused, THRONG_EXCLUDE};
use crate::http::body;
use crate::http::{names, query};

pub(crate) async fn answer(
    control: &Control,
    head: &Parts,
    body: &mut Incoming,
    kind: Kind,
    segment: &str,
) -> Result<Answer, Refused> {
    let _publication = control.drain.publication()?;
    let channel = names::from_segment(kind, segment)?;
    permit(control, head, Action::Publish(&channel))?;
    query::check(head.uri.query().unwrap_or_default(), &[])?;
    let options = Options::of(&head.headers)?;
    let bytes = body::read(control, &head.headers, body, body::Kind::Message).await?;
    let published = publish(control, channel, &bytes, options).await?;
    let status = if published.is_duplicate { StatusCode::OK } else { StatusCode::CREATED };
    let mut body = Vec::with_capacity(96);
    write_published(&mut body, &published);
    Ok(answer::json(status, body))
}

/// What the headers say of a message.
struct Options<'a> {
    content_type: Option<&'a str>,
    idempotency_key: Option<Box<str>>,
    except: Option<ConnectionName>,
}

impl<'a> Options<'a> {
    fn of(headers: &'a HeaderMap) -> Result<Options<'a>, Refused> {
        let content_type = match headers.get(CONTENT_TYPE) {
            None => None,
            Some(value) => Some(check_content_type(value.to_str().unwrap_or("\0"))?),
        };
        let idempotency_key = match headers.get(IDEMPOTENCY_KEY) {
            None => None,
            Some(value) => Some(check_key(value.to_str().unwrap_or_default())?.into()),
        };
        let except = match headers.get(THRONG_EXCLUDE) {
            None => None,
            Some(value) => Some(parse_connection(value.to_str().unwrap_or_default())?),
        };
        Ok(Options { content_type, idempotency_key, except })
    }
}

async fn publish(
    control: &Control,
    channel: ChannelName,
    bytes: &[u8],
    options: Options<'_>,
) -> Result<Published, Refused> {
    let (body, content_type) = Body::parse(bytes, options.content_type)?;
    let Options { idempotency_key, except, .. } = options;
    hand_in(control, Publication { channel, body, content_type, idempotency_key, except }).await
}

/// Publishes, and counts it.
pub(super) async fn hand_in(
    control: &Control,
    publication: Publication,
) -> Result<Published, Refused> {
    let spared = match publication.except {
        Some(connection) => follows(control, &publication.channel, connection).await,
        None => false,
    };
    match control.engine.publish(control.now_ms(), publication) {
        Ok(mut published) => {
            published.subscribers = published.subscribers.saturating_sub(u64::from(spared));
            control.figures.published.add(u64::from(!published.is_duplicate));
            Ok(published)
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether the connection that a message is not for follows its channel; "no" if its worker is too
/// busy to say.
async fn follows(control: &Control, channel: &ChannelName, connection: ConnectionName) -> bool {
    let (done, asked) = oneshot::channel();
    let answer = move |follows| {
        // Whoever asked may have gone.
        let _ = done.send(follows);
    };
    control.engine.follows(channel, connection, Box::new(answer));
    matches!(timeout(ANSWER_TIMEOUT, asked).await, Ok(Ok(true)))
}

/// A content type is repeated in response headers, so it must not contain a line break.
fn check_content_type(text: &str) -> Result<&str, Refused> {
    if text.len() <= CONTENT_TYPE_BYTES_MAX && text.bytes().all(is_printable) {
        return Ok(text);
    }
    Err(Refused::parameter(format!(
        "a content type is at most {CONTENT_TYPE_BYTES_MAX} printable characters"
    )))
}

fn check_key(text: &str) -> Result<&str, Refused> {
    if (1..=KEY_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_printable) {
        return Ok(text);
    }
    Err(Refused::parameter(format!(
        "an idempotency key is 1 to {KEY_BYTES_MAX} printable characters"
    )))
}

pub(super) fn parse_connection(text: &str) -> Result<ConnectionName, Refused> {
    text.parse()
        .map_err(|_| Refused::parameter("the connection to leave out is not a `Throng-Connection`"))
}

fn is_printable(byte: u8) -> bool {
    (b' '..=b'~').contains(&byte)
}

/// `{"id":…,"subscribers":…}`.
pub(super) fn write_published(out: &mut Vec<u8>, published: &Published) {
    let Published { id, subscribers, is_duplicate } = published;
    v1::published_body(out, &id.to_string(), *subscribers, *is_duplicate);
}
