//! State of a connection only while something is half read, half written, unanswered or
//! unacknowledged, or while its client shows something of itself to other members.

use std::sync::Arc;

use throng_core::{Message, SubscriptionId, Watermark};
use throng_dialect::Encoding;
use throng_wire::subscribe::Request;
use throng_wire::websocket::Reader;

use super::buffers::Buffered;
use super::outbound::{Outbound, OutboundRest};
use super::unacknowledged::Unacknowledged;

/// State of a connection while something is half read, half written, unanswered or unacknowledged,
/// and of a long-poll with an origin.
#[derive(Debug, Default)]
pub(crate) struct Io {
    /// Input that is not complete enough to act on.
    pub(crate) inbound: Vec<u8>,
    /// The WebSocket message that is half read.
    pub(crate) reader: Reader,
    /// The message that the socket has taken in part. It is written before `outbound`.
    pub(crate) partial: Option<Partial>,
    /// Responses and frames of the connection's own that wait for the socket.
    pub(crate) outbound: Option<Box<Outbound>>,
    /// Present while a long-poll waits whose answer needs more than its messages.
    pub(crate) long_poll: Option<Box<LongPoll>>,
    /// Present while the client owes acknowledgements. Not counted as buffered: it is small.
    pub(crate) unacknowledged: Option<Box<Unacknowledged>>,
    /// The subscription that the next write begins with, because the last one did not come to it.
    pub(crate) next_turn: Option<SubscriptionId>,
    /// Memory that the connection takes below the worker, for TLS.
    pub(super) held_bytes: usize,
    /// Its share of the worker's quota; see [`Io::buffered_bytes`].
    pub(super) buffered: Buffered,
    /// The tick at which the message in `reader` began: it has a deadline.
    pub(crate) message_since: u32,
}

/// A partly written message. Its bytes are shared with every other connection that gets it.
#[derive(Debug)]
pub(crate) struct Partial {
    pub(crate) message: Arc<Message>,
    /// The encoding that it began in: compressed or not.
    pub(crate) encoding: Encoding,
    /// The first byte of that encoding that is not written.
    pub(crate) from: u32,
}

/// The head of the answer to a long-poll, beside its messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LongPoll {
    /// The origin of the page that may read it.
    pub(crate) origin: Option<String>,
    /// The id that the request has brought.
    pub(crate) request_id: Option<String>,
    /// True if pages of this origin may send cookies.
    pub(crate) allow_credentials: bool,
    /// True if the URL contains a token.
    pub(crate) no_referrer: bool,
    /// Whether everything after the client's last id was there; `None` if it gave none.
    pub(crate) is_recovered: Option<bool>,
    /// The client's position when the poll began, if it is one for all channels. Not frozen: all
    /// that was published until then has come when a worker is frozen.
    pub(crate) begin: Option<Watermark>,
    /// True if the answer says whether the client has the state of its channels. Not frozen: then
    /// the answer to the next poll says it.
    pub(crate) wants_state: bool,
}

impl LongPoll {
    /// Facts for the answer to a request; `None` if it needs none: most polls do not, and wait
    /// without an [`Io`].
    pub(crate) fn of(
        request: &Request,
        allow_credentials: bool,
        is_recovered: Option<bool>,
        begin: Option<Watermark>,
    ) -> Option<LongPoll> {
        let poll = LongPoll {
            origin: request.origin.clone(),
            request_id: request.request_id.clone(),
            allow_credentials,
            no_referrer: request.has_query_token,
            is_recovered,
            begin,
            wants_state: request.wants_state(),
        };
        let has_more = poll.origin.is_some() || poll.request_id.is_some() || poll.no_referrer;
        let has_position = is_recovered.is_some() || begin.is_some();
        (has_more || has_position || poll.wants_state).then_some(poll)
    }
}

impl Io {
    /// The message that the socket has taken in part, if frozen state names it. One with the number
    /// of its channel is frozen as bytes.
    pub(crate) fn shared_partial(&self) -> Option<&Partial> {
        self.partial.as_ref().filter(|partial| !partial.encoding.has_numbers())
    }

    /// The rest of what waits for the socket, without the [`Io::shared_partial`], for another
    /// process.
    pub(crate) fn unshared_rest(&self, is_chunked: bool) -> Option<OutboundRest> {
        let rest = self.outbound.as_ref().map(|outbound| outbound.rest());
        match self.partial.as_ref().filter(|partial| partial.encoding.has_numbers()) {
            Some(partial) => {
                let encoded = partial.encoding.begun(&partial.message, is_chunked);
                Some(rest.unwrap_or_default().behind_message(&encoded[partial.from as usize..]))
            }
            None => rest,
        }
    }

    /// The state of a connection whose input `bytes` is not handled yet.
    pub(crate) fn with_inbound(bytes: &[u8]) -> Io {
        Io { inbound: bytes.to_vec(), ..Io::default() }
    }

    /// Memory that no other connection shares, in bytes: of half-read input, of answers that wait
    /// to be written, of a long-poll's origin and id, whose lengths the client chooses.
    pub(super) fn buffered_bytes(&self) -> usize {
        let outbound = self.outbound.as_ref().map_or(0, |outbound| outbound.capacity_bytes());
        let of_poll = self.long_poll.iter().flat_map(|poll| [&poll.origin, &poll.request_id]);
        let of_poll: usize = of_poll.flatten().map(String::capacity).sum();
        let of_worker = self.inbound.capacity() + self.reader.buffered_bytes() + outbound;
        of_worker + of_poll + self.held_bytes
    }

    /// True if nothing in it is needed.
    pub(super) fn is_idle(&self) -> bool {
        self.held_bytes == 0
            && self.inbound.is_empty()
            && self.reader.is_idle()
            && self.partial.is_none()
            && self.outbound.as_ref().is_none_or(|outbound| outbound.is_empty())
            && self.long_poll.is_none()
            && self.unacknowledged.is_none()
            && self.next_turn.is_none()
    }
}
