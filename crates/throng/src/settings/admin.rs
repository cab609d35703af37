//! Where the admin listener is, if there is one.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use super::written::{Address, Invalid, Written, written};

/// An address and a port, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdminAddress(pub Option<SocketAddr>);

written!(AdminAddress);

impl Written for AdminAddress {
    const NAME: &'static str = Address::NAME;
    const EXPECTED: &'static str = Address::EXPECTED;
}

impl FromStr for AdminAddress {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<AdminAddress, Invalid> {
        match text.trim().eq_ignore_ascii_case("none") {
            true => Ok(AdminAddress(None)),
            false => text.parse::<Address>().map(|address| AdminAddress(Some(address.0))),
        }
    }
}

impl fmt::Display for AdminAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => Address(address).fmt(f),
            None => f.write_str("none"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_or_none() {
        assert_eq!("None".parse(), Ok(AdminAddress(None)));
        let address: AdminAddress = "9090".parse().unwrap();
        assert_eq!(address.to_string(), "127.0.0.1:9090");
        assert!("nowhere".parse::<AdminAddress>().is_err());
    }
}
