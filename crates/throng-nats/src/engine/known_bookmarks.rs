//! What other nodes have told of bookmarks.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use throng_core::BookmarkKeys;

use super::bookmark_messages::LeftElsewhere;

/// The longest time that another node is believed: what the settings allow.
const FOR_MS_MAX: u64 = 60 * 60 * 1000;

/// The bookmarks of other nodes that this one knows of, at most: some 40 MB. Beyond it the oldest
/// are forgotten.
const KNOWN_MAX: usize = 1 << 18;

/// What other nodes have told.
#[derive(Debug, Default)]
pub(super) struct BookmarksElsewhere(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// The nodes that have a user's bookmark in a channel, and until when.
    users: HashMap<u64, Vec<(Arc<str>, u64)>>,
    /// Until when users may go on in a channel.
    channels: HashMap<u64, u64>,
    /// The keys and the ends of what was told, oldest first.
    order: VecDeque<(BookmarkKeys, u64)>,
}

impl BookmarksElsewhere {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node has told of bookmarks that were left with it.
    pub(super) fn note(&self, now_ms: u64, node: &str, left: impl Iterator<Item = LeftElsewhere>) {
        let node: Arc<str> = node.into();
        let mut known = self.lock();
        for LeftElsewhere { channel, user, for_ms } in left {
            let until_ms = now_ms.saturating_add(for_ms.min(FOR_MS_MAX));
            let nodes = known.users.entry(user).or_default();
            nodes.retain(|(other, _)| **other != *node);
            nodes.push((Arc::clone(&node), until_ms));
            let end = known.channels.entry(channel).or_default();
            *end = until_ms.max(*end);
            known.order.push_back((BookmarkKeys { channel, user }, until_ms));
            if known.order.len() > KNOWN_MAX {
                known.forget_oldest();
            }
        }
    }

    /// True if users may go on in the channel with this key.
    pub(super) fn has_any_in(&self, now_ms: u64, channel: u64) -> bool {
        self.lock().channels.get(&channel).is_some_and(|end| *end > now_ms)
    }

    /// The nodes that have a user's bookmark, and until when.
    pub(super) fn nodes(&self, now_ms: u64, user: u64) -> Vec<(Arc<str>, u64)> {
        let known = self.lock();
        let nodes = known.users.get(&user).into_iter().flatten();
        nodes.filter(|(_, end)| *end > now_ms).cloned().collect()
    }

    /// Forgets what nodes have told of a user, unless they have told more since.
    pub(super) fn forget(&self, user: u64, told: &[(Arc<str>, u64)]) {
        let mut known = self.lock();
        if let Some(nodes) = known.users.get_mut(&user) {
            nodes.retain(|node| !told.contains(node));
            if nodes.is_empty() {
                known.users.remove(&user);
            }
        }
    }

    /// Forgets what is over.
    pub(super) fn expire(&self, now_ms: u64) {
        let mut known = self.lock();
        while known.order.front().is_some_and(|(_, end)| *end <= now_ms) {
            known.forget_oldest();
        }
    }
}

impl Known {
    fn forget_oldest(&mut self) {
        let Some((keys, until_ms)) = self.order.pop_front() else { return };
        if let Some(nodes) = self.users.get_mut(&keys.user) {
            nodes.retain(|(_, end)| *end > until_ms);
            if nodes.is_empty() {
                self.users.remove(&keys.user);
            }
        }
        if self.channels.get(&keys.channel).is_some_and(|end| *end <= until_ms) {
            self.channels.remove(&keys.channel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(user: u64, for_ms: u64) -> LeftElsewhere {
        LeftElsewhere { channel: 7, user, for_ms }
    }

    #[test]
    fn what_others_have_is_known_until_it_is_gone_or_over() {
        let known = BookmarksElsewhere::default();
        let note = |node, left: &[LeftElsewhere]| known.note(100, node, left.iter().copied());
        note("n1", &[left(1, 50), left(2, 90)]);
        note("n2", &[left(1, 60)]);
        note("n1", &[left(1, 80)]);
        assert!(known.has_any_in(189, 7) && !known.has_any_in(190, 7) && !known.has_any_in(100, 8));
        let names = |user, now_ms| {
            let names = known.nodes(now_ms, user).into_iter().map(|(node, _)| node);
            names.collect::<Vec<_>>().join(" ")
        };
        assert_eq!((names(1, 150), names(1, 170)), ("n2 n1".into(), "n1".into()));
        let told = known.nodes(150, 1);
        note("n1", &[left(1, 85)]);
        known.forget(1, &told);
        assert_eq!(names(1, 150), "n1", "it has told more since");
        known.forget(1, &known.nodes(150, 1));
        assert_eq!(names(1, 150), "");
        known.expire(189);
        assert_eq!(names(2, 189), "n1");
        known.expire(190);
        let rest = known.lock();
        assert_eq!((rest.users.len(), rest.channels.len(), rest.order.len()), (0, 0, 0));
    }

    #[test]
    fn a_node_that_tells_too_much_is_forgotten() {
        let known = BookmarksElsewhere::default();
        let all = (0..KNOWN_MAX as u64 + 5).map(|user| left(user, u64::MAX));
        known.note(100, "n1", all);
        let lengths = |all: &Known| (all.order.len(), all.users.len());
        assert_eq!(lengths(&known.lock()), (KNOWN_MAX, KNOWN_MAX));
        assert!(known.nodes(100, 4).is_empty() && !known.nodes(100, 5).is_empty());
        assert!(!known.has_any_in(100 + FOR_MS_MAX, 7));
    }
}
