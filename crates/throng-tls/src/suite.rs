//! The cipher suites of the record layer: a protocol version and an AEAD algorithm each.

use ring::{aead, hkdf};

/// A protocol version with an AEAD algorithm. The numbers are part of the frozen format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Suite {
    /// TLS 1.3, `TLS_AES_128_GCM_SHA256`.
    Tls13Aes128Gcm = 1,
    /// TLS 1.3, `TLS_AES_256_GCM_SHA384`.
    Tls13Aes256Gcm = 2,
    /// TLS 1.3, `TLS_CHACHA20_POLY1305_SHA256`.
    Tls13ChaCha20Poly1305 = 3,
    /// TLS 1.2 with AES-128-GCM.
    Tls12Aes128Gcm = 4,
    /// TLS 1.2 with AES-256-GCM.
    Tls12Aes256Gcm = 5,
    /// TLS 1.2 with ChaCha20-Poly1305.
    Tls12ChaCha20Poly1305 = 6,
}

/// How many records AES-GCM may seal under one key. With 2^24.5 full records the advantage of an
/// attacker reaches 2^-57 (RFC 8446, section 5.5); rustls stops at the same number.
pub const GCM_RECORDS_MAX: u64 = 1 << 24;

/// How many records ChaCha20-Poly1305 may seal under one key. The algorithm sets no limit; this
/// one keeps record numbers far from the end of their 64 bits.
pub const CHACHA_RECORDS_MAX: u64 = 1 << 48;

impl Suite {
    /// All suites, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::Tls13Aes128Gcm,
        Self::Tls13Aes256Gcm,
        Self::Tls13ChaCha20Poly1305,
        Self::Tls12Aes128Gcm,
        Self::Tls12Aes256Gcm,
        Self::Tls12ChaCha20Poly1305,
    ];

    /// True if it belongs to TLS 1.3. Only then are there traffic secrets and key updates.
    pub fn is_tls13(self) -> bool {
        matches!(self, Self::Tls13Aes128Gcm | Self::Tls13Aes256Gcm | Self::Tls13ChaCha20Poly1305)
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|suite| *suite as u8 == number)
    }

    /// True if records carry eight bytes of their nonce, as AES-GCM does with TLS 1.2.
    pub(crate) fn has_explicit_nonce(self) -> bool {
        matches!(self, Self::Tls12Aes128Gcm | Self::Tls12Aes256Gcm)
    }

    pub(crate) fn aead(self) -> &'static aead::Algorithm {
        match self {
            Self::Tls13Aes128Gcm | Self::Tls12Aes128Gcm => &aead::AES_128_GCM,
            Self::Tls13Aes256Gcm | Self::Tls12Aes256Gcm => &aead::AES_256_GCM,
            Self::Tls13ChaCha20Poly1305 | Self::Tls12ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
        }
    }

    /// The hash of the key schedule of TLS 1.3.
    pub(crate) fn hkdf(self) -> hkdf::Algorithm {
        match self {
            Self::Tls13Aes256Gcm => hkdf::HKDF_SHA384,
            _ => hkdf::HKDF_SHA256,
        }
    }

    /// The length of a traffic secret of TLS 1.3.
    pub(crate) fn secret_bytes(self) -> usize {
        self.hkdf().hmac_algorithm().digest_algorithm().output_len()
    }

    /// How many records may be sealed under one key.
    pub(crate) fn max_records(self) -> u64 {
        match self {
            Self::Tls13ChaCha20Poly1305 | Self::Tls12ChaCha20Poly1305 => CHACHA_RECORDS_MAX,
            _ => GCM_RECORDS_MAX,
        }
    }
}

impl std::fmt::Display for Suite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Tls13Aes128Gcm => "TLS 1.3, AES-128-GCM",
            Self::Tls13Aes256Gcm => "TLS 1.3, AES-256-GCM",
            Self::Tls13ChaCha20Poly1305 => "TLS 1.3, ChaCha20-Poly1305",
            Self::Tls12Aes128Gcm => "TLS 1.2, AES-128-GCM",
            Self::Tls12Aes256Gcm => "TLS 1.2, AES-256-GCM",
            Self::Tls12ChaCha20Poly1305 => "TLS 1.2, ChaCha20-Poly1305",
        })
    }
}
