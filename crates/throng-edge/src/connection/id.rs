//! Identifies a worker's connections: by their places in its table ([`ConnectionId`]), which are
//! reused, and by tokens, which are not.

use std::num::NonZeroU32;

pub use throng_core::ConnectionId;
use throng_core::ConnectionName;

/// Distinguishes the connections that have the same [`ConnectionId`] one after another. Never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Generation(NonZeroU32);

impl Generation {
    /// The generation that follows `number`; numbers wrap around.
    pub(super) fn after(number: u32) -> Generation {
        Generation(NonZeroU32::new(number.wrapping_add(1)).unwrap_or(NonZeroU32::MIN))
    }

    /// The inverse of [`Generation::number`]; `None` for 0.
    pub(super) fn from_number(number: u32) -> Option<Generation> {
        NonZeroU32::new(number).map(Generation)
    }

    pub(crate) fn number(self) -> u32 {
        self.0.get()
    }
}

/// Identifies one connection of a worker, even after its place is reused. Events and lists that
/// outlive a call hold tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token {
    id: ConnectionId,
    generation: Generation,
}

impl Token {
    /// The least value of [`Token::bits`]; smaller values identify other sources of events.
    pub(crate) const BITS_MIN: u64 = 1 << u32::BITS;

    pub(super) fn new(id: ConnectionId, generation: Generation) -> Token {
        Token { id, generation }
    }

    pub(crate) fn id(self) -> ConnectionId {
        self.id
    }

    pub(super) fn generation(self) -> Generation {
        self.generation
    }

    pub(crate) fn bits(self) -> u64 {
        u64::from(self.generation.number()) << u32::BITS | u64::from(self.id.index())
    }

    /// The token with these [`bits`](Token::bits); `None` for a value that belongs to another
    /// source of events.
    pub(crate) fn from_bits(bits: u64) -> Option<Token> {
        let generation = Generation(NonZeroU32::new((bits >> u32::BITS) as u32)?);
        Some(Token { id: ConnectionId::new(bits as u32), generation })
    }
}

/// Where what only some connections have is: see [`side_table`](super::side_table).
///
/// Three bytes: a worker has at most [`ConnectionName::INDICES_MAX`] connections, and so at most as
/// many entries and sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SideIndex([u8; 3]);

/// The entry that a [`SideIndex`] names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SidePlace {
    /// The connection has nothing.
    Nowhere,
    /// A session, and nothing else.
    Session(u32),
    /// An entry of the side table.
    Entry(u32),
}

impl SideIndex {
    /// The index of a connection that has nothing.
    pub(crate) const NONE: SideIndex = SideIndex([u8::MAX; 3]);

    /// The bit of an index of a session.
    const SESSION: u32 = 1 << 23;

    pub(super) fn new(place: SidePlace) -> SideIndex {
        let number = match place {
            SidePlace::Nowhere => return SideIndex::NONE,
            SidePlace::Session(index) => index | SideIndex::SESSION,
            SidePlace::Entry(index) => index,
        };
        debug_assert!((number & !SideIndex::SESSION) < ConnectionName::INDICES_MAX as u32);
        let [low, middle, high, _] = number.to_le_bytes();
        SideIndex([low, middle, high])
    }

    pub(super) fn place(self) -> SidePlace {
        let SideIndex([low, middle, high]) = self;
        match u32::from_le_bytes([low, middle, high, 0]) {
            _ if self == SideIndex::NONE => SidePlace::Nowhere,
            index if index & SideIndex::SESSION != 0 => {
                SidePlace::Session(index & !SideIndex::SESSION)
            }
            index => SidePlace::Entry(index),
        }
    }

    pub(crate) fn is_some(self) -> bool {
        self != SideIndex::NONE
    }
}

const _: () = assert!((ConnectionName::INDICES_MAX as u32) < SideIndex::SESSION);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_generation_gives_a_token_that_another_source_has() {
        let mut number = u32::MAX - 3;
        for _ in 0..6 {
            let generation = Generation::after(number);
            number = generation.number();
            for index in [0, 1, 2, u32::MAX] {
                let token = Token::new(ConnectionId::new(index), generation);
                assert!(token.bits() >= Token::BITS_MIN);
                assert_eq!(Token::from_bits(token.bits()), Some(token));
            }
        }
        assert_eq!(number, 3, "it has wrapped around");
        assert_eq!(Token::from_bits(Token::BITS_MIN - 1), None);
    }

    #[test]
    fn a_side_index_holds_every_place() {
        for index in [0, 1, 1 << 16, ConnectionName::INDICES_MAX as u32 - 1] {
            for place in [SidePlace::Entry(index), SidePlace::Session(index)] {
                assert_eq!(SideIndex::new(place).place(), place);
            }
        }
        assert_eq!(SideIndex::new(SidePlace::Nowhere).place(), SidePlace::Nowhere);
    }
}
