//! The signature algorithms of tokens (RFC 7518 section 3.1, RFC 8037 section 3.1).

/// An algorithm that a token's header may name. There is no variant for `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// HMAC with SHA-256.
    Hs256,
    /// HMAC with SHA-384.
    Hs384,
    /// HMAC with SHA-512.
    Hs512,
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    Rs256,
    /// RSASSA-PSS with SHA-256.
    Ps256,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// ECDSA on P-384 with SHA-384.
    Es384,
    /// Ed25519. Of the curves of EdDSA, Ed448 is not accepted.
    EdDsa,
}

/// The keys that an algorithm works with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// A secret that signs and verifies.
    Hmac,
    Rsa,
    P256,
    P384,
    Ed25519,
}

impl Algorithm {
    /// All algorithms, in the order of the reference.
    pub const ALL: [Algorithm; 8] = [
        Algorithm::Hs256,
        Algorithm::Hs384,
        Algorithm::Hs512,
        Algorithm::Rs256,
        Algorithm::Ps256,
        Algorithm::Es256,
        Algorithm::Es384,
        Algorithm::EdDsa,
    ];

    /// The name in `alg`.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Hs256 => "HS256",
            Algorithm::Hs384 => "HS384",
            Algorithm::Hs512 => "HS512",
            Algorithm::Rs256 => "RS256",
            Algorithm::Ps256 => "PS256",
            Algorithm::Es256 => "ES256",
            Algorithm::Es384 => "ES384",
            Algorithm::EdDsa => "EdDSA",
        }
    }

    /// The inverse of [`Algorithm::name`]. Names are case-sensitive. `Ed25519` (RFC 9864) is
    /// another name of `EdDSA` with the one curve that is accepted.
    pub fn from_name(name: &str) -> Option<Algorithm> {
        if name == "Ed25519" {
            return Some(Algorithm::EdDsa);
        }
        Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// The keys that it works with.
    pub fn family(self) -> Family {
        match self {
            Algorithm::Hs256 | Algorithm::Hs384 | Algorithm::Hs512 => Family::Hmac,
            Algorithm::Rs256 | Algorithm::Ps256 => Family::Rsa,
            Algorithm::Es256 => Family::P256,
            Algorithm::Es384 => Family::P384,
            Algorithm::EdDsa => Family::Ed25519,
        }
    }

    /// Roughly how long one verification takes, in microseconds, on a machine of the year 2020.
    pub(crate) fn verification_us(self) -> u64 {
        match self.family() {
            Family::Hmac => 3,
            Family::Rsa => 25,
            Family::P256 | Family::Ed25519 => 65,
            // Ring has no fast code for it.
            Family::P384 => 1_000,
        }
    }

    /// The shortest secret: as many bytes as the hash has (RFC 7518 section 3.2). 0 for algorithms
    /// without a secret.
    pub fn secret_bytes_min(self) -> usize {
        match self {
            Algorithm::Hs256 => 32,
            Algorithm::Hs384 => 48,
            Algorithm::Hs512 => 64,
            _ => 0,
        }
    }
}

/// The algorithms that a key accepts, which are all of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Algorithms(u8);

impl Algorithms {
    /// The set of one algorithm.
    pub fn only(algorithm: Algorithm) -> Algorithms {
        Algorithms(1 << algorithm as u8)
    }

    /// The algorithms of a public key that names none: all that work with such keys.
    pub(crate) fn of_public(family: Family) -> Algorithms {
        debug_assert!(family != Family::Hmac, "a secret has one algorithm");
        let fitting = Algorithm::ALL.into_iter().filter(|algorithm| algorithm.family() == family);
        Algorithms(fitting.fold(0, |set, algorithm| set | 1 << algorithm as u8))
    }

    /// True if the set contains `algorithm`.
    pub fn contains(self, algorithm: Algorithm) -> bool {
        self.0 & 1 << algorithm as u8 != 0
    }

    /// The set in one byte, for fingerprints.
    pub(crate) fn bits(self) -> u8 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_case_sensitive_and_none_is_no_algorithm() {
        for algorithm in Algorithm::ALL {
            assert_eq!(Algorithm::from_name(algorithm.name()), Some(algorithm));
            assert_eq!(Algorithm::from_name(&algorithm.name().to_lowercase()), None);
        }
        for name in ["none", "None", "NONE", "", "HS1", "RS512", "ES256K", "A128KW", "Ed448"] {
            assert_eq!(Algorithm::from_name(name), None, "{name}");
        }
    }

    #[test]
    fn a_set_has_one_family() {
        let rsa = Algorithms::of_public(Family::Rsa);
        let contained: Vec<_> =
            Algorithm::ALL.into_iter().filter(|&algorithm| rsa.contains(algorithm)).collect();
        assert_eq!(contained, [Algorithm::Rs256, Algorithm::Ps256]);
        assert!(!Algorithms::only(Algorithm::Rs256).contains(Algorithm::Ps256));
    }
}
