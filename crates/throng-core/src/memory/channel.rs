//! One channel of a shard, kept small: a user with one connection has one too.

use super::names::NameRef;
use crate::log::Log;
use crate::rules::RuleId;
use crate::{LocalId, WorkerId};

/// The workers that follow a channel.
#[derive(Debug, Default)]
pub(super) enum Followers {
    #[default]
    None,
    /// Most channels of a server with many channels: no allocation.
    One(Follower),
    /// Boxed once more, so that a channel with one follower stays small.
    #[expect(clippy::box_collection, reason = "a Vec would make every channel 8 bytes larger")]
    Many(Box<Vec<Follower>>),
}

/// A worker's part.
#[derive(Debug, Clone, Copy)]
pub(super) struct Follower {
    pub(super) local: LocalId,
    pub(super) subscribers: u32,
    pub(super) worker: WorkerId,
}

impl Followers {
    pub(super) fn as_slice(&self) -> &[Follower] {
        match self {
            Followers::None => &[],
            Followers::One(follower) => std::slice::from_ref(follower),
            Followers::Many(followers) => followers,
        }
    }

    pub(super) fn subscribers(&self) -> u64 {
        self.as_slice().iter().map(|follower| u64::from(follower.subscribers)).sum()
    }

    /// One more subscription of `worker`, which keeps the channel at `local_if_new` unless it has
    /// it already. Returns where it keeps it.
    pub(super) fn add(&mut self, worker: WorkerId, local_if_new: LocalId) -> LocalId {
        let known = match self {
            Followers::None => None,
            Followers::One(follower) => (follower.worker == worker).then_some(follower),
            Followers::Many(followers) => followers.iter_mut().find(|other| other.worker == worker),
        };
        if let Some(follower) = known {
            follower.subscribers += 1;
            return follower.local;
        }
        let new = Follower { local: local_if_new, subscribers: 1, worker };
        *self = match std::mem::take(self) {
            Followers::None => Followers::One(new),
            Followers::One(first) => Followers::Many(Box::new(vec![first, new])),
            Followers::Many(mut followers) => {
                followers.push(new);
                Followers::Many(followers)
            }
        };
        local_if_new
    }

    /// One subscription of `worker` less.
    pub(super) fn remove(&mut self, worker: WorkerId) {
        match self {
            Followers::None => {}
            Followers::One(follower) => {
                if follower.worker != worker {
                    return;
                }
                follower.subscribers -= 1;
                if follower.subscribers == 0 {
                    *self = Followers::None;
                }
            }
            Followers::Many(followers) => {
                let Some(at) = followers.iter().position(|other| other.worker == worker) else {
                    return;
                };
                followers[at].subscribers -= 1;
                if followers[at].subscribers == 0 {
                    followers.swap_remove(at);
                }
                if let [only] = followers.as_slice() {
                    *self = Followers::One(*only);
                }
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Followers::None)
    }
}

#[derive(Debug)]
pub(super) struct Channel {
    /// The newest message's offset.
    pub(super) head: u64,
    /// Nothing while no message is kept.
    pub(super) log: Option<Box<Log>>,
    pub(super) followers: Followers,
    pub(super) name: NameRef,
    pub(super) rule: RuleId,
}

const _: () = assert!(std::mem::size_of::<Channel>() <= 40);

impl Channel {
    /// The offset of the newest message that is not kept.
    pub(super) fn floor(&self) -> u64 {
        self.log.as_ref().and_then(|log| log.floor()).unwrap_or(self.head)
    }

    pub(super) fn is_forgettable(&self) -> bool {
        self.log.is_none() && self.followers.is_empty()
    }
}
