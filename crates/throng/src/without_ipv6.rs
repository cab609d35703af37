//! Addresses on systems without IPv6.
//!
//! `[::]` is all addresses, IPv4's among them, so packages ship it: pods may have addresses of one
//! kind only. A kernel that was started without IPv6 has no such sockets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use rustix::io::Errno;

use crate::settings::Settings;

/// Makes a server listen on all addresses of IPv4 that was to listen on all of both kinds, if the
/// system has no IPv6 at all.
pub(crate) fn adapt(settings: &mut Settings) {
    if has_sockets() {
        return;
    }
    let of_tls = [&mut settings.tls_listen.0, &mut settings.redirect_http.0];
    let all = of_tls.into_iter().chain([&mut settings.admin_listen.0]).flatten();
    for address in all.chain([&mut settings.listen.0]) {
        *address = of_ipv4(*address);
    }
}

/// The loopback address at which this machine reaches a listener of all addresses of IPv6.
pub(crate) fn loopback() -> IpAddr {
    // Namespaces may lack it, although they have sockets of IPv6.
    match UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)) {
        Ok(_) => Ipv6Addr::LOCALHOST.into(),
        Err(_) => Ipv4Addr::LOCALHOST.into(),
    }
}

fn of_ipv4(address: SocketAddr) -> SocketAddr {
    if address.ip() == Ipv6Addr::UNSPECIFIED {
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()))
    } else {
        address
    }
}

fn has_sockets() -> bool {
    let bound = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0));
    // Any other error is for the listener to report.
    let missing = Errno::AFNOSUPPORT.raw_os_error();
    bound.map_or_else(|error| error.raw_os_error() != Some(missing), |_| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_address_that_means_all_of_them_is_replaced() {
        let of = |text: &str| of_ipv4(text.parse().expect("an address")).to_string();
        assert_eq!(of("[::]:80"), "0.0.0.0:80");
        assert_eq!(of("[::1]:80"), "[::1]:80");
        assert_eq!(of("10.0.0.1:80"), "10.0.0.1:80");
    }
}
