//! The names of connections.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use crate::id::WorkerId;

/// Distinguishes a node's connections from the connections of all other nodes that serve the same
/// channels. It has 64 random bits, so each process picks its own: among a million processes, ended
/// ones included, two are equal with a probability of 3 in 100 million. Even then two connections
/// have the same name only if the rest of [`ConnectionName`] is equal, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeTag(NonZeroU64);

impl NodeTag {
    /// The tag of a server that shares its channels with no other one.
    pub const ALONE: NodeTag = NodeTag(NonZeroU64::MAX);

    /// The tag with this number, which should be random.
    pub const fn numbered(number: u64) -> NodeTag {
        match NonZeroU64::new(number) {
            Some(number) => NodeTag(number),
            None => NodeTag(NonZeroU64::MIN),
        }
    }

    /// The inverse of [`NodeTag::numbered`].
    pub const fn number(self) -> u64 {
        self.0.get()
    }
}

/// The name of a connection, by which a publication excludes it. Beside its node's tag it has, from
/// the highest bit on: the worker, the generation, the index. The generation has all of its 32
/// bits, as a log keeps the name as long as the message: with fewer, a later connection could have
/// the same name and miss the message without a gap. A name returns after four billion connections
/// of one worker, at the same index only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionName {
    node: NodeTag,
    number: u64,
}

/// Each message has one: the tag costs none of them anything.
const _: () = assert!(size_of::<Option<ConnectionName>>() == size_of::<Option<u64>>());

const WORKER_BITS: u32 = 10;
const INDEX_BITS: u32 = 22;
const _: () = assert!(WORKER_BITS + u32::BITS + INDEX_BITS == u64::BITS);

/// The digits of each number of a name.
const DIGITS: usize = 16;

impl ConnectionName {
    /// The number of workers that names can tell apart.
    pub const WORKERS_MAX: usize = 1 << WORKER_BITS;

    /// The number of connections of one worker that names can tell apart.
    pub const INDICES_MAX: usize = 1 << INDEX_BITS;

    /// The name of the connection at a worker's `index`. `generation` tells it from earlier and
    /// later connections there.
    pub fn new(worker: WorkerId, generation: u32, index: u32) -> ConnectionName {
        debug_assert!(usize::from(worker.0) < Self::WORKERS_MAX);
        debug_assert!((index as usize) < Self::INDICES_MAX);
        let worker = u64::from(worker.0) << (u64::BITS - WORKER_BITS);
        Self::numbered(worker | u64::from(generation) << INDEX_BITS | u64::from(index))
    }

    /// The name with this number, of a server that is alone.
    pub const fn numbered(number: u64) -> ConnectionName {
        ConnectionName { node: NodeTag::ALONE, number }
    }

    /// The same name on this node.
    #[must_use]
    pub const fn on(self, node: NodeTag) -> ConnectionName {
        ConnectionName { node, ..self }
    }

    /// The part of the name after the node.
    pub const fn number(self) -> u64 {
        self.number
    }

    /// The connection's node.
    pub const fn node(self) -> NodeTag {
        self.node
    }

    /// The connection's worker.
    pub fn worker(self) -> WorkerId {
        WorkerId((self.number >> (u64::BITS - WORKER_BITS)) as u16)
    }

    /// The connection's index in its worker.
    pub fn index(self) -> u32 {
        self.number as u32 & ((1 << INDEX_BITS) - 1)
    }
}

/// The number, preceded by the node's if there are several.
impl fmt::Display for ConnectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.node != NodeTag::ALONE {
            write!(f, "{:0DIGITS$x}", self.node.number())?;
        }
        write!(f, "{:0DIGITS$x}", self.number)
    }
}

/// A text that is not the name of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the name of a connection is 16 hexadecimal digits, or 32 with several nodes")]
pub struct NameError;

impl FromStr for ConnectionName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<ConnectionName, NameError> {
        let number = |text| u64::from_str_radix(text, 16).map_err(|_| NameError);
        match text.split_at_checked(DIGITS) {
            Some((node, rest)) if rest.len() == DIGITS => {
                Ok(Self::numbered(number(rest)?).on(NodeTag::numbered(number(node)?)))
            }
            Some((_, rest)) if !rest.is_empty() => Err(NameError),
            _ => number(text).map(Self::numbered),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_hold_all_of_a_connection() {
        let name = |worker, generation, index| {
            let name = ConnectionName::new(WorkerId(worker), generation, index);
            assert_eq!((name.worker(), name.index()), (WorkerId(worker), index));
            assert_eq!(name.to_string().parse(), Ok(name));
            name
        };
        let (workers, indices) = (ConnectionName::WORKERS_MAX, ConnectionName::INDICES_MAX);
        let last = name((workers - 1) as u16, u32::MAX, (indices - 1) as u32);
        assert_eq!(last.number(), u64::MAX);
        for bit in 0..32 {
            assert_ne!(name(1, 7, 5), name(1, 7 ^ (1 << bit), 5));
        }
    }

    #[test]
    fn nodes_have_names_of_their_own() {
        let alone = ConnectionName::new(WorkerId(1), 7, 5);
        let nodes = [1, 2, u64::MAX - 1].map(NodeTag::numbered);
        let names = nodes.map(|node| alone.on(node));
        for name in names {
            assert_eq!((name.worker(), name.index()), (WorkerId(1), 5));
            assert_eq!(name.to_string().len(), 2 * DIGITS);
            assert_eq!(name.to_string().parse(), Ok(name));
            assert_eq!(names.iter().filter(|&&other| other == name).count(), 1);
            assert_ne!(name, alone);
        }
        assert_eq!(alone.to_string().len(), DIGITS);
        assert_eq!(NodeTag::numbered(0), NodeTag::numbered(1), "there is no 0");
        let text = names[0].to_string();
        for wrong in ["", "x", &format!("x{}", &text[1..]), &format!("{text}0"), &"é".repeat(16)] {
            assert!(wrong.parse::<ConnectionName>().is_err(), "{wrong}");
        }
    }
}
