//! Publishers, as the room that values of keys and creations take is charged to them: these are not
//! dropped for others' messages, so a publisher that fills the room must not leave others without
//! any.

/// The publisher that the room of a value, or of a creation, is charged to. Two publishers may be
/// the same one here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RoomHolder(u16);

impl RoomHolder {
    /// The server, the application, or a publisher that is not known: it has no share.
    pub const NOBODY: RoomHolder = RoomHolder(0);

    /// The publisher with this number, which a journal has kept.
    pub fn numbered(number: u16) -> RoomHolder {
        RoomHolder(number)
    }

    /// The number to keep.
    pub fn number(self) -> u16 {
        self.0
    }
}

/// Bytes that publishers hold more or less than those who count them know.
#[derive(Debug, Clone, Default)]
pub struct Charges(Vec<(RoomHolder, isize)>);

impl Charges {
    /// Charges bytes to a publisher, or takes them off.
    pub fn add(&mut self, holder: RoomHolder, bytes: isize) {
        if holder == RoomHolder::NOBODY || bytes == 0 {
            return;
        }
        match self.0.iter_mut().find(|(of, _)| *of == holder) {
            Some((_, uncounted)) => *uncounted += bytes,
            None => self.0.push((holder, bytes)),
        }
    }

    /// Removes all of them, to be counted.
    pub fn drain(&mut self) -> impl Iterator<Item = (RoomHolder, isize)> {
        self.0.drain(..)
    }
}
