//! `POST /publish`: many messages, one JSON object a line; one answer line each, in order.

use http::HeaderValue;
use http::request::Parts;
use hyper::body::Incoming;
use throng_core::{Action, Body, ChannelName, Publication, Published};
use throng_wire::batch::parse_line;
use throng_wire::v1;

use crate::api::{permit, publish};
use crate::control::Control;
use crate::http::answer::{self, Answer, Refused};
use crate::http::{body, query};
use throng_wire::{ErrorCode, ErrorResponse};

/// Lines of one batch. Each is answered, and the shortest lines have answers fifty times as long:
/// the size of the batch alone does not bound them.
const LINES_MAX: usize = 10_000;

/// An answer line has at most so many bytes, about; room for them all is taken beforehand, so that
/// a batch is not refused half-way.
const ANSWER_LINE_BYTES: usize = 256;

/// After so many lines other requests get their turn: a message's fan-out to the workers may take
/// some microseconds.
const LINES_PER_TURN: usize = 64;

pub(crate) async fn answer(
    control: &Control,
    head: &Parts,
    body: &mut Incoming,
) -> Result<Answer, Refused> {
    let _publication = control.drain.publication()?;
    permit(control, head, Action::PublishBatch)?;
    query::check(head.uri.query().unwrap_or_default(), &[])?;
    let bytes = body::read(control, &head.headers, body, body::Kind::Batch).await?;
    if bytes.trim_ascii_start().starts_with(b"[") {
        let sentence = "a batch is one JSON object a line, not an array; none was published";
        return Err(Refused::new(ErrorCode::BadJson, sentence));
    }
    let count = lines(&bytes).count();
    if count > LINES_MAX {
        let sentence = format!(
            "the batch has {count} lines, and {LINES_MAX} are the most; none was published"
        );
        return Err(Refused::new(ErrorCode::TooLarge, sentence));
    }
    let room = answer::room(control, &control.figures.receipts, count * ANSWER_LINE_BYTES)?;
    let mut answers = Vec::new();
    for (nth, line) in lines(&bytes).enumerate() {
        if nth % LINES_PER_TURN == LINES_PER_TURN - 1 {
            tokio::task::yield_now().await;
        }
        match publish_line(control, head, line).await {
            Ok(published) => publish::write_published(&mut answers, &published),
            Err(refused) => {
                refused.count(control);
                v1::error_body(&mut answers, &refused.error);
            }
        }
        answers.push(b'\n');
    }
    Ok(answer::large(HeaderValue::from_static("application/x-ndjson"), answers, room))
}

/// The lines that are not empty.
fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty())
}

async fn publish_line(control: &Control, head: &Parts, line: &[u8]) -> Result<Published, Refused> {
    let line = std::str::from_utf8(line)
        .map_err(|_| Refused::new(ErrorCode::BadUtf8, "the line is not UTF-8"))?;
    let item = parse_line(line)?;
    let channel = ChannelName::new(item.target.kind, &item.target.name);
    permit(control, head, Action::Publish(&channel))?;
    let bytes_max = control.settings.message_bytes_max;
    if item.publication.body.len() > bytes_max {
        return Err(ErrorResponse::message_too_large(bytes_max).into());
    }
    let except = item.exclude.as_deref().map(publish::parse_connection).transpose()?;
    let content_type = item.publication.content_type.as_deref();
    let (body, content_type) = Body::parse(&item.publication.body, content_type)?;
    let idempotency_key = item.publication.key.map(String::into_boxed_str);
    let publication = Publication { channel, body, content_type, idempotency_key, except };
    publish::hand_in(control, publication).await
}
