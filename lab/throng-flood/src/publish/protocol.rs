//! How messages are published on a connection: by HTTP requests, or by WebSocket frames.

use std::sync::Arc;

use super::request::RequestBuilder;
use super::response::ResponseReader;
use super::websocket::WebSocket;
use crate::plan::PublishBy;

/// The protocol of a publishing connection, and its state.
pub(super) enum PublishProtocol {
    Http(ResponseReader),
    WebSocket(WebSocket),
}

impl PublishProtocol {
    /// The protocol of the connection with this number, before its first byte.
    pub(super) fn new(builder: &Arc<RequestBuilder>, number: usize) -> PublishProtocol {
        match builder.by {
            PublishBy::Http { .. } => {
                PublishProtocol::Http(ResponseReader::refused_by(builder.refused.as_deref()))
            }
            PublishBy::WebSocket { .. } => {
                PublishProtocol::WebSocket(WebSocket::new(Arc::clone(builder), number))
            }
        }
    }

    /// Appends the request or frame that publishes `payload` to a stream.
    pub(super) fn write_message(
        &mut self,
        builder: &RequestBuilder,
        stream: u32,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) {
        match self {
            PublishProtocol::Http(_) => builder.write_request(stream, payload, out),
            PublishProtocol::WebSocket(websocket) => websocket.write_message(stream, payload, out),
        }
    }

    /// The most messages in flight. Frames get no responses, so their number is not limited.
    pub(super) fn max_in_flight(&self, builder: &RequestBuilder) -> usize {
        match self {
            PublishProtocol::Http(_) => builder.pipeline.max(1),
            PublishProtocol::WebSocket(_) => usize::MAX,
        }
    }
}
