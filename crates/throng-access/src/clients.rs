//! The clients of a server as both planes see them: where their addresses come from, and their
//! limits.

use std::net::IpAddr;
use std::sync::Arc;

use crate::address::AddressSource;
use crate::grants::Grants;
use crate::limit::{ClientKeys, Limiter, Refusal};
use crate::session::Session;

/// Settings about clients, shared by both planes. The default knows no proxies and limits nothing.
#[derive(Debug, Default)]
pub struct Clients {
    pub source: AddressSource,
    /// Limits of each client.
    pub limiter: Limiter,
}

impl Clients {
    /// True if workers keep the address of each connection. They do if a limit needs it, or if only
    /// a proxy knows it; otherwise the socket is asked when an operator lists connections.
    pub fn keeps_addresses(&self) -> bool {
        self.limiter.limits_addresses()
            || self.source.expects_proxy_header()
            || self.source.header().is_some()
    }

    /// The limited parts of a client with this session, which has these grants.
    pub fn of_session(&self, session: &Session, grants: &Grants) -> ClientKeys {
        let user = self.limiter.user(session.user_tag());
        let key = self.limiter.server_key(session.key_tag());
        let app = self.limiter.app(session.app_tag()).and(self.limiter.confined(grants));
        user.and(key).and(app)
    }
}

/// A connection that counts for its address until this is dropped.
///
/// It may travel as a bare address: [`CountedAddress::into_address`] leaves it counted, and
/// [`CountedAddress::arrived`] makes this again, once.
#[derive(Debug)]
pub struct CountedAddress {
    /// `None` once it travels as a bare address.
    clients: Option<Arc<Clients>>,
    address: IpAddr,
}

impl CountedAddress {
    /// Counts a new connection from `address`.
    ///
    /// # Errors
    ///
    /// [`Refusal`] if the address has too many, or connects too often.
    pub fn connect(
        clients: &Arc<Clients>,
        address: IpAddr,
        now_ms: u64,
    ) -> Result<CountedAddress, Refusal> {
        clients.limiter.connect(clients.limiter.address(Some(address)), now_ms)?;
        Ok(CountedAddress::arrived(clients, address))
    }

    /// Counts a request that a client sends on a connection which a proxy had open: no new
    /// connection, and still one that the client holds.
    ///
    /// # Errors
    ///
    /// [`Refusal`] if the address has too many.
    pub fn hold(clients: &Arc<Clients>, address: IpAddr) -> Result<CountedAddress, Refusal> {
        clients.limiter.hold_connection(clients.limiter.address(Some(address)))?;
        Ok(CountedAddress::arrived(clients, address))
    }

    /// Counts a connection from before, which another worker or process had.
    pub fn resume(clients: &Arc<Clients>, address: IpAddr) -> CountedAddress {
        clients.limiter.resume_connection(clients.limiter.address(Some(address)));
        CountedAddress::arrived(clients, address)
    }

    /// A connection that travelled as a bare address, and is counted.
    pub fn arrived(clients: &Arc<Clients>, address: IpAddr) -> CountedAddress {
        CountedAddress { clients: Some(Arc::clone(clients)), address }
    }

    /// The address that counts.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The bare address of a connection that stays counted.
    #[must_use]
    pub fn into_address(mut self) -> IpAddr {
        self.clients = None;
        self.address
    }
}

impl Drop for CountedAddress {
    fn drop(&mut self) {
        if let Some(clients) = &self.clients {
            clients.limiter.disconnect(clients.limiter.address(Some(self.address)));
        }
    }
}

/// A question about a client that is asked elsewhere, and counts for its address until this is
/// dropped.
#[derive(Debug)]
pub struct OpenQuestion {
    clients: Arc<Clients>,
    address: Option<IpAddr>,
}

impl OpenQuestion {
    /// Counts a question about a client at `address`, if that is known.
    ///
    /// # Errors
    ///
    /// [`Refusal`] if too many are open about clients there.
    pub fn begin(clients: &Arc<Clients>, address: Option<IpAddr>) -> Result<OpenQuestion, Refusal> {
        clients.limiter.begin_question(address)?;
        Ok(OpenQuestion { clients: Arc::clone(clients), address })
    }
}

impl Drop for OpenQuestion {
    fn drop(&mut self) {
        self.clients.limiter.end_question(self.address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{ClientLimits, LimitSettings, Quantity};

    #[test]
    fn a_question_counts_until_it_is_answered() {
        let limiter = Limiter::new(LimitSettings { questions: 1, ..LimitSettings::default() });
        let clients = Arc::new(Clients { limiter, ..Clients::default() });
        let [here, there] = ["192.0.2.1", "192.0.2.2"].map(|text| text.parse().ok());
        let begin = |address| OpenQuestion::begin(&clients, address);
        let open = begin(here).expect("the first one");
        let refusal = begin(here).expect_err("it is not answered");
        assert_eq!(refusal.quantity, Quantity::Questions);
        assert!(begin(there).is_ok());
        let unknown = [begin(None), begin(None)];
        assert!(unknown.iter().all(Result::is_ok));
        drop(open);
        assert!(begin(here).is_ok());
        assert_eq!(clients.limiter.holders(), 0);
    }

    #[test]
    fn an_address_counts_until_its_connection_ends() {
        let address = ClientLimits { connections: 1, ..ClientLimits::default() };
        let limiter = Limiter::new(LimitSettings { address, ..LimitSettings::default() });
        let clients = Arc::new(Clients { limiter, ..Clients::default() });
        assert!(clients.keeps_addresses() && !Clients::default().keeps_addresses());
        let here = "192.0.2.1".parse().expect("an address");
        let counted = CountedAddress::connect(&clients, here, 0).expect("the first one");
        let bare = counted.into_address();
        assert_eq!(bare, here);
        let refusal = CountedAddress::connect(&clients, here, 0).expect_err("it still counts");
        assert_eq!(refusal.quantity, Quantity::Connections);
        drop(CountedAddress::arrived(&clients, bare));
        assert_eq!(clients.limiter.holders(), 0);
        drop(CountedAddress::resume(&clients, here));
        assert_eq!(clients.limiter.holders(), 0);
    }
}
