//! The values of keys that expire, as far as this node knows of them.

use std::collections::{BTreeMap, HashMap};

use throng_core::ChannelName;

/// Values that are removed at a time: some milliseconds of work.
const REMOVED_PER_TICK: usize = 256;

/// Values that a node knows of, at most. Of others, whoever reads their channel finds out.
const KNOWN_MAX: usize = 1 << 20;

/// A key, and its channel.
type KeyName = (ChannelName, Box<str>);

/// A time, and a number that no other value has.
type Due = (u64, u64);

/// See the module.
#[derive(Default)]
pub(super) struct Expiring {
    /// The message that has set a key, and when it is due.
    keys: HashMap<KeyName, (u64, Due)>,
    due: BTreeMap<Due, KeyName>,
    next: u64,
}

impl Expiring {
    /// The message at this offset is the newest of a key, and expires at a time or not.
    pub(super) fn note(
        &mut self,
        channel: &ChannelName,
        key: &str,
        (offset, due_ms): (u64, Option<u64>),
    ) {
        if self.keys.is_empty() && due_ms.is_none() {
            return;
        }
        let name = (channel.clone(), Box::<str>::from(key));
        if let Some((known, due)) = self.keys.get(&name).copied() {
            if known > offset || (known == offset && due_ms == Some(due.0)) {
                return;
            }
            self.due.remove(&due);
            self.keys.remove(&name);
        }
        if let Some(due_ms) = due_ms.filter(|_| self.keys.len() < KNOWN_MAX) {
            self.next += 1;
            self.due.insert((due_ms, self.next), name.clone());
            self.keys.insert(name, (offset, (due_ms, self.next)));
        }
    }

    /// Takes the values that have expired: their channels, keys and offsets.
    pub(super) fn due(&mut self, now_ms: u64) -> Vec<(ChannelName, Box<str>, u64)> {
        let mut all = Vec::new();
        while all.len() < REMOVED_PER_TICK
            && let Some(first) = self.due.first_entry().filter(|it| it.key().0 <= now_ms)
        {
            let name = first.remove();
            if let Some((offset, _)) = self.keys.remove(&name) {
                all.push((name.0, name.1, offset));
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_value_puts_an_expiry_off() {
        let mut expiring = Expiring::default();
        let channel = ChannelName::channel("a");
        let mut note = |key: &str, at: (u64, Option<u64>)| expiring.note(&channel, key, at);
        note("x", (5, Some(100)));
        note("y", (6, Some(100)));
        note("x", (8, Some(300)));
        // Late news of an earlier value, and a value that stays.
        note("x", (7, Some(50)));
        note("z", (9, Some(100)));
        note("z", (10, None));
        let due = |expiring: &mut Expiring, now_ms| {
            let due = expiring.due(now_ms).into_iter();
            due.map(|(_, key, offset)| (key.to_string(), offset)).collect::<Vec<_>>()
        };
        assert_eq!(due(&mut expiring, 99), []);
        assert_eq!(due(&mut expiring, 299), [("y".to_owned(), 6)]);
        assert_eq!(due(&mut expiring, 300), [("x".to_owned(), 8)]);
        assert!(expiring.keys.is_empty() && expiring.due.is_empty());
    }
}
