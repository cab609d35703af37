//! Where the address of a client comes from.

use std::net::IpAddr;

use super::forwarded::{ClientAddress, ForwardedHeader, HeaderError, client_address};
use super::network::Networks;
use super::proxy_protocol::Proxied;

/// How proxies pass the client's address on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AddressMethod {
    #[default]
    None,
    /// Each connection begins with a PROXY header.
    ProxyProtocol,
    /// Each request has this header.
    Header(ForwardedHeader),
}

/// Where the address of a client comes from: from its connection, or from a proxy that is trusted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AddressSource {
    method: AddressMethod,
    proxies: Networks,
}

impl AddressSource {
    /// The address as `proxies` pass it on.
    pub fn new(method: AddressMethod, proxies: Networks) -> AddressSource {
        AddressSource { method, proxies }
    }

    /// True if each connection begins with a PROXY header.
    pub fn expects_proxy_header(&self) -> bool {
        self.method == AddressMethod::ProxyProtocol
    }

    /// The header of requests that has the address; `None` without one.
    pub fn header(&self) -> Option<ForwardedHeader> {
        match self.method {
            AddressMethod::Header(header) => Some(header),
            AddressMethod::None | AddressMethod::ProxyProtocol => None,
        }
    }

    /// True if a connection from `peer` comes from a proxy that is trusted.
    pub fn trusts(&self, peer: IpAddr) -> bool {
        self.proxies.contains(peer)
    }

    /// The client's address, as far as the connection itself shows it. `None` for a proxy's.
    pub fn of_connection(&self, peer: IpAddr) -> Option<IpAddr> {
        (!self.trusts(peer)).then(|| peer.to_canonical())
    }

    /// The client's address in a PROXY header. `None` if the header has no address, or if the proxy
    /// connects on its own behalf (`LOCAL`).
    pub fn of_proxied(&self, proxied: Proxied) -> Option<IpAddr> {
        match proxied {
            Proxied::Client(client) => Some(client.ip().to_canonical()),
            Proxied::Itself | Proxied::Unknown => None,
        }
    }

    /// The address of the client that sent a request from a trusted proxy, by the `values` of the
    /// [header](AddressSource::header) in the order of the request. `None` if the proxy does not
    /// say it.
    ///
    /// # Errors
    ///
    /// [`HeaderError`] if no proxy that is trusted would write this.
    pub fn of_request<'a>(
        &self,
        peer: IpAddr,
        values: impl DoubleEndedIterator<Item = &'a [u8]>,
    ) -> Result<Option<IpAddr>, HeaderError> {
        let Some(header) = self.header() else { return Ok(self.of_connection(peer)) };
        Ok(match client_address(peer, &self.proxies, header, values)? {
            ClientAddress::Known(address) => Some(address),
            ClientAddress::Unknown => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn source(method: AddressMethod) -> AddressSource {
        let proxies = vec!["10.0.0.0/8".parse().expect("a network")];
        AddressSource::new(method, Networks::new(proxies))
    }

    #[test]
    fn a_trusted_proxy_is_no_client() {
        let source = source(AddressMethod::None);
        assert_eq!(source.of_connection(ip("10.1.1.1")), None);
        assert_eq!(source.of_connection(ip("::ffff:10.1.1.1")), None);
        assert_eq!(source.of_connection(ip("::ffff:192.0.2.1")), Some(ip("192.0.2.1")));
        let values = || ["192.0.2.9"].into_iter().map(str::as_bytes);
        assert_eq!(source.of_request(ip("10.1.1.1"), values()), Ok(None));
        assert_eq!(source.of_request(ip("192.0.2.1"), values()), Ok(Some(ip("192.0.2.1"))));
    }

    #[test]
    fn only_the_named_header_counts() {
        let source = source(AddressMethod::Header(ForwardedHeader::XForwardedFor));
        assert_eq!(source.header().map(ForwardedHeader::name), Some("x-forwarded-for"));
        let values = ["1.2.3.4, 192.0.2.9"].into_iter().map(str::as_bytes);
        assert_eq!(source.of_request(ip("10.1.1.1"), values), Ok(Some(ip("192.0.2.9"))));
        assert_eq!(source.of_request(ip("10.1.1.1"), [].into_iter()), Ok(None));
    }

    #[test]
    fn a_proxy_may_speak_for_itself() {
        let source = source(AddressMethod::ProxyProtocol);
        assert!(source.expects_proxy_header() && source.header().is_none());
        let client = Proxied::Client("[::ffff:192.0.2.9]:80".parse().expect("an address"));
        assert_eq!(source.of_proxied(client), Some(ip("192.0.2.9")));
        assert_eq!([Proxied::Itself, Proxied::Unknown].map(|of| source.of_proxied(of)), [None; 2]);
    }
}
