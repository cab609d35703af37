//! Subjects of limits, as numbers.

use std::hash::BuildHasher;
use std::net::IpAddr;

use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;

/// One address, user or key. 64 bits: of a million, two are the same with a probability of one in
/// 37 million, and then share a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LimitKey(pub(super) u64);

/// Makes [`LimitKey`]s. All limiters of a server share it; its seed differs from server to server,
/// so that a client cannot choose a name that shares another's limit.
#[derive(Debug, Clone, Default)]
pub struct LimitKeys {
    state: SeedableRandomState,
}

impl LimitKeys {
    /// Makes the same keys in every process that has the secret. Call it once for a server: some
    /// bytes of memory stay in use.
    pub fn with_secret(secret: [u8; 32]) -> LimitKeys {
        let [shared, own, ..] = secret.as_chunks::<8>().0 else {
            unreachable!("a secret has 32 bytes")
        };
        let shared = Box::leak(Box::new(SharedSeed::from_u64(u64::from_le_bytes(*shared))));
        let own = u64::from_le_bytes(*own);
        LimitKeys { state: SeedableRandomState::with_seed(own, shared) }
    }

    /// The key of a client's address. IPv6 addresses with the same first 64 bits have the same key,
    /// because one host has all of them; an IPv4 address within IPv6 has the key of the IPv4
    /// address.
    pub fn address(&self, address: IpAddr) -> LimitKey {
        let number = match address.to_canonical() {
            // No IPv6 network has a prefix that begins with 32 zeros (RFC 4291 section 2.4).
            IpAddr::V4(address) => u64::from(address.to_bits()),
            IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
        };
        LimitKey(self.state.hash_one(number))
    }

    /// The key of a user or of a server key, by the tag that a [`Session`](crate::Session) has.
    pub fn tag(&self, tag: u64) -> LimitKey {
        LimitKey(self.state.hash_one(tag))
    }

    /// A number by which servers with the same keys know each other.
    pub(super) fn check(&self) -> u64 {
        self.name("check").0
    }

    /// The key of anything that has a name.
    pub fn name(&self, name: &str) -> LimitKey {
        LimitKey(self.state.hash_one(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_has_one_key() {
        let keys = LimitKeys::default();
        let key = |address: &str| keys.address(address.parse().unwrap());
        assert_eq!(key("2001:db8:1:2::1"), key("2001:db8:1:2:ffff::9"));
        assert_ne!(key("2001:db8:1:2::1"), key("2001:db8:1:3::1"));
        assert_eq!(key("192.0.2.1"), key("::ffff:192.0.2.1"));
        assert_ne!(key("192.0.2.1"), key("192.0.2.2"));
        assert_ne!(key("192.0.2.1"), key("::1"));
        assert_eq!(keys.name("ann"), keys.name("ann"));
        assert_ne!(keys.name("ann"), keys.name("bob"));
    }

    #[test]
    fn processes_with_one_secret_have_the_same_keys() {
        let key = |first, last| {
            let mut secret = [7; 32];
            (secret[0], secret[15]) = (first, last);
            LimitKeys::with_secret(secret).address("192.0.2.1".parse().unwrap())
        };
        assert_eq!(key(1, 1), key(1, 1));
        assert!(key(1, 1) != key(2, 1) && key(1, 1) != key(1, 2));
    }

    #[test]
    fn two_servers_have_different_keys() {
        let address = "192.0.2.1".parse().unwrap();
        let [one, other] = [LimitKeys::default(), LimitKeys::default()];
        assert_ne!(one.address(address), other.address(address));
    }
}
