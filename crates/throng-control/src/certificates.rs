//! The server's certificates, for the status page.

use serde::Serialize;

/// How many certificates a sample has at most: it goes to each viewer once a second.
pub(crate) const CERTIFICATES_MAX: usize = 20;

/// The certificates of a server that speaks TLS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TlsStatus {
    /// Why the files of now are not used; `None` if they are.
    pub error: Option<String>,
    /// The certificates that are shown, and those that are awaited.
    pub certificates: Vec<CertificateStatus>,
    /// How many of them a sample leaves out.
    pub left_out: usize,
}

/// The state of one certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CertificateStatus {
    /// Its first DNS name, or else its common name.
    pub name: String,
    /// Since when it is valid, in milliseconds since 1970; `None` while it is awaited.
    pub not_before_ms: Option<u64>,
    /// Until when it is valid, in the same way.
    pub not_after_ms: Option<u64>,
    /// How its renewal stands; `None` if the server does not renew it.
    pub renewal: Option<RenewalStatus>,
}

/// How the renewal of a certificate stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RenewalStatus {
    /// When the next attempt begins, in milliseconds since 1970.
    pub next_ms: Option<u64>,
    /// Attempts that have failed since the last success.
    pub failures: u32,
    /// Why the last of them has failed.
    pub error: Option<String>,
}

impl TlsStatus {
    /// The certificates of a sample: awaited ones first, then in the order of their expiry.
    pub(crate) fn shortened(mut self) -> TlsStatus {
        self.certificates.sort_by(|one, other| {
            (one.not_after_ms, &one.name).cmp(&(other.not_after_ms, &other.name))
        });
        self.left_out += self.certificates.len().saturating_sub(CERTIFICATES_MAX);
        self.certificates.truncate(CERTIFICATES_MAX);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_the_most_urgent_are_shown() {
        let until = |nth: u64| (nth > 0).then_some(1000 - nth);
        let certificates = (0..30).map(|nth| CertificateStatus {
            name: nth.to_string(),
            not_before_ms: until(nth).map(|_| 0),
            not_after_ms: until(nth),
            renewal: None,
        });
        let all = TlsStatus { error: None, certificates: certificates.collect(), left_out: 0 };
        let shown = all.shortened();
        let names: Vec<&str> = shown.certificates.iter().map(|one| one.name.as_str()).collect();
        assert_eq!((names.len(), &names[..3], shown.left_out), (20, &["0", "29", "28"][..], 10));
    }
}
