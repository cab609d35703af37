//! Dialect and framing in one byte, and the table of them. The first subscriber that needs an
//! encoding of a message makes it, and all others share it.

use throng_core::{ChannelId, Message};
use throng_wire::chunk;
use throng_wire::subscribe::{Request, Transport};
use throng_wire::websocket::{Opcode, parse_server_frame};

use crate::dialect::{Dialect, Envelopes, Shown, say_notice};
use crate::framing::{Framing, Out};
use crate::plain::Plain;
use crate::poll::Poll;
use crate::pusher::Pusher;
use crate::saying::is_notice;
use crate::sse::Sse;
use crate::stream::Stream;
use crate::v1::{CompactV1, V1};

/// How messages look on a connection: its dialect, and the framing within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Encoding(u8);

/// All that follows from an encoding.
struct Row {
    dialect: &'static dyn Dialect,
    framing: Framing,
    /// The place of its bytes among the encodings of a message. Dialects that frame messages alike
    /// share it.
    slot: u8,
    /// The same without compression.
    plain: Encoding,
    /// The same with compression, where there is one.
    compressed: Encoding,
    /// True if the client may compress: that was negotiated.
    has_deflate: bool,
    /// True if messages name their channel by its number on this node.
    has_numbers: bool,
    /// True if messages come in envelopes.
    is_envelope: bool,
    /// True if messages, or answers with them, show the position of the connection.
    shows_position: bool,
    /// True if each message has the position of the connection as its id. So it is shared only
    /// among connections of one channel.
    has_own_ids: bool,
}

impl Row {
    const fn new(dialect: &'static dyn Dialect, framing: Framing, number: u8) -> Row {
        Row {
            dialect,
            framing,
            slot: number,
            plain: Encoding(number),
            compressed: Encoding(number),
            has_deflate: false,
            has_numbers: false,
            is_envelope: false,
            shows_position: matches!(framing, Framing::Sse),
            has_own_ids: matches!(framing, Framing::Sse),
        }
    }

    const fn with_slot(self, slot: u8) -> Row {
        Row { slot, ..self }
    }

    const fn with_envelope(self) -> Row {
        Row { is_envelope: true, shows_position: true, ..self }
    }

    const fn with_position(self) -> Row {
        Row { shows_position: true, ..self }
    }

    const fn with_compressed(self, compressed: Encoding) -> Row {
        Row { compressed, ..self }
    }

    const fn compressing(self, plain: Encoding) -> Row {
        Row { plain, has_deflate: true, ..self }
    }

    const fn with_deflate(self) -> Row {
        Row { has_deflate: true, ..self }
    }

    const fn with_numbers(self) -> Row {
        Row { has_numbers: true, ..self.with_envelope() }
    }
}

const FULL: Envelopes = Envelopes::Full;
const COMPACT: Envelopes = Envelopes::Compact { is_timed: false };
const TIMED: Envelopes = Envelopes::Compact { is_timed: true };

/// By number. A number is never used again: frozen state has it.
static TABLE: &[Row] = &[
    Row::new(&Plain { is_envelope: false }, Framing::WebSocket, 0)
        .with_compressed(Encoding::WEBSOCKET_DEFLATE),
    Row::new(&Plain { is_envelope: true }, Framing::WebSocket, 1)
        .with_compressed(Encoding::WEBSOCKET_ENVELOPE_DEFLATE)
        .with_envelope(),
    Row::new(&Sse { envelopes: Envelopes::None }, Framing::Sse, 2),
    Row::new(&Sse { envelopes: FULL }, Framing::Sse, 3).with_envelope(),
    Row::new(&Stream { envelopes: Envelopes::None }, Framing::Line, 4),
    Row::new(&Stream { envelopes: FULL }, Framing::Line, 5).with_envelope(),
    Row::new(&Plain { is_envelope: false }, Framing::WebSocket, 6).compressing(Encoding::WEBSOCKET),
    Row::new(&Plain { is_envelope: true }, Framing::WebSocket, 7)
        .compressing(Encoding::WEBSOCKET_ENVELOPE)
        .with_envelope(),
    Row::new(&V1, Framing::WebSocket, 8)
        .with_compressed(Encoding::V1_DEFLATE)
        .with_slot(1)
        .with_envelope(),
    Row::new(&V1, Framing::WebSocket, 9).compressing(Encoding::V1).with_slot(7).with_envelope(),
    Row::new(&Poll { is_envelope: false }, Framing::Line, 10).with_slot(4).with_position(),
    Row::new(&Poll { is_envelope: true }, Framing::Line, 11).with_slot(5).with_envelope(),
    Row::new(&CompactV1 { is_timed: false }, Framing::WebSocket, 12)
        .with_compressed(Encoding::V1_COMPACT_DEFLATE)
        .with_numbers(),
    Row::new(&CompactV1 { is_timed: true }, Framing::WebSocket, 13)
        .with_compressed(Encoding::V1_TIMED_DEFLATE)
        .with_numbers(),
    Row::new(&CompactV1 { is_timed: false }, Framing::WebSocket, 14)
        .with_deflate()
        .with_slot(12)
        .with_numbers(),
    Row::new(&CompactV1 { is_timed: true }, Framing::WebSocket, 15)
        .with_deflate()
        .with_slot(13)
        .with_numbers(),
    Row::new(&Sse { envelopes: COMPACT }, Framing::Sse, 16).with_numbers(),
    Row::new(&Sse { envelopes: TIMED }, Framing::Sse, 17).with_numbers(),
    Row::new(&Stream { envelopes: COMPACT }, Framing::Line, 18).with_numbers(),
    Row::new(&Stream { envelopes: TIMED }, Framing::Line, 19).with_numbers(),
    Row::new(&Pusher, Framing::WebSocket, 20).with_compressed(Encoding(21)),
    Row::new(&Pusher, Framing::WebSocket, 21).compressing(Encoding(20)),
    #[cfg(feature = "testing")]
    Row::new(&crate::testing::Testing, Framing::WebSocket, crate::testing::ENCODING)
        .with_compressed(Encoding(crate::testing::DEFLATE)),
    #[cfg(feature = "testing")]
    Row::new(&crate::testing::Testing, Framing::WebSocket, crate::testing::DEFLATE)
        .compressing(Encoding(crate::testing::ENCODING)),
];

const _: () = assert!(TABLE.len() <= 1 << Encoding::BITS);

impl Encoding {
    /// A WebSocket frame with the published bytes.
    pub const WEBSOCKET: Encoding = Encoding(0);
    /// A WebSocket text frame with an envelope.
    pub const WEBSOCKET_ENVELOPE: Encoding = Encoding(1);
    /// An SSE event in a chunk.
    pub const SSE: Encoding = Encoding(2);
    /// An SSE event with an envelope, in a chunk.
    pub(crate) const SSE_ENVELOPE: Encoding = Encoding(3);
    /// A line in a chunk.
    pub const LINE: Encoding = Encoding(4);
    /// An envelope as a line, in a chunk.
    pub const LINE_ENVELOPE: Encoding = Encoding(5);
    /// [`Encoding::WEBSOCKET`], compressed if that is worth it.
    pub const WEBSOCKET_DEFLATE: Encoding = Encoding(6);
    /// [`Encoding::WEBSOCKET_ENVELOPE`], compressed if that is worth it.
    pub const WEBSOCKET_ENVELOPE_DEFLATE: Encoding = Encoding(7);
    /// The frames of `throng.v1`, whose messages look as in [`Encoding::WEBSOCKET_ENVELOPE`].
    pub const V1: Encoding = Encoding(8);
    /// [`Encoding::V1`], with messages compressed if that is worth it.
    pub const V1_DEFLATE: Encoding = Encoding(9);
    /// Messages in the answers of long-polls.
    pub const POLL: Encoding = Encoding(10);
    /// Envelopes in the answers of long-polls.
    pub const POLL_ENVELOPE: Encoding = Encoding(11);

    /// The frames of `throng.v1` with messages in compact envelopes.
    pub const V1_COMPACT: Encoding = Encoding(12);
    /// [`Encoding::V1_COMPACT`], with the time in each envelope.
    pub(crate) const V1_TIMED: Encoding = Encoding(13);
    /// [`Encoding::V1_COMPACT`], where the client may compress what it sends.
    pub(crate) const V1_COMPACT_DEFLATE: Encoding = Encoding(14);
    /// [`Encoding::V1_TIMED`], where the client may compress what it sends.
    pub(crate) const V1_TIMED_DEFLATE: Encoding = Encoding(15);
    /// An SSE event with a compact envelope, in a chunk.
    pub(crate) const SSE_COMPACT: Encoding = Encoding(16);
    /// [`Encoding::SSE_COMPACT`], with the time in each envelope.
    pub(crate) const SSE_TIMED: Encoding = Encoding(17);
    /// A compact envelope as a line, in a chunk.
    pub(crate) const LINE_COMPACT: Encoding = Encoding(18);
    /// [`Encoding::LINE_COMPACT`], with the time in each envelope.
    pub(crate) const LINE_TIMED: Encoding = Encoding(19);

    /// The bits that a number takes: there is room for 32.
    pub const BITS: u32 = 5;

    /// The encodings with compressed messages, in the order of frozen state.
    pub const COMPRESSED: [Encoding; 2] =
        [Encoding::WEBSOCKET_DEFLATE, Encoding::WEBSOCKET_ENVELOPE_DEFLATE];

    /// Encodings with compressed messages of other dialects than ours. Frozen state has those that
    /// a message has, by their numbers.
    pub fn compressed_by_others() -> impl Iterator<Item = Encoding> {
        let all = (0..TABLE.len() as u8).map(Encoding);
        let is_ours =
            |slot| Encoding::COMPRESSED.into_iter().any(|encoding| encoding.slot() == slot);
        all.filter(move |encoding| encoding.is_compressed() && !is_ours(encoding.slot()))
    }

    /// The encoding that a request asks for, without compression.
    pub fn of_request(request: &Request) -> Encoding {
        if let Some(encoding) = request.encoding.and_then(Encoding::numbered) {
            return encoding;
        }
        if request.is_compact() {
            return match (&request.transport, request.is_timed()) {
                (Transport::WebSocket { .. }, false) => Encoding::V1_COMPACT,
                (Transport::WebSocket { .. }, true) => Encoding::V1_TIMED,
                (Transport::Sse, false) => Encoding::SSE_COMPACT,
                (Transport::Sse, true) => Encoding::SSE_TIMED,
                // A long-poll with compact envelopes is refused.
                (Transport::Stream | Transport::LongPoll { .. }, false) => Encoding::LINE_COMPACT,
                (Transport::Stream | Transport::LongPoll { .. }, true) => Encoding::LINE_TIMED,
            };
        }
        match (&request.transport, request.is_envelope()) {
            (transport, _) if transport.is_v1() => Encoding::V1,
            (Transport::WebSocket { .. }, false) => Encoding::WEBSOCKET,
            (Transport::WebSocket { .. }, true) => Encoding::WEBSOCKET_ENVELOPE,
            (Transport::Sse, false) => Encoding::SSE,
            (Transport::Sse, true) => Encoding::SSE_ENVELOPE,
            (Transport::Stream, false) => Encoding::LINE,
            (Transport::Stream, true) => Encoding::LINE_ENVELOPE,
            (Transport::LongPoll { .. }, false) => Encoding::POLL,
            (Transport::LongPoll { .. }, true) => Encoding::POLL_ENVELOPE,
        }
    }

    /// The encoding with this number, if there is one.
    pub fn numbered(number: u8) -> Option<Encoding> {
        (usize::from(number) < TABLE.len()).then_some(Encoding(number))
    }

    /// Its number, by which frozen state knows it.
    pub fn number(self) -> u8 {
        self.0
    }

    fn row(self) -> &'static Row {
        &TABLE[usize::from(self.0)]
    }

    /// How its clients are spoken to.
    pub fn dialect(self) -> &'static dyn Dialect {
        self.row().dialect
    }

    /// How a connection delimits what it is sent.
    pub fn framing(self) -> Framing {
        self.row().framing
    }

    /// True if messages are compressed where that is worth it.
    pub fn is_compressed(self) -> bool {
        self != self.row().plain
    }

    /// The same without compression.
    pub fn uncompressed(self) -> Encoding {
        self.row().plain
    }

    /// The same with compression, where there is one.
    pub fn compressed(self) -> Encoding {
        self.row().compressed
    }

    /// True if the client may compress what it sends.
    pub fn has_deflate(self) -> bool {
        self.row().has_deflate
    }

    /// True if messages name their channel by its number on this node.
    pub fn has_numbers(self) -> bool {
        self.row().has_numbers
    }

    /// True if messages are joined in frames, of all channels of a connection.
    pub fn joins(self) -> bool {
        matches!(self.0, 12..=15)
    }

    /// True if messages come in envelopes.
    pub fn is_envelope(self) -> bool {
        self.row().is_envelope
    }

    /// True if clients are shown notices that messages are erased. Others get bodies alone, and
    /// pass over them.
    pub fn has_notices(self) -> bool {
        let row = self.row();
        row.is_envelope || matches!(row.framing, Framing::Sse)
    }

    /// True if messages show the position of the connection, which is one in all of its channels
    /// if the server keeps some of them.
    pub fn shows_position(self) -> bool {
        self.row().shows_position
    }

    /// True if the id of each message is the position of the connection: connections of several
    /// channels share no bytes.
    pub fn has_own_ids(self) -> bool {
        self.row().has_own_ids
    }

    /// The place of its bytes among the encodings of a message.
    pub fn slot(self) -> u8 {
        self.row().slot
    }

    /// The encoding that the message has for a subscriber with this one: the same without
    /// compression unless the message has been compressed.
    pub fn of(self, message: &Message) -> Encoding {
        let row = self.row();
        let is_there = || message.made_encoding(row.slot).is_some_and(|bytes| !bytes.is_empty());
        if self == row.plain || is_there() { self } else { row.plain }
    }

    /// The payload and the opcode of the message's frame, for [`Encoding::COMPRESSED`] ones; `None`
    /// if it is not a single frame.
    pub fn payload(self, message: &Message) -> Option<(Opcode, Vec<u8>)> {
        debug_assert!(!self.has_numbers(), "its messages are not compressed");
        let mut bytes = Vec::new();
        let shown = Shown::of(ChannelId(0));
        self.write(message, shown, &mut Out::new(self.framing(), false, &mut bytes));
        let frame = parse_server_frame(&bytes).ok()??;
        (frame.length == bytes.len()).then(|| {
            bytes.drain(..frame.payload.start);
            (frame.opcode, bytes)
        })
    }

    /// The bytes of the message on the wire. All get the same, so that no position is shown.
    /// `is_chunked` applies to SSE and lines only.
    pub fn encode<'m>(self, message: &'m Message, shown: Shown<'_>, is_chunked: bool) -> &'m [u8] {
        debug_assert!(shown.position.is_none(), "it is shared");
        let own = self.of(message);
        let row = own.row();
        let bytes = message.encoding(row.slot, |message| own.make(message, shown));
        match row.framing {
            Framing::WebSocket => bytes,
            _ if is_chunked => bytes,
            // HTTP/1.0 has no chunks: the same encoding without its chunk header and trailer.
            _ => chunk::inner(bytes),
        }
    }

    /// The bytes of a message that a connection was written in part, in this encoding. So they are
    /// made already, but for a message from frozen state, which has none with the number of its
    /// channel.
    pub fn begun(self, message: &Message, is_chunked: bool) -> &[u8] {
        let is_made = message.made_encoding(self.slot()).is_some();
        debug_assert!(is_made || !self.has_numbers(), "it was written in part");
        self.encode(message, Shown::of(ChannelId(0)), is_chunked)
    }

    /// Appends the message in the form for one connection, with that connection's position. These
    /// bytes are not shared.
    pub fn compose(self, message: &Message, shown: Shown<'_>, is_chunked: bool, out: &mut Vec<u8>) {
        self.write(message, shown, &mut Out::new(self.framing(), is_chunked, out));
    }

    fn make(self, message: &Message, shown: Shown<'_>) -> Vec<u8> {
        let mut out = Vec::with_capacity(message.body.bytes().len() + 16);
        // In one chunk, whatever the dialect makes of it.
        self.write(message, shown, &mut Out::new(self.framing(), false, &mut out));
        if self.framing() == Framing::WebSocket {
            return out;
        }
        let mut chunked = Vec::with_capacity(out.len() + 16);
        chunk::write_chunk(&mut chunked, &out);
        chunked
    }

    fn write(self, message: &Message, shown: Shown<'_>, out: &mut Out<'_>) {
        if is_notice(message) {
            say_notice(message, self.dialect(), out);
        } else {
            self.dialect().message(message, shown, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use throng_core::message::Content;
    use throng_core::{Attribute, Attributes, Body, ChannelName, Epoch, Extras, MessageId};
    use throng_wire::sse::ServerEvent;

    fn message(body: Body) -> Message {
        let id = MessageId { epoch: Epoch::numbered(1), offset: 7 };
        Message::new(id, 6, 1234, ChannelName::channel("a"), body)
    }

    fn encoded(encoding: Encoding, body: Body, is_chunked: bool) -> String {
        String::from_utf8_lossy(encoding.encode(
            &message(body),
            Shown::of(ChannelId(17)),
            is_chunked,
        ))
        .into_owned()
    }

    #[test]
    fn text_is_framed_in_each_way() {
        let text = |encoding, is_chunked| encoded(encoding, Body::Text("hi".into()), is_chunked);
        let id = message(Body::Text("".into())).id;
        assert_eq!(text(Encoding::WEBSOCKET, false), "\u{fffd}\u{2}hi");
        assert_eq!(text(Encoding::LINE, false), "hi\n");
        assert_eq!(text(Encoding::LINE, true), "3\r\nhi\n\r\n");
        assert_eq!(text(Encoding::SSE, false), format!("id: {id}\ndata: hi\n\n"));
        let envelope =
            format!(r#"{{"type":"message","channel":"a","id":"{id}","time":1234,"data":"hi"}}"#);
        assert_eq!(text(Encoding::LINE_ENVELOPE, false), envelope.clone() + "\n");
        assert_eq!(text(Encoding::SSE_ENVELOPE, false), format!("id: {id}\ndata: {envelope}\n\n"));
        assert!(text(Encoding::WEBSOCKET_ENVELOPE, false).ends_with(&envelope));
    }

    #[test]
    fn compact_messages_have_the_number_of_their_channel() {
        let compact = |encoding| encoded(encoding, Body::Text("hi".into()), false);
        let id = message(Body::Text("".into())).id;
        assert_eq!(compact(Encoding::V1_COMPACT), "\u{fffd}\u{f}[0,[17,7,\"hi\"]]");
        assert_eq!(compact(Encoding::V1_COMPACT_DEFLATE), compact(Encoding::V1_COMPACT));
        assert!(compact(Encoding::V1_TIMED).ends_with("[0,[17,7,\"hi\",1234]]"));
        assert_eq!(compact(Encoding::LINE_COMPACT), "[17,7,\"hi\"]\n");
        assert_eq!(compact(Encoding::LINE_TIMED), "[17,7,\"hi\",1234]\n");
        assert_eq!(compact(Encoding::SSE_COMPACT), format!("id: {id}\ndata: [17,7,\"hi\"]\n\n"));
        assert!(compact(Encoding::SSE_TIMED).ends_with("data: [17,7,\"hi\",1234]\n\n"));
    }

    #[test]
    fn the_channel_of_a_message_may_ask_for_acknowledgements() {
        let asking = Shown { asks: true, ..Shown::of(ChannelId(17)) };
        let text = |encoding: Encoding| {
            let message = message(Body::Text("hi".into()));
            String::from_utf8_lossy(encoding.encode(&message, asking, false)).into_owned()
        };
        assert_eq!(text(Encoding::V1_COMPACT), "\u{fffd}\u{f}[1,[17,7,\"hi\"]]");
        assert!(text(Encoding::V1_TIMED).ends_with("[1,[17,7,\"hi\",1234]]"));
        assert_eq!(text(Encoding::LINE_COMPACT), "[17,7,\"hi\"]\n");
    }

    #[test]
    fn a_volatile_message_has_no_id_in_any_framing() {
        let id = MessageId { epoch: Epoch::numbered(1), offset: 0 };
        let body = Body::Text("hi".into());
        let message = Message::new(id, 0, 1234, ChannelName::channel("a"), body);
        let text = |encoding: Encoding| {
            String::from_utf8_lossy(encoding.encode(&message, Shown::of(ChannelId(17)), false))
                .into_owned()
        };
        let envelope = r#"{"type":"message","channel":"a","time":1234,"data":"hi"}"#;
        assert_eq!(text(Encoding::WEBSOCKET), "\u{fffd}\u{2}hi");
        assert_eq!(text(Encoding::LINE), "hi\n");
        assert_eq!(text(Encoding::SSE), "data: hi\n\n");
        assert_eq!(text(Encoding::SSE_ENVELOPE), format!("data: {envelope}\n\n"));
        assert_eq!(text(Encoding::LINE_ENVELOPE), format!("{envelope}\n"));
        assert!(text(Encoding::V1).ends_with(envelope));
        assert_eq!(text(Encoding::V1_COMPACT), "\u{fffd}\u{12}[0,[17,null,\"hi\"]]");
        assert_eq!(text(Encoding::SSE_TIMED), "data: [17,null,\"hi\",1234]\n\n");
        let shown = Shown { position: Some("p-7"), ..Shown::of(ChannelId(17)) };
        for (encoding, expected) in
            [(Encoding::LINE_ENVELOPE, envelope), (Encoding::LINE_COMPACT, "[17,null,\"hi\"]")]
        {
            let mut composed = Vec::new();
            encoding.compose(&message, shown, false, &mut composed);
            assert_eq!(composed, format!("{expected}\n").as_bytes(), "it has no position either");
        }
    }

    fn labelled(body: Body, attributes: &[(Attribute, &[u8])]) -> Message {
        let values: Vec<_> =
            attributes.iter().map(|(name, value)| (*name as u16, *value)).collect();
        let id = MessageId { epoch: Epoch::numbered(1), offset: 7 };
        let content = Content::new(id, 6, 1234, ChannelName::channel("a"), body);
        let attributes = Attributes::of(&values).expect("they are in order");
        let extras = Extras::new(None, Some(attributes));
        Message::from(Arc::new(Content { extras, ..content }))
    }

    #[test]
    fn the_event_of_a_message_is_the_name_of_its_server_sent_event() {
        let text = |encoding: Encoding, message: &Message| {
            let bytes = encoding.encode(message, Shown::of(ChannelId(17)), false);
            String::from_utf8_lossy(bytes).into_owned()
        };
        let all = [
            (Attribute::Event, &b"price"[..]),
            (Attribute::Tags, br#"{"n":2}"#),
            (Attribute::From, b"ann"),
        ];
        let price = labelled(Body::Text("hi".into()), &all);
        let id = price.id;
        let shown = r#""event":"price","tags":{"n":2},"from":"ann""#;
        let envelope = format!(
            r#"{{"type":"message","channel":"a","id":"{id}","time":1234,{shown},"data":"hi"}}"#
        );
        for (encoding, expected) in [
            (Encoding::SSE, format!("id: {id}\nevent: price\ndata: hi\n\n")),
            (Encoding::SSE_ENVELOPE, format!("id: {id}\ndata: {envelope}\n\n")),
            (Encoding::SSE_COMPACT, format!("id: {id}\ndata: [17,7,\"hi\",{{{shown}}}]\n\n")),
            (Encoding::LINE, "hi\n".into()),
            (Encoding::LINE_ENVELOPE, format!("{envelope}\n")),
            (Encoding::LINE_TIMED, format!("[17,7,\"hi\",1234,{{{shown}}}]\n")),
        ] {
            assert_eq!(text(encoding, &price), expected);
        }
        assert!(text(Encoding::V1, &price).ends_with(&envelope));
        let binary = labelled(Body::Binary([0xff].into()), &all);
        assert_eq!(
            text(Encoding::SSE, &binary),
            format!("id: {id}\nevent: binary\ndata: /w==\n\n")
        );
    }

    #[test]
    fn a_notice_of_erasure_is_shown_where_there_is_more_than_bodies() {
        let range = [[0; 8], 5_u64.to_le_bytes()].concat();
        for (value, shown) in [(&5_u64.to_le_bytes()[..], "erased"), (&range[..], "erased_up_to")] {
            let notice = labelled(Body::Text("".into()), &[(Attribute::Erased, value)]);
            let text = |encoding: Encoding| {
                let bytes = encoding.encode(&notice, Shown::of(ChannelId(17)), false);
                String::from_utf8_lossy(bytes).into_owned()
            };
            let (id, erased) = (notice.id, MessageId { offset: 5, ..notice.id });
            let start = format!("id: {id}\nevent: erased\ndata: ");
            let json = format!(r#""{shown}":"{erased}""#);
            let head = format!(r#"{{"type":"erased","channel":"a","id":"{id}","time":1234,"#);
            assert_eq!(text(Encoding::SSE), format!("{start}{{{json}}}\n\n"));
            assert_eq!(text(Encoding::SSE_ENVELOPE), format!("{start}{head}{json}}}\n\n"));
            assert_eq!(text(Encoding::SSE_COMPACT), format!("{start}[17,7,null,{{{json}}}]\n\n"));
            assert_eq!(text(Encoding::LINE_ENVELOPE), format!("{head}{json}}}\n"));
            assert!(text(Encoding::V1).ends_with(&format!("{head}{json}}}")));
        }
        let has_notices: Vec<_> = (0..20).filter(|at| !Encoding(*at).has_notices()).collect();
        assert_eq!(has_notices, [0, 4, 6, 10], "bodies alone");
    }

    #[test]
    fn labels_that_no_publisher_can_set_are_not_shown() {
        let own = ServerEvent::ALL.iter().map(|event| event.name());
        for name in own.chain(["a\ndata: b", "throng-x", ""]) {
            let message = labelled(
                Body::Text("hi".into()),
                &[(Attribute::Event, name.as_bytes()), (Attribute::Tags, b"{\"a\": 1}")],
            );
            let bytes = |encoding: Encoding| {
                let bytes = encoding.encode(&message, Shown::of(ChannelId(17)), false);
                String::from_utf8_lossy(bytes).into_owned()
            };
            assert_eq!(bytes(Encoding::SSE), format!("id: {}\ndata: hi\n\n", message.id));
            assert_eq!(bytes(Encoding::LINE_COMPACT), "[17,7,\"hi\"]\n");
        }
    }

    #[test]
    fn bytes_are_a_binary_frame_and_a_named_event() {
        let bytes = |encoding| encoded(encoding, Body::Binary([0xff, 0].into()), false);
        assert!(bytes(Encoding::WEBSOCKET).starts_with('\u{fffd}'));
        assert_eq!(message(Body::Binary([0].into())).content_type(), "application/octet-stream");
        assert!(bytes(Encoding::SSE).ends_with("event: binary\ndata: /wA=\n\n"));
    }

    #[test]
    fn an_encoding_is_made_once() {
        let message = message(Body::Text("hi".into()));
        let first = Encoding::LINE.encode(&message, Shown::of(ChannelId(17)), true).as_ptr();
        assert_eq!(Encoding::LINE.encode(&message, Shown::of(ChannelId(17)), true).as_ptr(), first);
    }

    #[test]
    fn each_number_has_its_row_and_the_dialects_share_what_is_alike() {
        let all: Vec<_> = (0..32).filter_map(Encoding::numbered).collect();
        assert_eq!(all.len(), TABLE.len());
        for encoding in all {
            let row = encoding.row();
            assert_eq!(row.plain.row().plain, row.plain);
            assert_eq!(row.plain.row().framing, row.framing);
            let other = row.compressed.row();
            assert!(row.compressed == encoding || other.plain == encoding || other.has_deflate);
            assert!(!encoding.is_compressed() || row.has_deflate);
            assert_eq!(encoding.joins(), row.has_numbers && row.framing == Framing::WebSocket);
        }
        let message = message(Body::Text("hi".into()));
        let bytes = |it: Encoding| it.encode(&message, Shown::of(ChannelId(17)), false).as_ptr();
        assert_eq!(bytes(Encoding::V1), bytes(Encoding::WEBSOCKET_ENVELOPE));
    }
}
