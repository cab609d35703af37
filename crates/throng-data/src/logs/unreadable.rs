//! Data that could not be read while something was written.
//!
//! An entry that cannot be read stops only what needs it: that is refused or waits, and all others
//! go on.

use throng_core::ChannelName;

use super::format::shown;
use crate::storage::StorageError;

/// How long something waits that needs what could not be read.
pub(super) const RETRY_MS: u64 = 60_000;

/// See the module.
#[derive(Debug, Default)]
pub struct Unreadable {
    pub count: u64,
    pub last: String,
}

impl Unreadable {
    pub(super) fn note(&mut self, channel: &ChannelName, error: &StorageError) {
        self.add(format!("{}: {error}", shown(channel)));
    }

    pub(super) fn add(&mut self, what: String) {
        self.count += 1;
        self.last = what;
    }

    pub(super) fn append(&mut self, other: Unreadable) {
        if other.count > 0 {
            self.count += other.count;
            self.last = other.last;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use throng_core::{Body, IDEMPOTENCY_MS, IdempotencyKey, Publication, Retention, Stamp};

    use super::super::{Appended, Entry, Logs, Writer};
    use super::*;
    use crate::logs::format;
    use crate::storage::memory::MemoryStorage;
    use crate::storage::{Space, Storage as _};
    use crate::sync_policy::SyncPolicy;

    const NOW_MS: u64 = 1_700_000_000_000;
    const TWO: Retention = Retention { max_messages: 2, max_bytes: 1 << 20, max_age_ms: 1_000 };

    fn name(channel: &str) -> ChannelName {
        ChannelName::channel(channel)
    }

    fn open(storage: &MemoryStorage) -> (Arc<Logs>, Writer) {
        let (logs, opened) = Logs::open(Arc::new(storage.clone()), "boot").expect("it opens");
        let logs = Arc::new(logs);
        let writer =
            Writer::begin(&logs, SyncPolicy::Always, opened.stamps).expect("it can be written");
        (logs, writer)
    }

    /// Publishes to both channels, with a key. Returns which are there.
    fn publish(writer: &mut Writer, now_ms: u64) -> [bool; 2] {
        let publications = ["damaged", "whole"].map(|channel| {
            let publication = Publication {
                idempotency_key: Some(now_ms.to_string().into()),
                ..Publication::new(name(channel), Body::Text("x".into()))
            };
            Entry::Publication(publication, TWO)
        });
        let appended = writer.append(now_ms, &publications, Vec::new(), &mut Stamp::default);
        let appended = appended.expect("the storage works");
        std::array::from_fn(|at| match appended[at] {
            Appended::New(_) => true,
            Appended::Unreadable => false,
            _ => panic!("a new key"),
        })
    }

    fn expire(writer: &mut Writer, now_ms: u64) {
        while writer.expire(now_ms, &|_| Some(TWO)).expect("the storage works") {}
    }

    fn kept(logs: &Logs, channel: &str) -> u64 {
        let bounds = logs.bounds(&name(channel)).expect("it is read");
        bounds.head.offset - bounds.floor
    }

    #[test]
    fn a_channel_whose_head_is_damaged_is_refused_alone() {
        let storage = MemoryStorage::default();
        assert_eq!(publish(&mut open(&storage).1, NOW_MS), [true, true]);
        storage.damage(Space::Heads, &format::name(&name("damaged")));
        let (logs, mut writer) = open(&storage);
        assert_eq!(publish(&mut writer, NOW_MS + 1), [false, true]);
        let told = writer.take_unreadable();
        assert_eq!(told.count, 1);
        assert_eq!(told.last, "channel \"damaged\": a checksum is wrong");
        expire(&mut writer, NOW_MS + 1_001);
        assert_eq!(kept(&logs, "whole"), 0, "all others expire");
        assert_eq!(writer.take_unreadable().count, 1);
        expire(&mut writer, NOW_MS + 1_002);
        assert_eq!(writer.take_unreadable().count, 0, "it is not tried again at once");
        expire(&mut writer, NOW_MS + 1_001 + RETRY_MS);
        assert_eq!(writer.take_unreadable().count, 1);
        writer.retry(&mut Stamp::default).expect("nothing is pending");
    }

    #[test]
    fn a_log_whose_oldest_message_is_damaged_goes_on() {
        let storage = MemoryStorage::default();
        let (logs, mut writer) = open(&storage);
        publish(&mut writer, NOW_MS);
        writer.retry(&mut Stamp::default).expect("nothing is pending");
        storage.damage(Space::Messages, &format::message(&name("damaged"), 1));
        for at_ms in [1, 2, 3] {
            assert_eq!(publish(&mut writer, NOW_MS + at_ms), [true, true]);
        }
        assert_eq!((kept(&logs, "damaged"), kept(&logs, "whole")), (2, 2), "it is dropped unread");
        assert!(writer.take_unreadable().count > 0);
        expire(&mut writer, NOW_MS + 2_000);
        assert_eq!((kept(&logs, "damaged"), kept(&logs, "whole")), (0, 0));
    }

    #[test]
    fn a_damaged_message_is_read_again_before_it_is_dropped() {
        let storage = MemoryStorage::default();
        let (logs, mut writer) = open(&storage);
        publish(&mut writer, NOW_MS);
        publish(&mut writer, NOW_MS + 500);
        writer.retry(&mut Stamp::default).expect("nothing is pending");
        storage.damage(Space::Messages, &format::message(&name("damaged"), 2));
        let mut left = |now_ms| {
            expire(&mut writer, now_ms);
            (kept(&logs, "damaged"), kept(&logs, "whole"), writer.take_unreadable().count)
        };
        assert_eq!(left(NOW_MS + 1_000), (1, 1, 1));
        assert_eq!(left(NOW_MS + 1_500), (1, 0, 0), "not yet");
        assert_eq!(left(NOW_MS + 1_000 + RETRY_MS), (0, 0, 1));
    }

    #[test]
    fn a_key_that_is_damaged_stands_for_itself_alone() {
        let storage = MemoryStorage::default();
        let (_, mut writer) = open(&storage);
        let text = IdempotencyKey::from(NOW_MS.to_string());
        let key = format::key(&name("damaged"), text.scoped());
        storage.damage(Space::Keys, &key);
        assert_eq!(publish(&mut writer, NOW_MS), [false, true]);
        assert_eq!(publish(&mut writer, NOW_MS + 1), [true, true]);
        expire(&mut writer, NOW_MS + 1 + IDEMPOTENCY_MS);
        let other = format::key(&name("whole"), text.scoped());
        assert_eq!(storage.get(Space::Keys, &other), Ok(None), "others are forgotten");
    }
}
