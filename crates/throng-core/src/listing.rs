//! Lists of all channels or users, for server keys that may read them.
//!
//! A server may have millions of channels, so an engine never visits all of them at once: a list is
//! read in [`ListStep`]s, each of which visits a few channels. Between two steps others get the
//! locks. The order is the order of the engine's storage: it needs no sorting and stays the same
//! while channels come and go, so a list names each channel that exists throughout exactly once. It
//! names some of the others.
//!
//! Several processes that serve the same channels have no common storage. Their list is in an order
//! that all of them know, the hash of names: each process selects its [part](ListPart) of a page,
//! and the parts are merged. That costs a pass over all channels for each page, which reads two
//! bytes of most of them. Logs outside the memory have no such bytes: their names are kept in an
//! [index](NameIndex) while lists are read.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::str::FromStr;

use crate::glob::glob;
use crate::id::MessageId;
use crate::name::{ChannelName, Kind, NAME_BYTES_MAX};

/// Channels that one step of a list looks at, at most. An engine holds a lock meanwhile, for some
/// ten microseconds.
pub(crate) const STEP_CHANNELS_MAX: usize = 128;

/// A place in the storage of an engine. It means nothing to another engine, or to the same one
/// after it was thawed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListPlace(pub u64);

/// A channel or user of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedChannel {
    /// Where it is stored.
    pub place: ListPlace,
    /// The name of the channel or user.
    pub name: ChannelName,
    pub subscribers: u64,
    /// The id of the newest message.
    pub head: MessageId,
    /// The number of messages that the log keeps.
    pub messages: usize,
}

/// The result of one step of a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListStep {
    /// The channels or users in the order of their places, a hundred or so.
    pub channels: Vec<ListedChannel>,
    /// The place after which the next step begins; `None` at the end of the list.
    pub next: Option<ListPlace>,
}

/// Channels whose names one part of a page looks at, about and at most, so that it takes some
/// milliseconds however few match.
pub(crate) const PART_CHANNELS_MAX: usize = 16_384;

/// Bytes of all entries of a part, about and at most: parts travel between processes.
const PART_BYTES_MAX: usize = 256 << 10;

/// Bytes of an entry besides its name.
const ENTRY_BYTES: usize = 128;

/// The bits of an order that a channel keeps.
const ORDER_SHIFT: u32 = u64::BITS - u16::BITS;

/// The place of a name in the lists of several processes. It means the same to all of them, and
/// after a restart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListPosition {
    order: u64,
    /// Empty for the place before all names of this order.
    name: Box<str>,
}

impl ListPosition {
    /// The place of a name.
    pub fn of(name: &str) -> ListPosition {
        ListPosition { order: order(name), name: name.into() }
    }

    /// The place before all names whose order begins with these bits; `None` behind all names.
    pub(crate) fn before(prefix: u32) -> Option<ListPosition> {
        let prefix = u16::try_from(prefix).ok()?;
        Some(ListPosition { order: u64::from(prefix) << ORDER_SHIFT, name: "".into() })
    }

    /// The first bits of the order.
    pub(crate) fn prefix(&self) -> u16 {
        (self.order >> ORDER_SHIFT) as u16
    }
}

/// Only hexadecimal digits.
impl fmt::Display for ListPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.order)?;
        self.name.bytes().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The text is none of a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a position in a list")]
pub struct NoPosition;

impl FromStr for ListPosition {
    type Err = NoPosition;

    fn from_str(text: &str) -> Result<ListPosition, NoPosition> {
        let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return Err(NoPosition) };
        let byte = |pair: &[u8; 2]| {
            let digit = |digit: u8| char::from(digit).to_digit(16);
            Some((digit(pair[0])? << 4 | digit(pair[1])?) as u8)
        };
        let bytes: Option<Vec<u8>> = pairs.iter().map(byte).collect();
        let bytes = bytes.ok_or(NoPosition)?;
        let (order, name) = bytes.split_first_chunk().ok_or(NoPosition)?;
        let name = std::str::from_utf8(name).map_err(|_| NoPosition)?;
        if name.len() > NAME_BYTES_MAX {
            return Err(NoPosition);
        }
        Ok(ListPosition { order: u64::from_be_bytes(*order), name: name.into() })
    }
}

/// FNV-1a, whose bits are then mixed. All versions have to agree on it. It has no secret:
/// names chosen to have the same order gain nothing, because the name itself decides between them.
fn order(name: &str) -> u64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mixed = (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 29
}

/// The first bits of a name's order, which its channel keeps.
pub(crate) fn order_prefix(name: &str) -> u16 {
    (order(name) >> ORDER_SHIFT) as u16
}

/// A page of the list that several processes have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListQuery {
    pub kind: Kind,
    /// The end of the page before.
    pub after: Option<ListPosition>,
    /// Only names that match it, in which `*` stands for any text.
    pub pattern: Option<Box<str>>,
    /// Entries, at most.
    pub limit: usize,
}

/// One process's part of a page.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListPart {
    /// In the order of positions. Their places mean nothing.
    pub channels: Vec<ListedChannel>,
    /// Up to here it names every channel; `None` if it is the end of the list.
    pub reached: Option<ListPosition>,
}

impl ListPart {
    /// A part that names no channel yet: the page after it begins where this one does.
    pub fn nothing_yet(query: &ListQuery) -> ListPart {
        let reached = query.after.clone().or_else(|| ListPosition::before(0));
        ListPart { channels: Vec::new(), reached }
    }

    /// The page of which these are the parts: at most `limit` channels for which `is_wanted`.
    /// Subscribers of a channel add up, and the newest head counts. Of one log, the longest part
    /// counts; logs of different epochs are logs of different processes, whose messages add up.
    pub fn merge(
        parts: Vec<ListPart>,
        limit: usize,
        is_wanted: impl Fn(&ListedChannel) -> bool,
    ) -> ListPart {
        let reached = parts.iter().filter_map(|part| part.reached.clone()).min();
        let mut merged = BTreeMap::<ListPosition, ListedChannel>::new();
        for listed in parts.into_iter().flat_map(|part| part.channels) {
            let position = ListPosition::of(listed.name.name());
            let is_known = reached.as_ref().is_none_or(|reached| position <= *reached);
            if !is_known || !is_wanted(&listed) {
                continue;
            }
            let none = || ListedChannel { subscribers: 0, messages: 0, ..listed.clone() };
            let entry = merged.entry(position).or_insert_with(none);
            entry.subscribers = entry.subscribers.saturating_add(listed.subscribers);
            entry.messages = if listed.head.epoch == entry.head.epoch {
                entry.messages.max(listed.messages)
            } else {
                entry.messages.saturating_add(listed.messages)
            };
            if listed.head.offset > entry.head.offset {
                entry.head = listed.head;
            }
        }
        let cut = merged.keys().nth(limit).is_some();
        let last = merged.keys().nth(limit.saturating_sub(1)).cloned();
        let reached = if cut { last } else { reached };
        ListPart { channels: merged.into_values().take(limit).collect(), reached }
    }
}

/// Selects one process's part of a page from its channels, which come in any order.
#[derive(Debug)]
pub(crate) struct Selection<'a> {
    query: &'a ListQuery,
    /// The first bits of orders that are looked at: from here, and to the second, exclusively.
    prefixes: (u16, u32),
    first: BTreeMap<ListPosition, ListedChannel>,
    bytes: usize,
    is_cut: bool,
}

impl<'a> Selection<'a> {
    /// A selection among about so many channels.
    pub(crate) fn among(channels: usize, query: &'a ListQuery) -> Selection<'a> {
        let all = usize::from(u16::MAX) + 1;
        let span = (all * PART_CHANNELS_MAX / channels.max(1)).clamp(1, all);
        let from = query.after.as_ref().map_or(0, ListPosition::prefix);
        let prefixes = (from, u32::from(from) + span as u32);
        Selection { query, prefixes, first: BTreeMap::new(), bytes: 0, is_cut: false }
    }

    /// True if a channel with this prefix of its order may be in the part.
    pub(crate) fn may_have(&self, prefix: u16) -> bool {
        prefix >= self.prefixes.0 && u32::from(prefix) < self.prefixes.1
    }

    /// The position of a channel that is in the part as far as is known.
    pub(crate) fn position(&self, name: &str) -> Option<ListPosition> {
        let position = ListPosition::of(name);
        let is_after = self.query.after.as_ref().is_none_or(|after| position > *after);
        let last = self.first.keys().next_back().filter(|_| self.is_cut);
        let is_before = last.is_none_or(|last| position < *last);
        let matches = || self.query.pattern.as_ref().is_none_or(|pattern| glob(pattern, name));
        (is_after && is_before && matches()).then_some(position)
    }

    pub(crate) fn kind(&self) -> Kind {
        self.query.kind
    }

    /// Adds a channel. If the part has too many then, the last one goes.
    pub(crate) fn add(&mut self, position: ListPosition, listed: ListedChannel) {
        self.bytes += position.name.len() + ENTRY_BYTES;
        self.first.insert(position, listed);
        while self.first.len() > self.query.limit.max(1) || self.bytes > PART_BYTES_MAX {
            let Some((last, _)) = self.first.pop_last() else { return };
            self.bytes -= last.name.len() + ENTRY_BYTES;
            self.is_cut = true;
            // Nothing behind it is in the part.
            self.prefixes.1 = u32::from(last.prefix()) + 1;
        }
    }

    pub(crate) fn finish(self) -> ListPart {
        let last = self.first.keys().next_back().cloned();
        let reached = if self.is_cut { last } else { ListPosition::before(self.prefixes.1) };
        ListPart { channels: self.first.into_values().collect(), reached }
    }
}

/// Names of an index that one page looks at, at most: some hundred microseconds.
const INDEX_LOOKS_MAX: usize = 4_096;

/// The names of logs outside the memory, in the order of the lists of several processes. It may
/// have names whose logs are gone: the caller looks at each log for a page.
#[derive(Debug)]
pub struct NameIndex<T> {
    names: BTreeMap<ListPosition, T>,
}

impl<T> Default for NameIndex<T> {
    fn default() -> NameIndex<T> {
        NameIndex { names: BTreeMap::new() }
    }
}

impl<T> NameIndex<T> {
    /// The number of names.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// True if there are no names.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The entry of a name, which is added if it is not there.
    pub fn entry(&mut self, name: &str) -> &mut T
    where
        T: Default,
    {
        self.names.entry(ListPosition::of(name)).or_default()
    }

    /// Removes a name, if it is there.
    pub fn remove(&mut self, name: &str) {
        self.names.remove(&ListPosition::of(name));
    }

    /// Removes the names whose entries are not to be kept.
    pub fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        self.names.retain(|_, entry| keep(entry));
    }

    /// The names of a page with their entries, and how far it reaches; `None` if to the end.
    pub fn page(&self, query: &ListQuery) -> (Vec<(&str, &T)>, Option<ListPosition>) {
        let after = query.after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = self.names.range((after, Bound::Unbounded)).peekable();
        let (mut found, mut bytes, mut looks) = (Vec::new(), 0, 0);
        while let Some((position, entry)) = rest.next() {
            looks += 1;
            if query.pattern.as_ref().is_none_or(|pattern| glob(pattern, &position.name)) {
                bytes += position.name.len() + ENTRY_BYTES;
                found.push((&*position.name, entry));
            }
            let is_full = found.len() >= query.limit.max(1)
                || bytes >= PART_BYTES_MAX
                || looks >= INDEX_LOOKS_MAX;
            if is_full && rest.peek().is_some() {
                return (found, Some(position.clone()));
            }
        }
        (found, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Epoch;

    fn listed(name: &str, subscribers: u64, offset: u64) -> ListedChannel {
        let epoch = Epoch::numbered(7);
        ListedChannel {
            place: ListPlace(0),
            name: ChannelName::channel(name),
            subscribers,
            head: MessageId { epoch, offset },
            messages: offset as usize,
        }
    }

    /// The answer of a process with these channels to a query.
    fn part(channels: &[&ListedChannel], query: &ListQuery) -> ListPart {
        let mut selection = Selection::among(channels.len(), query);
        for channel in channels {
            let name = channel.name.name();
            if selection.may_have(order_prefix(name))
                && let Some(position) = selection.position(name)
            {
                selection.add(position, (*channel).clone());
            }
        }
        selection.finish()
    }

    fn query(limit: usize, after: Option<ListPosition>) -> ListQuery {
        ListQuery { kind: Kind::Channel, after, pattern: None, limit }
    }

    #[test]
    fn a_position_is_read_as_it_is_written() {
        for name in ["", "a", "rooms/é", &"n".repeat(NAME_BYTES_MAX)] {
            let position = ListPosition::of(name);
            assert_eq!(position.to_string().parse(), Ok(position));
        }
        for bad in ["", "7", "00112233445566", "00112233445566zz", "+011223344556677"] {
            assert_eq!(bad.parse::<ListPosition>(), Err(NoPosition), "{bad}");
        }
        let long = ListPosition::of(&"n".repeat(NAME_BYTES_MAX + 1)).to_string();
        assert!(long.parse::<ListPosition>().is_err());
    }

    /// Other versions have the same order.
    #[test]
    fn the_order_of_names_is_fixed() {
        assert_eq!(ListPosition::of("news").to_string(), "a822fa0240c862f46e657773");
        assert_eq!(ListPosition::of("").order, order(""));
    }

    #[test]
    fn merged_pages_name_every_channel_once() {
        let all: Vec<_> = (0..500).map(|nth| listed(&format!("room-{nth}"), nth, nth)).collect();
        // The first process has every second channel, the other one every third.
        let of = |step: usize| all.iter().step_by(step).collect::<Vec<_>>();
        let (mut names, mut subscribers, mut after) = (Vec::new(), 0, None);
        loop {
            let query = query(7, after);
            let parts = vec![part(&of(2), &query), part(&of(3), &query)];
            let page = ListPart::merge(parts, 7, |_| true);
            assert!(page.channels.len() <= 7);
            subscribers += page.channels.iter().map(|listed| listed.subscribers).sum::<u64>();
            names.extend(page.channels.into_iter().map(|listed| listed.name));
            after = page.reached;
            if after.is_none() {
                break;
            }
        }
        let expected = (0..500).filter(|nth| nth % 2 == 0 || nth % 3 == 0).count();
        let twice: u64 = (0..500).filter(|nth| nth % 6 == 0).sum();
        let once: u64 = (0..500).filter(|nth| nth % 2 == 0 || nth % 3 == 0).sum();
        assert_eq!((names.len(), subscribers), (expected, once + twice));
        names.sort();
        names.dedup();
        assert_eq!(names.len(), expected);
    }

    #[test]
    fn of_one_channel_the_newest_head_counts() {
        let parts = [listed("a", 2, 9), listed("a", 3, 11), listed("a", 4, 10)];
        let parts = parts.map(|one| ListPart { channels: vec![one], reached: None }).into();
        let page = ListPart::merge(parts, 9, |_| true);
        let of = |listed: &ListedChannel| (listed.subscribers, listed.head.offset, listed.messages);
        assert_eq!(page.channels.iter().map(of).collect::<Vec<_>>(), [(9, 11, 11)]);
    }

    #[test]
    fn messages_of_different_logs_add_up() {
        let own = |nth, offset| ListedChannel {
            head: MessageId { epoch: Epoch::numbered(nth), offset },
            ..listed("a", 1, offset)
        };
        let parts = [own(1, 4), own(2, 7), own(1, 3)];
        let parts = parts.map(|one| ListPart { channels: vec![one], reached: None }).into();
        let ListPart { channels, .. } = ListPart::merge(parts, 9, |_| true);
        assert_eq!((channels[0].subscribers, channels[0].messages), (3, 14));
        assert_eq!(channels[0].head, own(2, 7).head);
    }

    #[test]
    fn pages_of_an_index_name_each_log_once() {
        let mut index = NameIndex::<u64>::default();
        let count = 3 * INDEX_LOOKS_MAX as u64;
        (0..count).for_each(|nth| *index.entry(&format!("room-{nth}")) = nth);
        index.remove("room-7");
        let read = |query: ListQuery| {
            let (mut all, mut pages, mut after) = (Vec::new(), 0, None);
            loop {
                let (found, reached) = index.page(&ListQuery { after, ..query.clone() });
                assert!(found.len() <= query.limit);
                all.extend(found.into_iter().map(|(_, nth)| *nth));
                pages += 1;
                after = reached;
                if after.is_none() {
                    all.sort_unstable();
                    return (all, pages);
                }
            }
        };
        let expected: Vec<u64> = (0..count).filter(|nth| *nth != 7).collect();
        assert_eq!(read(query(1_000, None)), (expected, 13));
        let one = ListQuery { pattern: Some("room-*77".into()), ..query(1_000, None) };
        let expected: Vec<u64> = (0..count).filter(|nth| nth % 100 == 77).collect();
        assert_eq!(read(one), (expected, 3), "pages end where they have looked at enough");
        let none = NameIndex::<u64>::default();
        assert_eq!(none.page(&query(7, None)), (Vec::new(), None));
    }

    #[test]
    fn a_part_that_knows_nothing_yet_ends_where_it_begins() {
        let all = (0..9).map(|nth| listed(&format!("room-{nth}"), 1, 1)).collect();
        let known = ListPart { channels: all, reached: None };
        for query in [query(7, None), query(7, Some(ListPosition::of("room-3")))] {
            let nothing = ListPart::nothing_yet(&query);
            let page = ListPart::merge(vec![known.clone(), nothing.clone()], 7, |_| true);
            assert_eq!(page.reached, nothing.reached);
            assert!(page.reached.is_some());
            let after = |page: &ListPart| {
                let named = page.channels.iter().map(|one| ListPosition::of(one.name.name()));
                named.filter(|position| Some(position) > query.after.as_ref()).count()
            };
            assert_eq!(after(&page), 0);
        }
    }

    #[test]
    fn a_part_ends_where_it_has_looked_at_enough() {
        let all: Vec<_> = (0..3_000).map(|nth| listed(&format!("room-{nth}"), 1, 1)).collect();
        let all: Vec<_> = all.iter().collect();
        let none = ListQuery { pattern: Some("x*".into()), ..query(7, None) };
        assert_eq!(part(&all, &none), ListPart::default());
        // As if it were one of many.
        let mut selection = Selection::among(PART_CHANNELS_MAX * 4, &none);
        assert!(selection.may_have(0x3fff) && !selection.may_have(0x4000));
        assert_eq!(selection.position("room-1"), None);
        selection.is_cut = false;
        let reached = selection.finish().reached.expect("there is more");
        assert_eq!(reached.to_string(), "4000000000000000");
        let next = ListQuery { after: Some(reached), ..none };
        assert!(Selection::among(PART_CHANNELS_MAX * 4, &next).may_have(0x4000));
    }

    #[test]
    fn a_part_with_long_names_is_cut_early() {
        let long = "n".repeat(NAME_BYTES_MAX - 4);
        let all: Vec<_> = (1_000..3_000).map(|nth| listed(&format!("{nth}{long}"), 1, 1)).collect();
        let all: Vec<_> = all.iter().collect();
        let first = part(&all, &query(1_000, None));
        assert!((500..800).contains(&first.channels.len()), "{}", first.channels.len());
        let last = first.channels.last().map(|listed| ListPosition::of(listed.name.name()));
        assert_eq!(first.reached, last);
    }
}
