//! Protocol violations and their close codes.

use super::close_code;
use crate::error::ErrorCode;

/// A violation of RFC 6455, of RFC 7692 or of the message limit. It closes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Violation {
    /// An unmasked frame from a client, or a masked one from a server.
    Masking,
    /// A reserved bit: RSV2, RSV3, or RSV1 where compression is not negotiated.
    ReservedBits,
    /// RSV1 on a control frame or on a later frame of a message.
    MisplacedCompression,
    /// A compressed message that is not DEFLATE, or refers to an earlier message.
    NotDeflate,
    /// A compressed message that is larger than its limit once it is inflated, or so much larger
    /// than what was sent that only an attack has it.
    InflatesTooMuch,
    /// Opcodes 3 to 7 and 11 to 15.
    ReservedOpcode,
    /// A ping, pong or close that is not final.
    FragmentedControl,
    /// A ping, pong or close of more than 125 bytes.
    LongControl,
    /// A continuation frame outside a message.
    UnexpectedContinuation,
    /// A text or binary frame inside a fragmented message.
    InterleavedMessage,
    /// A length that is not in its shortest form.
    LengthNotMinimal,
    /// A 64-bit length with the highest bit set.
    LengthHighBit,
    /// A message whose header, or the sum of whose fragments, exceeds the limit.
    TooLarge,
    /// A text message or a close reason that is not UTF-8.
    NotUtf8,
    /// A close code that must not be sent.
    CloseCode,
    /// A close frame with a payload of one byte, half a code.
    ShortClose,
}

impl Violation {
    /// The close code that answers it.
    pub fn close_code(self) -> u16 {
        match self {
            Violation::TooLarge | Violation::InflatesTooMuch => close_code::MESSAGE_TOO_BIG,
            Violation::NotUtf8 => close_code::INVALID_PAYLOAD,
            Violation::NotDeflate => close_code::BAD_COMPRESSION,
            _ => close_code::PROTOCOL_ERROR,
        }
    }

    /// The error that the reason of the close frame begins with.
    pub fn error(self) -> ErrorCode {
        match self {
            Violation::TooLarge | Violation::InflatesTooMuch => ErrorCode::TooLarge,
            Violation::NotUtf8 => ErrorCode::BadUtf8,
            Violation::NotDeflate => ErrorCode::BadCompression,
            _ => ErrorCode::BadRequest,
        }
    }

    /// The reason of the close frame.
    pub fn message(self) -> &'static str {
        match self {
            Violation::Masking => "the frame's mask bit is wrong",
            Violation::ReservedBits => "a reserved bit is set",
            Violation::MisplacedCompression => "only the first frame of a message is compressed",
            Violation::NotDeflate => ErrorCode::BadCompression.message(),
            Violation::InflatesTooMuch => "the message is too large once it is inflated",
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
