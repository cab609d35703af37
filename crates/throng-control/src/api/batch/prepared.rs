//! Lines of a batch that may be published.

use throng_core::{
    Body, ChannelName, IdempotencyKey, Publication, Replacement, VolatilePublication,
};
use throng_wire::batch::{parse_line, parse_message};
use throng_wire::{ErrorCode, ErrorResponse};

use super::super::permit::Permit;
use super::super::publish;
use crate::control::Control;
use crate::http::names;

/// Number of lines after which other requests get their turn: queueing a message for the workers
/// may take some microseconds.
pub(super) const LINES_PER_TURN: usize = 64;

/// A line that may be published.
pub(super) enum Prepared {
    Volatile(VolatilePublication),
    Kept(Publication),
}

/// Reads a line, and asks whether the client may publish it. It names no channel if the request
/// does.
pub(super) async fn prepare(
    control: &Control,
    permit: &mut Permit<'_>,
    (line, of_request): (&[u8], Option<&ChannelName>),
) -> Result<Prepared, ErrorResponse> {
    let line = std::str::from_utf8(line)
        .map_err(|_| ErrorResponse::new(ErrorCode::BadUtf8, "the line is not UTF-8"))?;
    let item = match of_request {
        None => parse_line(line)?,
        Some(channel) => parse_message(line, names::target(channel))?,
    };
    let channel = ChannelName::new(item.target.kind, &item.target.name);
    permit.ask_before_content(&channel).await?;
    permit.ask_about_key(&channel, &item.publication.labels).await?;
    let max_bytes = control.settings.max_message_bytes;
    if item.publication.body.len() > max_bytes {
        return Err(ErrorResponse::message_too_large(max_bytes));
    }
    let excluded = item.exclude.as_deref().map(publish::parse_connection).transpose()?;
    let content_type = item.publication.content_type.as_deref();
    let (body, content_type) = Body::parse(&item.publication.body, content_type)?;
    let content = Replacement { body, content_type };
    let content = permit.ask_about(&channel, content, &item.publication.labels).await?;
    let Replacement { body, content_type } = content;
    let attributes = permit.attributes(&channel, &item.publication.labels);
    if item.publication.is_volatile {
        let volatile = VolatilePublication { channel, body, content_type, excluded, attributes };
        return Ok(Prepared::Volatile(volatile));
    }
    let key = item.publication.key.as_deref();
    let idempotency_key = key.map(|key| IdempotencyKey::new(permit.publisher(), key));
    // A batch has no receipts: one that waits would hold up the lines behind it.
    let receipt = None;
    let expires_in_ms = item.publication.expires_in_s.map(|seconds| u64::from(seconds) * 1000);
    Ok(Prepared::Kept(Publication {
        content_type,
        idempotency_key,
        excluded,
        attributes,
        expires_in_ms,
        receipt,
        holder: permit.holder_of(&item.publication.labels),
        ..Publication::new(channel, body)
    }))
}
