//! Message ids, and positions in several channels at once.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::str::FromStr;

use throng_wire::{ErrorCode, ErrorResponse};

/// One life of the logs. It changes when the logs are lost, so that an id from before is
/// recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Epoch(u64);

/// Base 36 digits, as ids are written.
const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// Bits of an epoch: nine digits at most.
const EPOCH_BITS: u32 = 46;

impl Epoch {
    /// The epoch of logs that begin now. It is random, since the machine's clock may begin at the
    /// same time with each boot: that two lives of a server share one has odds of 1 to 7 * 10^13.
    pub fn random() -> Epoch {
        // Seeded by the system.
        Epoch::numbered(RandomState::new().hash_one(EPOCH_BITS))
    }

    /// An epoch that is chosen, cut to the bits of one.
    pub fn numbered(number: u64) -> Epoch {
        Epoch(number & ((1 << EPOCH_BITS) - 1))
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

/// Names one message of one channel: written `epoch-offset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MessageId {
    /// The life of the log.
    pub epoch: Epoch,
    /// Grows by one with each message of the channel; 0 stands before the first.
    pub offset: u64,
}

/// The text is not a message id.
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

/// Where a connection stands in each of its channels, in the order in which it named them: ids
/// joined by commas.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Position(pub Vec<MessageId>);

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, id) in self.0.iter().enumerate() {
            if nth > 0 {
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
    fn epochs_do_not_repeat_and_are_short() {
        let epochs: BTreeSet<_> = (0..1000).map(|_| Epoch::random().to_string()).collect();
        assert_eq!(epochs.len(), 1000);
        assert!(epochs.iter().all(|epoch| epoch.len() <= 9));
        assert_eq!(Epoch::numbered(u64::MAX).to_string().len(), 9);
    }

    #[test]
    fn refuses_what_is_not_an_id() {
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
        fn ids_come_back_as_written(epoch in 0u64..1 << EPOCH_BITS, offset: u64) {
            let id = MessageId { epoch: Epoch(epoch), offset };
            prop_assert_eq!(id.to_string().parse(), Ok(id));
            let position = Position(vec![id; 3]);
            prop_assert_eq!(position.to_string().parse(), Ok(position));
        }
    }
}
