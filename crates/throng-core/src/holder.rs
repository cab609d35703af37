//! Publishers, as the room that values of keys and creations take in memory is charged to them.

/// The publisher that the room of a value, or of a creation, is charged to. Two publishers may be
/// the same one here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RoomHolder(u16);

impl RoomHolder {
    /// The server, or a publisher that is not known.
    pub const NOBODY: RoomHolder = RoomHolder(0);

    pub(crate) fn numbered(number: u16) -> RoomHolder {
        RoomHolder(number)
    }

    pub(crate) fn number(self) -> u16 {
        self.0
    }
}
