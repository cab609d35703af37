//! What a peer can do wrong, and the close code that tells it.

use super::close_code;

/// A breach of RFC 6455 or of the message limit. The connection is closed with its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Violation {
    /// A frame from a client without a mask, or one from a server with it.
    Masking,
    /// RSV1 to RSV3 without an extension that uses them.
    ReservedBits,
    /// Opcodes 3 to 7 and 11 to 15.
    ReservedOpcode,
    /// A ping, pong or close that is not final.
    FragmentedControl,
    /// A ping, pong or close of more than 125 bytes.
    LongControl,
    /// A continuation frame when no message had begun.
    UnexpectedContinuation,
    /// A text or binary frame within a fragmented message.
    InterleavedMessage,
    /// A length in more bytes than it needs.
    LengthNotMinimal,
    /// A length with the highest of its 64 bits set.
    LengthHighBit,
    /// A message over the limit, by its header or by the sum of its fragments.
    TooLarge,
    /// Text, or the reason of a close, that is not UTF-8.
    NotUtf8,
    /// A close code that nobody may send.
    CloseCode,
    /// A close payload of one byte: half a code.
    ShortClose,
}

impl Violation {
    /// The close code that the peer is told.
    pub fn close_code(self) -> u16 {
        match self {
            Violation::TooLarge => close_code::MESSAGE_TOO_BIG,
            Violation::NotUtf8 => close_code::INVALID_PAYLOAD,
            _ => close_code::PROTOCOL_ERROR,
        }
    }

    /// One sentence for the close reason and the log.
    pub fn message(self) -> &'static str {
        match self {
            Violation::Masking => "the frame's mask bit is wrong",
            Violation::ReservedBits => "a reserved bit is set",
            Violation::ReservedOpcode => "the opcode is reserved",
            Violation::FragmentedControl => "a control frame is fragmented",
            Violation::LongControl => "a control frame is longer than 125 bytes",
            Violation::UnexpectedContinuation => "a continuation frame continues nothing",
            Violation::InterleavedMessage => "a message begins within another",
            Violation::LengthNotMinimal => "the length is not in its shortest form",
            Violation::LengthHighBit => "the length's highest bit is set",
            Violation::TooLarge => "the message is too large",
            Violation::NotUtf8 => "the text is not UTF-8",
            Violation::CloseCode => "the close code is not allowed",
            Violation::ShortClose => "the close frame holds half a code",
        }
    }
}
