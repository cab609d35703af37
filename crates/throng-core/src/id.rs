//! Identifiers of workers, listeners, connections, channels and messages, and positions in several
//! channels.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::num::NonZeroU32;
use std::str::FromStr;

use throng_wire::{ErrorCode, ErrorResponse};

/// A worker of the data plane. Workers are counted from zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(pub u16);

/// The listener that accepted a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Listener {
    /// The address that clients connect to.
    #[default]
    Public,
    /// The address for operators, and for the application where clients may only read.
    Admin,
}

/// A connection's place in its worker's table. The place is reused once the connection is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(u32);

impl ConnectionId {
    /// The place with this index.
    pub const fn new(index: u32) -> ConnectionId {
        ConnectionId(index)
    }

    /// The index of the place.
    pub fn index(self) -> u32 {
        self.0
    }
}

/// A channel within the engine. The engine reuses the id once it has forgotten the channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId(pub u32);

/// A channel within one worker's [`SubscriptionTable`](crate::SubscriptionTable), which reuses the
/// id once the worker's last subscription of the channel has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalId(pub NonZeroU32);

impl LocalId {
    /// The number of channels that one worker can follow: more than memory has room for.
    const INDICES_MAX: u32 = 1 << 26;

    pub(crate) fn from_index(index: u32) -> LocalId {
        LocalId(NonZeroU32::MIN.saturating_add(index))
    }

    /// The id with this number; `None` for 0, and for numbers that no table reaches.
    pub(crate) fn from_number(number: u32) -> Option<LocalId> {
        let id = NonZeroU32::new(number).map(LocalId);
        id.filter(|id| id.index() < LocalId::INDICES_MAX)
    }

    pub(crate) fn number(self) -> u32 {
        self.0.get()
    }

    pub(crate) fn index(self) -> u32 {
        self.0.get() - 1
    }
}

/// The lifetime of a channel's log. It changes when the log is lost, so that ids from before the
/// loss are recognised. An engine may give all channels one epoch, or each its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Epoch(u64);

/// The digits of an epoch in an id's text, which is base 36.
const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// Bits of an epoch. Its text has at most nine digits.
const EPOCH_BITS: u32 = 46;

impl Epoch {
    /// A new epoch. It is random and not a time, since a machine's clock may start at the same
    /// value with each boot; two epochs are equal with a probability of 1 in 7 * 10^13.
    pub fn random() -> Epoch {
        // The operating system seeds the hasher.
        Epoch::numbered(RandomState::new().hash_one(EPOCH_BITS))
    }

    /// The epoch with this number. Only the low 46 bits are used.
    pub const fn numbered(number: u64) -> Epoch {
        Epoch(number & ((1 << EPOCH_BITS) - 1))
    }

    /// The inverse of [`Epoch::numbered`].
    pub fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut digits = [0u8; 13];
        let mut at = digits.len();
        let mut rest = self.0;
        loop {
            at -= 1;
            digits[at] = DIGITS[(rest % 36) as usize];
            rest /= 36;
            if rest == 0 {
                break;
            }
        }
        f.write_str(std::str::from_utf8(&digits[at..]).unwrap_or_default())
    }
}

/// Identifies a message within its channel. The text is `epoch-offset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MessageId {
    /// The epoch of the channel's log.
    pub epoch: Epoch,
    /// Grows within the channel and may skip numbers: each message carries its predecessor's
    /// offset. 0 is the position before the first message.
    pub offset: u64,
}

/// A text that is not a message id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an id looks like `k3v9x2-17`: lower-case letters and digits, a hyphen, digits")]
pub struct IdError;

impl From<IdError> for ErrorResponse {
    fn from(error: IdError) -> ErrorResponse {
        ErrorResponse::new(ErrorCode::BadId, error.to_string())
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.epoch, self.offset)
    }
}

impl FromStr for MessageId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<MessageId, IdError> {
        let (epoch, offset) = text.split_once('-').ok_or(IdError)?;
        let is_epoch = (1..=13).contains(&epoch.len())
            && epoch.bytes().all(|digit| digit.is_ascii_digit() || digit.is_ascii_lowercase());
        let is_offset =
            (1..=20).contains(&offset.len()) && offset.bytes().all(|digit| digit.is_ascii_digit());
        if !is_epoch || !is_offset {
            return Err(IdError);
        }
        Ok(MessageId {
            epoch: Epoch(u64::from_str_radix(epoch, 36).map_err(|_| IdError)?),
            offset: offset.parse().map_err(|_| IdError)?,
        })
    }
}

/// A connection's cursors: one id for each of its channels, in the order of its request. The text
/// is the ids joined by commas.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Position(pub Vec<MessageId>);

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, id) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            write!(f, "{id}")?;
        }
        Ok(())
    }
}

impl FromStr for Position {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Position, IdError> {
        text.split(',').map(str::parse).collect::<Result<Vec<_>, _>>().map(Position)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn random_epochs_differ_and_have_at_most_nine_digits() {
        let epochs: BTreeSet<_> = (0..1000).map(|_| Epoch::random().to_string()).collect();
        assert_eq!(epochs.len(), 1000);
        assert!(epochs.iter().all(|epoch| epoch.len() <= 9));
        assert_eq!(Epoch::numbered(u64::MAX).to_string().len(), 9);
    }

    #[test]
    fn malformed_ids_are_refused() {
        for text in [
            "",
            "-",
            "a",
            "a-",
            "-1",
            "a-1-2",
            "A-1",
            "a-x",
            "a- 1",
            "a-+1",
            "ä-1",
            "0-99999999999999999999",
        ] {
            assert_eq!(text.parse::<MessageId>(), Err(IdError), "{text}");
        }
    }

    proptest! {
        #[test]
        fn ids_and_positions_round_trip(epoch in 0u64..1 << EPOCH_BITS, offset: u64) {
            let id = MessageId { epoch: Epoch(epoch), offset };
            prop_assert_eq!(id.to_string().parse(), Ok(id));
            let position = Position(vec![id; 3]);
            prop_assert_eq!(position.to_string().parse(), Ok(position));
        }
    }
}
