//! Who follows the members of a channel, and keeps the list as it is told.

use std::collections::{BTreeMap, BTreeSet};

use crate::Message;

/// A list that has been partial for so long is told to be.
pub(super) const KNOWN_MS: u64 = 1_500;

#[derive(Default)]
pub(super) struct Follower {
    pub(super) members: BTreeMap<String, String>,
    /// Members that must not leave while the process is cut off.
    pub(super) stay: BTreeSet<String>,
    pub(super) is_partial: bool,
    /// True if it was told that its list is partial, or is not any more.
    pub(super) has_heard: bool,
}

impl Follower {
    /// It is told something by the process with this name.
    pub(super) fn is_told(&mut self, message: &Message, name: &str) {
        if let Some(is_partial) = message.is_list_partial() {
            assert!(is_partial || self.is_partial, "{name} has nothing to take back");
            (self.is_partial, self.has_heard) = (is_partial, true);
            return;
        }
        let Some(key) = message.key() else { return };
        let object = String::from_utf8_lossy(message.body.bytes()).into_owned();
        if message.removes_key() {
            assert!(self.members.remove(key).is_some(), "{key} leaves {name} without a join");
            assert!(!self.stay.contains(key), "{key} leaves {name}, which is cut off");
            return;
        }
        let before = self.members.insert(key.into(), object.clone());
        assert_ne!(before.as_ref(), Some(&object), "{name} is told twice");
        let expected = if before.is_some() { "update" } else { "join" };
        assert_eq!(message.facts().event, Some(expected), "{key} on {name}");
    }

    /// What it has been told of its list, if anything. If others may be missing for certain, that.
    pub(super) fn look(&self, must_be_partial: bool, name: &str) -> Option<&'static str> {
        assert!(self.is_partial || !must_be_partial, "{name} is cut off");
        self.has_heard.then_some(if self.is_partial { "told partial" } else { "told whole" })
    }
}
