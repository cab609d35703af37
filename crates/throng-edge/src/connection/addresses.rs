//! The addresses of a worker's clients: 16 bytes for each connection, in pages that exist only
//! where addresses are kept.
//!
//! # Invariants
//!
//! * An address that is here counts once in the limits that all workers share. It leaves as a
//!   [`CountedAddress`], which ends that count when it is dropped.
//! * A connection that closes has no address here.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use throng_access::{Clients, CountedAddress};

use super::id::ConnectionId;
use super::state::{Connection, State};

const PAGE_BITS: u32 = 8;
const PAGE_ADDRESSES: usize = 1 << PAGE_BITS;

/// No client has the unspecified address (RFC 4291 section 2.5.2).
const NONE: Ipv6Addr = Ipv6Addr::UNSPECIFIED;

#[derive(Debug)]
struct Page {
    addresses: [Ipv6Addr; PAGE_ADDRESSES],
    length: u32,
}

/// The addresses of one worker's clients, by the index of the connection.
#[derive(Debug)]
pub(super) struct Addresses {
    clients: Arc<Clients>,
    /// `None` for a page without an address.
    pages: Vec<Option<Box<Page>>>,
}

impl Addresses {
    pub(super) fn new(clients: Arc<Clients>) -> Addresses {
        Addresses { clients, pages: Vec::new() }
    }

    pub(super) fn clients(&self) -> &Clients {
        &self.clients
    }

    /// The address of a connection, if it is kept.
    pub(super) fn get(&self, id: ConnectionId) -> Option<IpAddr> {
        let (page, at) = place(id);
        let address = self.pages.get(page)?.as_ref()?.addresses[at];
        (address != NONE).then(|| IpAddr::V6(address).to_canonical())
    }

    /// Keeps the address of a connection, in place of the one that it had.
    pub(super) fn put(&mut self, id: ConnectionId, client: Option<CountedAddress>) {
        drop(self.take(id));
        let Some(client) = client else { return };
        let address = match client.address() {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        if address == NONE {
            return;
        }
        let (page, at) = place(id);
        if page >= self.pages.len() {
            self.pages.resize_with(page + 1, || None);
        }
        let empty = || Box::new(Page { addresses: [NONE; PAGE_ADDRESSES], length: 0 });
        let page = self.pages[page].get_or_insert_with(empty);
        page.addresses[at] = address;
        page.length += 1;
        // It stays counted until `take`.
        let _ = client.into_address();
    }

    /// Takes the address of a connection, if it is kept.
    pub(super) fn take(&mut self, id: ConnectionId) -> Option<CountedAddress> {
        let address = self.get(id)?;
        let (at_page, at) = place(id);
        let slot = self.pages.get_mut(at_page)?;
        let page = slot.as_mut()?;
        page.addresses[at] = NONE;
        page.length -= 1;
        if page.length == 0 {
            *slot = None;
        }
        Some(CountedAddress::arrived(&self.clients, address))
    }

    /// Panics unless each address belongs to one of these connections, which are all, and none of
    /// them closes. For tests.
    pub(super) fn check_invariants<'a, S: 'a>(
        &self,
        connections: impl Iterator<Item = (ConnectionId, &'a Connection<S>)>,
    ) {
        let with_address = connections.filter(|&(id, connection)| {
            let address = self.get(id);
            assert!(address.is_none() || connection.state() != State::Closing, "{id:?} counts on");
            address.is_some()
        });
        assert_eq!(self.len(), with_address.count(), "addresses without a connection");
    }

    /// The number of addresses: it visits all pages.
    fn len(&self) -> usize {
        self.pages.iter().flatten().map(|page| page.length as usize).sum()
    }
}

/// When a worker ends, its connections end with it.
impl Drop for Addresses {
    fn drop(&mut self) {
        for index in 0..(self.pages.len() * PAGE_ADDRESSES) as u32 {
            drop(self.take(ConnectionId::new(index)));
        }
    }
}

fn place(id: ConnectionId) -> (usize, usize) {
    ((id.index() >> PAGE_BITS) as usize, id.index() as usize % PAGE_ADDRESSES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use throng_access::limit::{ClientLimits, LimitSettings, Limiter, Quantity};

    fn clients() -> Arc<Clients> {
        let address = ClientLimits { connections: 5, ..ClientLimits::default() };
        let limiter = Limiter::new(LimitSettings { address, ..LimitSettings::default() });
        Arc::new(Clients { limiter, ..Clients::default() })
    }

    #[test]
    fn an_address_counts_as_long_as_it_is_kept() {
        let clients = clients();
        let mut addresses = Addresses::new(Arc::clone(&clients));
        let [one, other] = ["192.0.2.1", "2001:db8::1"].map(|text| text.parse().unwrap());
        let count = |address| {
            let client = clients.limiter.address(Some(address));
            clients.limiter.held(client, Quantity::Connections)
        };
        let counted = |address| CountedAddress::connect(&clients, address, 0).ok();
        for index in 0..3 {
            addresses.put(ConnectionId::new(300 * index), counted(one));
        }
        addresses.put(ConnectionId::new(7), counted(other));
        assert_eq!((count(one), count(other), addresses.len()), (3, 1, 4));
        addresses.put(ConnectionId::new(0), counted(other));
        assert_eq!((count(one), count(other), addresses.len()), (2, 2, 4));
        assert_eq!(addresses.get(ConnectionId::new(300)), Some(one));
        assert_eq!(addresses.get(ConnectionId::new(0)), Some(other));
        assert_eq!(addresses.get(ConnectionId::new(1)), None);
        let travelling = addresses.take(ConnectionId::new(300));
        assert!(addresses.pages[1].is_none(), "an empty page is freed");
        assert_eq!(count(one), 2);
        drop(travelling);
        assert_eq!((count(one), addresses.len()), (1, 3));
        drop(addresses);
        assert_eq!(clients.limiter.holders(), 0);
    }

    #[test]
    fn a_kept_address_costs_sixteen_bytes() {
        assert!(size_of::<Page>() <= 16 * PAGE_ADDRESSES + 16);
        let none = Addresses::new(Arc::default());
        assert_eq!((none.get(ConnectionId::new(1 << 20)), none.pages.len()), (None, 0));
    }
}
