//! How subscriptions are stored: an entry for each pair of a user and a channel.
//!
//! The key is the length of the user's name in one byte, the user and the channel; the value is
//! empty. So a change writes what it changes, however many channels the user has, and all channels
//! of a user are read together.

use throng_core::records::{Change, Table};

use super::KeptPlan;

/// Why subscriptions cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    #[error("{0}")]
    Store(String),
    /// An entry that this build does not write.
    #[error("an entry is none of a user and a channel")]
    Entry,
}

/// The change that makes a user follow a channel, or follow it no more.
fn change(user: &str, channel: &str, is_followed: bool) -> Change {
    debug_assert!(user.len() <= u8::MAX.into(), "names are short");
    let key = [&user_key(user), channel.as_bytes()].concat();
    let value = is_followed.then(Box::default);
    Change { table: Table::Subscriptions, key: key.into(), value }
}

/// The part that the keys of all channels of a user begin with, and no other keys.
pub(super) fn user_key(user: &str) -> Vec<u8> {
    [&[user.len() as u8], user.as_bytes()].concat()
}

/// The user and the channel of a key of the table of subscriptions.
pub fn parse_stored(key: &[u8]) -> Option<(&str, &str)> {
    let (length, names) = key.split_first()?;
    let (user, channel) = names.split_at_checked(usize::from(*length))?;
    let [user, channel] = [user, channel].map(std::str::from_utf8);
    Some((user.ok()?, channel.ok()?))
        .filter(|(user, channel)| !user.is_empty() && !channel.is_empty())
}

impl KeptPlan {
    /// How many subscriptions it adds.
    pub fn added(&self) -> usize {
        self.add.len()
    }

    /// How many subscriptions it removes.
    pub fn removed(&self) -> usize {
        self.remove.len()
    }

    /// The changes to make in a store.
    pub fn changes(&self, user: &str) -> impl Iterator<Item = Change> {
        let add = self.add.iter().map(move |channel| change(user, channel, true));
        add.chain(self.remove.iter().map(move |channel| change(user, channel, false)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_both_names() {
        for (user, channel) in [("ann", "news"), ("é", "a/b"), (&*"u".repeat(255), "c")] {
            let Change { key, value, .. } = change(user, channel, true);
            assert_eq!((parse_stored(&key), value), (Some((user, channel)), Some(Box::default())));
            assert_eq!(change(user, channel, false).value, None);
        }
        for bad in [&b""[..], b"\0news", b"\x03ann", b"\x05ann", b"\x01\xffnews", b"\x01a\xff"] {
            assert_eq!(parse_stored(bad), None, "{bad:?}");
        }
    }
}
