//! The link of a message: what came before it in a channel that keeps a state. See
//! [`super::state`].

use serde::{Deserialize, Serialize};

use crate::protocol::headers::HeaderWriter;

/// The batch, the record before it, the message before, the newest one without a key before, and
/// the place in the batch.
pub(crate) const LINK: &str = "Throng-Link";

/// A message, by its sequence, or if it is negative, by its distance to the message that says it:
/// sequences are given when a batch is stored, without holes. 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Place(i64);

impl Place {
    pub(crate) fn at(sequence: u64) -> Place {
        Place(i64::try_from(sequence).unwrap_or(i64::MAX))
    }

    /// A message that is so many before the one that says it.
    pub(crate) fn before(distance: usize) -> Place {
        Place(-(distance as i64))
    }

    /// Reads what is written as a text.
    pub(crate) fn read(text: &str) -> Option<Place> {
        text.parse().ok().map(Place)
    }

    /// The sequence, as the message with the sequence `of` says it.
    pub(crate) fn sequence(self, of: u64) -> u64 {
        let number = self.0.unsigned_abs();
        if self.0 < 0 { of.saturating_sub(number) } else { number }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(formatter)
    }
}

/// The messages before one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The message before it; 0 without one.
    pub before: u64,
    /// The newest message without a key before it; 0 without one.
    pub plain: u64,
}

impl Link {
    /// Reads the header of the message with this sequence.
    pub(crate) fn read(value: &str, sequence: u64) -> Option<Link> {
        let mut fields = value.split(' ').skip(2);
        let mut place = || Some(Place::read(fields.next()?)?.sequence(sequence));
        Some(Link { before: place()?, plain: place()? })
    }

    /// True if a field with this name has one.
    pub(crate) fn is_field(name: &str) -> bool {
        name == LINK
    }
}

/// Adds the link to the headers of a message, the one at this place of the batch `batch`, which is
/// made when the record has the sequence `record`.
pub(crate) fn linked(
    headers: HeaderWriter,
    (batch, record, at): (&str, u64, usize),
    [before, plain]: [Place; 2],
) -> HeaderWriter {
    headers.field(LINK, format_args!("{batch} {record} {before} {plain} {at}"))
}
