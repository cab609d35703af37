//! Bookmarks: how far users had come in channels whose connections have died, for a while.
//!
//! A dead connection leaves one in each of its channels whose [rule](crate::Rule::resume) says so,
//! and the next subscription of the user to the channel takes it. Several connections of a user
//! that die share a bookmark, which is taken as many times: at the lowest of their places where
//! nothing may be lost, at the highest where nothing may come twice. So it does not matter which
//! of the user's pages comes back first.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::id::MessageId;
use crate::name::{ChannelName, Kind};
use crate::rules::ResumeRule;

/// The memory of all bookmarks, roughly. Beyond it the oldest ones go of the application that has
/// the most.
const BYTES_MAX: usize = if cfg!(test) { 1 << 20 } else { 64 << 20 };

/// The bookmarks of a user: as many as a page with many channels leaves. Beyond it the oldest go.
const OF_USER_MAX: usize = 256;

/// Those that are looked at for their time in one call: a tenth of a millisecond's work or so.
const EXPIRED_MAX: usize = 1_000;

/// What a bookmark takes beside its names: the structs, and its places in the tables.
const ENTRY_BYTES: usize = 160;

/// What its place in the order of leaving takes, and that of one that has been left again.
const ORDER_BYTES: usize = 32;

/// Counts of bookmarks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BookmarkMetrics {
    /// Those that wait for their users.
    pub bookmarks: u64,
    /// Dead subscriptions that have left one since the start.
    pub left: u64,
    /// Subscriptions that have taken one.
    pub taken: u64,
    /// Those that nobody has taken in time.
    pub expired: u64,
    /// Those dropped because there were too many.
    pub dropped: u64,
    /// Those of other processes that have not answered in time, which may have given theirs away.
    pub unanswered: u64,
}

/// The keys of a bookmark between processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BookmarkKeys {
    /// Of the channel alone.
    pub channel: u64,
    /// Of the user in it.
    pub user: u64,
}

impl BookmarkKeys {
    /// The keys of a user's bookmark in a channel: the same in every process and build.
    pub fn of(user: &str, channel: &ChannelName) -> BookmarkKeys {
        let mut hash = sha1_smol::Sha1::new();
        hash.update(channel.key().as_bytes());
        let of_channel = hash.digest().bytes();
        // No name contains it.
        hash.update(&[0]);
        hash.update(user.as_bytes());
        let number = |bytes: [u8; 20]| u64::from_le_bytes(std::array::from_fn(|at| bytes[at]));
        BookmarkKeys { channel: number(of_channel), user: number(hash.digest().bytes()) }
    }
}

/// A bookmark of a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bookmark {
    pub(crate) channel: ChannelName,
    /// The last message that the user need not be sent again.
    pub(crate) place: MessageId,
    /// How many subscriptions may take it.
    pub(crate) count: u32,
    pub(crate) until_ms: u64,
}

#[derive(Debug)]
struct Entry {
    bookmark: Bookmark,
    /// Its place in the order of leaving.
    number: u64,
}

/// All bookmarks of a server.
#[derive(Debug, Default)]
pub(crate) struct Bookmarks {
    table: Mutex<Table>,
    /// How many there are: mostly none, and no lock is taken.
    count: AtomicU64,
}

#[derive(Debug, Default)]
struct Table {
    /// By user, those left last at the end.
    users: HashMap<Arc<str>, Vec<Entry>>,
    /// Of each application that has any, by the beginning of its names.
    pots: HashMap<Box<str>, Pot>,
    /// Channels that have any. Those of users themselves are left out: nobody else follows them.
    channels: HashMap<ChannelName, u32>,
    next: u64,
    len: u64,
    bytes: usize,
    counts: BookmarkMetrics,
}

/// The bookmarks of an application's users.
#[derive(Debug, Default)]
struct Pot {
    /// The numbers of entries and their users, oldest first. Those that are gone stay until they
    /// come to the front.
    order: VecDeque<(u64, Arc<str>)>,
    /// Those that are not gone.
    len: u64,
    bytes: usize,
}

/// The application of a user: its names have a prefix.
fn app_of(user: &str) -> &str {
    user.split_once('/').map_or("", |(app, _)| app)
}

impl Bookmarks {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection of a user has died.
    pub(crate) fn leave(&self, user: &str, bookmark: Bookmark, rule: ResumeRule) {
        let mut table = self.lock();
        table.counts.left += u64::from(bookmark.count);
        table.add(user, bookmark, rule);
        table.shrink();
        self.note(&table);
    }

    /// One of another process, which has counted it.
    pub(crate) fn thaw(&self, user: &str, bookmark: Bookmark, rule: ResumeRule) {
        let mut table = self.lock();
        table.add(user, bookmark, rule);
        self.note(&table);
    }

    /// Other processes have said where theirs of a user are, and one of them has given its away.
    pub(crate) fn bring(
        &self,
        (user, bookmark): (&str, Bookmark),
        rule: ResumeRule,
        is_given: bool,
    ) {
        let mut table = self.lock();
        let begun_ms = bookmark.until_ms.saturating_sub(rule.for_ms);
        let all = table.users.get_mut(user).into_iter().flatten();
        let own = all.map(|entry| &mut entry.bookmark).find(|it| it.channel == bookmark.channel);
        match own.filter(|own| own.until_ms > begun_ms) {
            Some(own) => {
                let (count, until_ms) = (own.count, own.until_ms);
                let both = both(own.clone(), bookmark, rule);
                *own = Bookmark { count: count + u32::from(is_given), until_ms, ..both };
            }
            None if is_given => table.add(user, bookmark, rule),
            None => {}
        }
        table.shrink();
        self.note(&table);
    }

    /// Another process was to give one, and has not answered in time.
    pub(crate) fn note_unanswered(&self) {
        self.lock().counts.unanswered += 1;
    }

    /// Takes it for another process.
    pub(crate) fn give(&self, now_ms: u64, user: &str, channel: &ChannelName) -> Option<MessageId> {
        let given = self.take(now_ms, user, channel)?;
        self.lock().counts.taken -= 1;
        Some(given)
    }

    /// Until when a user may go on in a channel; 0 if the user may not.
    pub(crate) fn until_ms(&self, user: &str, channel: &ChannelName) -> u64 {
        let table = self.lock();
        let mut all = table.users.get(user).into_iter().flatten().map(|entry| &entry.bookmark);
        all.find(|it| it.channel == *channel).map_or(0, |it| it.until_ms)
    }

    /// The place at which the next subscription of a user to a channel begins; `None` if it begins
    /// anew.
    pub(crate) fn find(&self, now_ms: u64, user: &str, channel: &ChannelName) -> Option<MessageId> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let table = self.lock();
        let mut all = table.users.get(user)?.iter().map(|entry| &entry.bookmark);
        let found = all.find(|it| it.channel == *channel && it.until_ms > now_ms)?;
        Some(found.place)
    }

    /// True if any user may go on in a channel.
    pub(crate) fn has_any_in(&self, channel: &ChannelName) -> bool {
        self.count.load(Ordering::Relaxed) > 0 && self.lock().channels.contains_key(channel)
    }

    /// Takes it for one subscription.
    pub(crate) fn take(&self, now_ms: u64, user: &str, channel: &ChannelName) -> Option<MessageId> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut table = self.lock();
        let all = table.users.get_mut(user)?;
        let at = all.iter().position(|entry| entry.bookmark.channel == *channel)?;
        let Bookmark { place, until_ms, ref mut count, .. } = all[at].bookmark;
        if until_ms <= now_ms {
            return None;
        }
        *count -= 1;
        if *count == 0 {
            table.remove(user, at);
        }
        table.counts.taken += 1;
        self.note(&table);
        Some(place)
    }

    /// Forgets those of a user.
    pub(crate) fn forget(&self, user: &str) {
        let mut table = self.lock();
        while table.users.contains_key(user) {
            table.remove(user, 0);
        }
        self.note(&table);
    }

    /// Drops those whose time is over, as far as they are the oldest.
    pub(crate) fn expire(&self, now_ms: u64) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut table = self.lock();
        table.expire(now_ms);
        self.note(&table);
    }

    pub(crate) fn metrics(&self) -> BookmarkMetrics {
        let table = self.lock();
        BookmarkMetrics { bookmarks: self.count.load(Ordering::Relaxed), ..table.counts }
    }

    /// Calls `each` with every user and what it has.
    pub(crate) fn each<E>(
        &self,
        mut each: impl FnMut(&str, &[&Bookmark]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.lock().users.iter().try_for_each(|(user, all)| {
            let all: Vec<_> = all.iter().map(|entry| &entry.bookmark).collect();
            each(user, &all)
        })
    }

    fn note(&self, table: &Table) {
        self.count.store(table.len, Ordering::Relaxed);
    }
}

impl Table {
    fn add(&mut self, user: &str, bookmark: Bookmark, rule: ResumeRule) {
        let number = self.next;
        self.next += 1;
        let user = match self.users.get_key_value(user) {
            Some((user, _)) => Arc::clone(user),
            None => user.into(),
        };
        let pot = self.pots.entry(app_of(&user).into()).or_default();
        pot.order.push_back((number, Arc::clone(&user)));
        let mut bytes = ORDER_BYTES;
        let all = self.users.entry(Arc::clone(&user)).or_default();
        match all.iter().position(|entry| entry.bookmark.channel == bookmark.channel) {
            Some(at) => {
                let before = all.remove(at).bookmark;
                let bookmark = both(before, bookmark, rule);
                all.push(Entry { bookmark, number });
            }
            None => {
                bytes += bytes_of(&user, &bookmark);
                pot.len += 1;
                self.len += 1;
                if bookmark.channel.kind() != Kind::User {
                    *self.channels.entry(bookmark.channel.clone()).or_default() += 1;
                }
                all.push(Entry { bookmark, number });
            }
        }
        pot.bytes += bytes;
        self.bytes += bytes;
        if self.users.get(&user).is_some_and(|all| all.len() > OF_USER_MAX) {
            self.counts.dropped += 1;
            self.remove(&user, 0);
        }
    }

    /// Drops the oldest of the application that has the most while all together take too much.
    fn shrink(&mut self) {
        while self.bytes > BYTES_MAX {
            let largest = self.pots.iter().max_by_key(|(_, pot)| pot.bytes);
            let Some(app) = largest.map(|(app, _)| app.clone()) else { return };
            if let Some((user, at, _)) = self.oldest(&app) {
                self.counts.dropped += 1;
                self.remove(&user, at);
            }
            self.pop_order(&app);
        }
    }

    /// Drops those whose time is over, as far as they are the oldest of their applications.
    fn expire(&mut self, now_ms: u64) {
        let mut left = EXPIRED_MAX;
        let apps: Vec<_> = self.pots.keys().cloned().collect();
        for app in apps {
            while left > 0 && self.pots.contains_key(&app) {
                match self.oldest(&app) {
                    Some((_, _, until_ms)) if until_ms > now_ms => break,
                    Some((user, at, _)) => {
                        self.counts.expired += 1;
                        self.remove(&user, at);
                    }
                    None => {}
                }
                self.pop_order(&app);
                left -= 1;
            }
        }
    }

    /// What comes first in an application's order: its user, its place among those of the user, and
    /// until when it is kept; `None` if it is gone.
    fn oldest(&self, app: &str) -> Option<(Arc<str>, usize, u64)> {
        let (number, user) = self.pots.get(app)?.order.front()?;
        let (at, until_ms) = self.place_of(user, *number)?;
        Some((Arc::clone(user), at, until_ms))
    }

    fn pop_order(&mut self, app: &str) {
        if let Some(pot) = self.pots.get_mut(app)
            && pot.order.pop_front().is_some()
        {
            pot.bytes -= ORDER_BYTES;
            self.bytes -= ORDER_BYTES;
        }
    }

    /// The place of an entry among those of its user, and until when it is kept; `None` if it is
    /// gone.
    fn place_of(&self, user: &str, number: u64) -> Option<(usize, u64)> {
        let all = self.users.get(user)?;
        let at = all.iter().position(|entry| entry.number == number)?;
        Some((at, all[at].bookmark.until_ms))
    }

    fn remove(&mut self, user: &str, at: usize) {
        let Some(all) = self.users.get_mut(user) else { return };
        let entry = all.remove(at);
        let is_last = all.is_empty();
        self.len -= 1;
        if let Some(count) = self.channels.get_mut(&entry.bookmark.channel) {
            *count -= 1;
            if *count == 0 {
                self.channels.remove(&entry.bookmark.channel);
            }
        }
        if is_last {
            self.users.remove(user);
        }
        let Some(pot) = self.pots.get_mut(app_of(user)) else { return };
        let mut bytes = bytes_of(user, &entry.bookmark);
        pot.len -= 1;
        if pot.len == 0 {
            // Only those are left that are gone.
            bytes = pot.bytes;
            self.pots.remove(app_of(user));
        } else {
            pot.bytes -= bytes;
        }
        self.bytes -= bytes;
    }
}

/// What two subscriptions of a user leave in a channel. If the time of the one before is over, it
/// has left nothing.
fn both(before: Bookmark, newer: Bookmark, rule: ResumeRule) -> Bookmark {
    if before.until_ms.saturating_add(rule.for_ms) <= newer.until_ms {
        return newer;
    }
    let offset = if before.place.epoch != newer.place.epoch {
        // Nobody goes on in a log that is lost.
        newer.place.offset
    } else if rule.is_at_least_once {
        before.place.offset.min(newer.place.offset)
    } else {
        before.place.offset.max(newer.place.offset)
    };
    Bookmark {
        place: MessageId { offset, ..newer.place },
        count: before.count.saturating_add(newer.count),
        until_ms: before.until_ms.max(newer.until_ms),
        ..newer
    }
}

fn bytes_of(user: &str, bookmark: &Bookmark) -> usize {
    ENTRY_BYTES + user.len() + bookmark.channel.key().len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Epoch;

    const RULE: ResumeRule = ResumeRule { is_at_least_once: true, for_ms: 30_000 };

    fn at(channel: &str, offset: u64, until_ms: u64) -> Bookmark {
        let place = MessageId { epoch: Epoch::numbered(1), offset };
        Bookmark { channel: ChannelName::channel(channel), place, count: 1, until_ms }
    }

    fn room() -> ChannelName {
        ChannelName::channel("room")
    }

    fn check(bookmarks: &Bookmarks) {
        let table = bookmarks.lock();
        let all = table.users.iter().flat_map(|(user, all)| all.iter().map(move |it| (user, it)));
        let bytes: usize = all.clone().map(|(user, entry)| bytes_of(user, &entry.bookmark)).sum();
        let order: usize = table.pots.values().map(|pot| pot.order.len()).sum();
        assert_eq!(table.bytes, bytes + order * ORDER_BYTES);
        assert_eq!(table.bytes, table.pots.values().map(|pot| pot.bytes).sum::<usize>());
        assert_eq!(table.len, table.pots.values().map(|pot| pot.len).sum::<u64>());
        assert_eq!(table.len as usize, all.clone().count());
        assert_eq!(bookmarks.count.load(Ordering::Relaxed), table.len);
        let of_users = |entry: &Entry| entry.bookmark.channel.kind() == Kind::User;
        let named = all.filter(|(_, entry)| !of_users(entry)).count();
        assert_eq!(table.channels.values().sum::<u32>() as usize, named);
    }

    #[test]
    fn each_is_taken_once_at_the_place_that_the_rule_wants() {
        for (is_at_least_once, place) in [(true, 3), (false, 5)] {
            let (bookmarks, rule) = (Bookmarks::default(), ResumeRule { is_at_least_once, ..RULE });
            for offset in [5, 3, 4] {
                bookmarks.leave("ann", at("room", offset, 1_000), rule);
            }
            for _ in 0..3 {
                assert_eq!(bookmarks.find(0, "ann", &room()).map(|it| it.offset), Some(place));
                assert_eq!(bookmarks.take(0, "ann", &room()).map(|it| it.offset), Some(place));
                check(&bookmarks);
            }
            assert_eq!((bookmarks.take(0, "ann", &room()), bookmarks.metrics().taken), (None, 3));
        }
    }

    #[test]
    fn one_whose_time_is_over_says_nothing_any_more() {
        let (bookmarks, for_ms) = (Bookmarks::default(), RULE.for_ms);
        bookmarks.leave("ann", at("room", 1, for_ms), RULE);
        bookmarks.leave("ann", at("room", 5, 2 * for_ms), RULE);
        assert_eq!(bookmarks.take(for_ms, "ann", &room()).map(|it| it.offset), Some(5));
        assert_eq!(bookmarks.take(for_ms, "ann", &room()), None);
        bookmarks.leave("ann", at("room", 6, 2 * for_ms), RULE);
        bookmarks.bring(("ann", at("room", 7, 3 * for_ms)), RULE, false);
        assert_eq!(bookmarks.find(2 * for_ms, "ann", &room()), None);
        bookmarks.bring(("ann", at("room", 8, 3 * for_ms)), RULE, true);
        assert_eq!(bookmarks.take(2 * for_ms, "ann", &room()).map(|it| it.offset), Some(8));
        assert_eq!(bookmarks.take(2 * for_ms, "ann", &room()), None);
        check(&bookmarks);
    }

    #[test]
    fn a_log_that_was_lost_is_nobodys_place() {
        let bookmarks = Bookmarks::default();
        bookmarks.leave("ann", at("room", 9, 1_000), RULE);
        let new = MessageId { epoch: Epoch::numbered(2), offset: 12 };
        bookmarks.leave("ann", Bookmark { place: new, ..at("room", 0, 1_000) }, RULE);
        assert_eq!(bookmarks.take(0, "ann", &room()), Some(new));
    }

    #[test]
    fn it_is_nobody_elses_and_ends_in_time() {
        let bookmarks = Bookmarks::default();
        bookmarks.leave("ann", at("room", 1, 1_000), RULE);
        bookmarks.leave("ann", at("hall", 1, 2_000), RULE);
        assert!(bookmarks.has_any_in(&room()) && !bookmarks.has_any_in(&ChannelName::user("a")));
        assert_eq!(bookmarks.take(0, "bob", &room()), None);
        assert_eq!(bookmarks.take(0, "ann", &ChannelName::user("room")), None);
        assert_eq!(bookmarks.take(1_000, "ann", &room()), None);
        bookmarks.expire(1_000);
        check(&bookmarks);
        let metrics = bookmarks.metrics();
        assert_eq!((metrics.bookmarks, metrics.left, metrics.expired), (1, 2, 1));
        bookmarks.forget("ann");
        check(&bookmarks);
        assert_eq!(bookmarks.metrics().bookmarks, 0);
        bookmarks.expire(1_000);
        assert_eq!(bookmarks.lock().bytes, 0, "nothing stays");
    }

    #[test]
    fn the_oldest_go_where_there_are_too_many() {
        let bookmarks = Bookmarks::default();
        for nth in 0..OF_USER_MAX + 3 {
            bookmarks.leave("ann", at(&nth.to_string(), 1, 1_000), RULE);
        }
        check(&bookmarks);
        let is_there = |name: &str| bookmarks.has_any_in(&ChannelName::channel(name));
        assert!(!is_there("2") && is_there("3"));
        assert_eq!(bookmarks.metrics().dropped, 3);
        let name = "x".repeat(200);
        for nth in 0..BYTES_MAX / 400 {
            bookmarks.leave(&format!("{name}{nth}"), at(&name, 1, 1_000), RULE);
        }
        assert!(bookmarks.lock().bytes <= BYTES_MAX && !is_there("3"));
        check(&bookmarks);
        // One that comes and goes all the time takes no more than others.
        for _ in 0..BYTES_MAX / ORDER_BYTES {
            bookmarks.leave("bob", at("room", 1, 1_000), RULE);
        }
        assert!(bookmarks.lock().bytes <= BYTES_MAX);
        check(&bookmarks);
    }

    #[test]
    fn an_application_with_many_pushes_out_its_own() {
        let bookmarks = Bookmarks::default();
        bookmarks.leave("shop/ann", at("shop/room", 1, 1_000), RULE);
        for nth in 0..BYTES_MAX / ENTRY_BYTES {
            bookmarks.leave(&format!("mall/{nth}"), at("mall/room", 1, 2_000), RULE);
        }
        check(&bookmarks);
        let dropped = bookmarks.metrics().dropped;
        assert!(dropped > 0 && bookmarks.lock().bytes <= BYTES_MAX);
        let room = ChannelName::channel("shop/room");
        assert!(bookmarks.find(0, "shop/ann", &room).is_some());
        while bookmarks.metrics().bookmarks > 0 {
            bookmarks.expire(2_000);
        }
        check(&bookmarks);
        assert!(bookmarks.lock().pots.is_empty() && bookmarks.metrics().dropped == dropped);
    }
}
