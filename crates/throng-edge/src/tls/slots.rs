//! The TLS state of a worker's connections, found by the numbers of their sockets.
//!
//! A connection has no room for an index: so a list has one for each socket, by its number. It is
//! empty as long as there is no TLS connection, and plain ones have a zero there.
//!
//! # Invariants
//!
//! * A slot belongs to one open socket. Whoever opens a socket takes what its number had before, so
//!   that keys never meet another connection.
//! * The state leaves a slot by a move ([`Slots::take`]).

use std::collections::{BTreeSet, HashMap};
use std::io;

use throng_core::slab::Slab;
use throng_tls::{CertifiedUser, CompactIncoming, Incoming, Outgoing};

use super::half::Half;
use super::whole::WholeHalves;
use crate::sys::key_pages::KeyPages;

/// The slots of a page: 32 KiB of the part that deliveries touch, 40 KiB of the other.
const PAGE_SLOTS: usize = 512;

/// By how many sockets their list grows at least.
const OF_SOCKET_MORE: usize = 256;

/// The part of a connection that a delivery touches: one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Hot {
    /// `None` until the handshake is done.
    pub(super) outgoing: Option<Outgoing>,
    /// The index of its [`Half`], plus one; 0 if nothing is half done. In a vacant slot the next
    /// vacant one.
    link: u32,
}

/// The part that is touched when the peer speaks.
#[derive(Debug)]
enum Cold {
    Compact(CompactIncoming),
    /// It is longer, and has this place in another table.
    Whole(u32),
}

const _: () = assert!(size_of::<Hot>() == 64);
// A parked connection: its state, its number of four bytes, and what a plain one has. The goal is
// 260 bytes in all.
const _: () = assert!(size_of::<Hot>() + size_of::<Option<Cold>>() + 4 <= 148);

#[derive(Debug)]
struct Page {
    hot: KeyPages<Hot>,
    /// `None` until the handshake is done.
    cold: KeyPages<Option<Cold>>,
    /// The first vacant slot; [`PAGE_SLOTS`] if there is none.
    vacant: u32,
    length: usize,
}

impl Page {
    fn new() -> io::Result<Page> {
        let mut next = 0;
        let hot = KeyPages::new(PAGE_SLOTS, || {
            next += 1;
            Hot { outgoing: None, link: next }
        })?;
        Ok(Page { hot, cold: KeyPages::new(PAGE_SLOTS, || None)?, vacant: 0, length: 0 })
    }
}

/// The place of a TLS connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot(u32);

impl Slot {
    fn page(self) -> usize {
        self.0 as usize / PAGE_SLOTS
    }

    fn at(self) -> usize {
        self.0 as usize % PAGE_SLOTS
    }
}

/// The state that leaves its slot.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) halves: Option<(Outgoing, Incoming)>,
    pub(super) half: Option<Half>,
    pub(super) user: Option<Box<CertifiedUser>>,
}

/// The TLS connections of a worker.
#[derive(Debug, Default)]
pub(super) struct Slots {
    /// The slot of each socket, plus one; 0 for a plain one.
    of_socket: Vec<u32>,
    /// `None` where the memory is freed.
    pages: Vec<Option<Page>>,
    /// The pages with a vacant slot. The first is filled first, so that others become empty.
    with_room: BTreeSet<usize>,
    halves: Slab<Half>,
    /// The receiving halves that have no compact form.
    whole: WholeHalves,
    /// The users of certificates, by slot. Most servers ask for no certificates.
    users: HashMap<u32, Box<CertifiedUser>>,
    length: usize,
}

impl Slots {
    /// True if there is no TLS connection.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// The slot of a socket; `None` for a plain one.
    #[inline]
    pub(super) fn find(&self, socket: u32) -> Option<Slot> {
        let slot = *self.of_socket.get(socket as usize)?;
        slot.checked_sub(1).map(Slot)
    }

    /// Gives a socket a slot, with something half done. Fails if there is no memory.
    pub(super) fn insert(&mut self, socket: u32, half: Half) -> io::Result<Slot> {
        debug_assert!(self.find(socket).is_none(), "the socket has a slot");
        let number = match self.with_room.first() {
            Some(&number) => number,
            None => self.add_page()?,
        };
        let page = self.pages[number].as_mut().expect("pages with room have memory");
        let at = page.vacant as usize;
        page.vacant = page.hot[at].link;
        page.length += 1;
        if page.vacant as usize == PAGE_SLOTS {
            self.with_room.remove(&number);
        }
        page.hot[at].link = self.halves.insert(half) + 1;
        let slot = Slot((number * PAGE_SLOTS + at) as u32);
        self.make_room(socket as usize);
        self.of_socket[socket as usize] = slot.0 + 1;
        self.length += 1;
        Ok(slot)
    }

    /// Makes the list of sockets long enough. It grows by an eighth and not by its double, so that
    /// a connection pays for its own four bytes.
    fn make_room(&mut self, socket: usize) {
        let length = self.of_socket.len();
        if socket >= length {
            let more = socket + 1 - length;
            if socket >= self.of_socket.capacity() {
                self.of_socket.reserve_exact(more.max(length / 8).max(OF_SOCKET_MORE));
            }
            self.of_socket.resize(socket + 1, 0);
        }
    }

    fn add_page(&mut self) -> io::Result<usize> {
        let page = Page::new()?;
        let freed = self.pages.iter().position(Option::is_none);
        let number = freed.unwrap_or(self.pages.len());
        if number == self.pages.len() {
            self.pages.push(None);
        }
        self.pages[number] = Some(page);
        self.with_room.insert(number);
        Ok(number)
    }

    /// Takes the state of a socket, which is a plain one from now on; `None` if it is one already.
    pub(super) fn take(&mut self, socket: u32) -> Option<Taken> {
        let slot = self.find(socket)?;
        self.of_socket[socket as usize] = 0;
        let page = self.pages[slot.page()].as_mut()?;
        let hot = &mut page.hot[slot.at()];
        let half = hot.link.checked_sub(1).and_then(|index| self.halves.remove(index));
        let outgoing = hot.outgoing.take();
        hot.link = page.vacant;
        let incoming = match page.cold[slot.at()].take() {
            Some(Cold::Compact(compact)) => Some(compact.whole()),
            Some(Cold::Whole(place)) => self.whole.take(place),
            None => None,
        };
        page.vacant = slot.at() as u32;
        page.length -= 1;
        self.length -= 1;
        self.with_room.insert(slot.page());
        // One page stays, so that a table that varies around its end does not map each time.
        if page.length == 0 && self.with_room.len() > 1 {
            self.with_room.remove(&slot.page());
            self.pages[slot.page()] = None;
        }
        if self.length == 0 {
            self.of_socket = Vec::new();
        }
        let user = if self.users.is_empty() { None } else { self.users.remove(&slot.0) };
        Some(Taken { halves: outgoing.zip(incoming), half, user })
    }

    /// The halves of a connection whose handshake is done, and the user of its certificate. Fails
    /// if there is no memory.
    pub(super) fn establish(
        &mut self,
        slot: Slot,
        outgoing: Outgoing,
        incoming: Incoming,
        user: Option<Box<CertifiedUser>>,
    ) -> io::Result<()> {
        let cold = match incoming.compact() {
            Ok(compact) => Cold::Compact(compact),
            Err(incoming) => Cold::Whole(self.whole.put(*incoming)?),
        };
        self.users.extend(user.map(|user| (slot.0, user)));
        let page = self.pages[slot.page()].as_mut().expect("a slot in use has a page");
        page.hot[slot.at()].outgoing = Some(outgoing);
        page.cold[slot.at()] = Some(cold);
        Ok(())
    }

    /// The part that deliveries touch.
    #[inline]
    pub(super) fn hot(&mut self, slot: Slot) -> &mut Hot {
        let page = self.pages[slot.page()].as_mut().expect("a slot in use has a page");
        &mut page.hot[slot.at()]
    }

    /// Calls `act` with both halves; `None` until the handshake is done.
    pub(super) fn with_both<R>(
        &mut self,
        slot: Slot,
        act: impl FnOnce(&mut Outgoing, &mut Incoming) -> R,
    ) -> Option<R> {
        let page = self.pages[slot.page()].as_mut()?;
        let outgoing = page.hot[slot.at()].outgoing.as_mut()?;
        let cold = &mut page.cold[slot.at()];
        if let Some(Cold::Whole(place)) = cold {
            return Some(act(outgoing, self.whole.get_mut(*place)?));
        }
        let Some(Cold::Compact(compact)) = cold.take() else { return None };
        let mut incoming = compact.whole();
        let result = act(outgoing, &mut incoming);
        // The suite stays, and so it is compact again.
        *cold = incoming.compact().ok().map(Cold::Compact);
        Some(result)
    }

    /// The user of the client's certificate; `None` if it names none.
    pub(super) fn user(&self, slot: Slot) -> Option<&CertifiedUser> {
        self.users.get(&slot.0).map(|user| &**user)
    }

    pub(super) fn is_established(&self, slot: Slot) -> bool {
        self.hot_ref(slot).is_some_and(|hot| hot.outgoing.is_some())
    }

    /// The half-done part; `None` if there is none.
    pub(super) fn half(&self, slot: Slot) -> Option<&Half> {
        self.halves.get(self.hot_ref(slot)?.link.checked_sub(1)?)
    }

    /// The half-done part; `None` if there is none.
    pub(super) fn half_mut(&mut self, slot: Slot) -> Option<&mut Half> {
        let index = self.hot_ref(slot)?.link.checked_sub(1)?;
        self.halves.get_mut(index)
    }

    /// The half-done part, made on demand.
    pub(super) fn half_or_new(&mut self, slot: Slot) -> &mut Half {
        if self.hot(slot).link == 0 {
            self.hot(slot).link = self.halves.insert(Half::default()) + 1;
        }
        let index = self.hot(slot).link - 1;
        self.halves.get_mut(index).expect("it is linked")
    }

    /// Frees what is half done once nothing is.
    pub(super) fn trim(&mut self, slot: Slot) {
        let link = self.hot(slot).link;
        let Some(index) = link.checked_sub(1) else { return };
        if self.is_established(slot) && self.halves.get(index).is_some_and(Half::is_idle) {
            self.hot(slot).link = 0;
            self.halves.remove(index);
        }
    }

    fn hot_ref(&self, slot: Slot) -> Option<&Hot> {
        Some(&self.pages[slot.page()].as_ref()?.hot[slot.at()])
    }
}

impl Hot {
    /// True if data can be sealed and written now, without anything before it.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.link == 0 && self.outgoing.as_ref().is_some_and(|outgoing| outgoing.check().is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_have_slots_until_they_are_closed() {
        let mut slots = Slots::default();
        for socket in 0..2000 {
            if socket % 3 != 0 {
                slots.insert(socket, Half::default()).unwrap();
            }
        }
        for socket in 0..2000 {
            assert_eq!(slots.find(socket).is_some(), socket % 3 != 0);
        }
        let pages = slots.pages.len();
        (0..1000).for_each(|socket| drop(slots.take(socket)));
        for socket in 0..1000 {
            slots.insert(socket, Half::default()).unwrap();
        }
        assert_eq!(slots.len(), 1000 + (1000..2000).filter(|socket| socket % 3 != 0).count());
        assert!(slots.pages.len() <= pages + 1, "vacant slots are used again");
        (0..2000).for_each(|socket| drop(slots.take(socket)));
        assert!(slots.is_empty() && slots.halves.iter().next().is_none());
        assert_eq!(slots.pages.iter().flatten().count(), 1, "the memory is freed");
    }

    #[test]
    fn a_number_that_is_used_again_has_no_keys_of_the_socket_before() {
        let mut slots = Slots::default();
        slots.insert(7, Half::default()).unwrap();
        slots.insert(8, Half::default()).unwrap();
        slots.take(7);
        assert_eq!((slots.find(7), slots.find(8).is_some()), (None, true));
    }
}
