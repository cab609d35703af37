//! Why TLS fails: a few reasons, so that they can be counted.

use std::fmt;

use rustls::{Error, PeerIncompatible};
use serde::Serialize;
use throng_tls::{Alert, HandshakeError, alert_name};

/// Why a handshake or a connection fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TlsFailure {
    /// The server answers with something else than TLS.
    NotTls,
    /// The server gives up with this alert.
    Alert(u8),
    /// The server's certificate is not accepted.
    Certificate(&'static str),
    /// The server speaks no version or suite that this program does.
    Incompatible(&'static str),
    /// The server violates the protocol of handshakes.
    Handshake,
    /// A record of the server is wrong; it is told so with this alert.
    Record(u8),
    /// The handshake timed out.
    Timeout,
    /// The server closed the connection during the handshake.
    ClosedInHandshake,
    /// The connection ended without `close_notify`: what came may not be all that was sent.
    Truncated,
    /// Nothing more can be sent under the key of TLS 1.2.
    Exhausted,
    /// The keys that were taken out of the handshake are not those that it derived.
    Keys,
}

impl TlsFailure {
    /// The failure that an error of the handshake is.
    pub(super) fn of(error: &HandshakeError) -> TlsFailure {
        match error {
            HandshakeError::NotTls => TlsFailure::NotTls,
            HandshakeError::Refused(Error::AlertReceived(alert)) => {
                TlsFailure::Alert(u8::from(*alert))
            }
            HandshakeError::Refused(Error::InvalidCertificate(error)) => {
                TlsFailure::Certificate(throng_trust::fault(error))
            }
            HandshakeError::Refused(Error::PeerIncompatible(what)) => {
                TlsFailure::Incompatible(match what {
                    PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig => {
                        "its TLS is older than 1.2"
                    }
                    PeerIncompatible::ExtendedMasterSecretExtensionRequired => {
                        "its TLS 1.2 lacks the extended master secret"
                    }
                    _ => "no version, suite or group is common",
                })
            }
            HandshakeError::UnknownSuite => TlsFailure::Incompatible("its suite is not known"),
            HandshakeError::SecretsDiffer => TlsFailure::Keys,
            _ => TlsFailure::Handshake,
        }
    }
}

impl From<Alert> for TlsFailure {
    fn from(alert: Alert) -> TlsFailure {
        TlsFailure::Record(alert as u8)
    }
}

impl fmt::Display for TlsFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TlsFailure::NotTls => f.write_str("the server does not speak TLS on this port"),
            TlsFailure::Alert(alert) => write!(f, "the server's alert {}", Named(*alert)),
            TlsFailure::Certificate(what) => write!(f, "the server's certificate: {what}"),
            TlsFailure::Incompatible(what) => write!(f, "the server is incompatible: {what}"),
            TlsFailure::Handshake => f.write_str("the server's handshake is wrong"),
            TlsFailure::Record(alert) => write!(f, "a record is wrong: {}", Named(*alert)),
            TlsFailure::Timeout => f.write_str("timeout in the handshake"),
            TlsFailure::ClosedInHandshake => f.write_str("closed in the handshake"),
            TlsFailure::Truncated => f.write_str("closed by the server without close_notify"),
            TlsFailure::Exhausted => f.write_str("the key is used up, and TLS 1.2 has no other"),
            TlsFailure::Keys => f.write_str("the keys of the handshake are not as expected"),
        }
    }
}

/// An alert, with its name if it has one.
struct Named(u8);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match alert_name(self.0) {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustls::{AlertDescription, CertificateError};

    use super::*;

    #[test]
    fn failures_say_what_is_wrong() {
        let words = |error: HandshakeError| TlsFailure::of(&error).to_string();
        let alert = |alert| words(HandshakeError::Refused(Error::AlertReceived(alert)));
        assert_eq!(
            alert(AlertDescription::HandshakeFailure),
            "the server's alert handshake_failure (40)"
        );
        assert_eq!(alert(AlertDescription::Unknown(200)), "the server's alert 200");
        let error = CertificateError::UnknownIssuer.into();
        let expected =
            "the server's certificate: no trusted authority has signed it (--ca names another)";
        assert_eq!(words(HandshakeError::Refused(error)), expected);
        assert_eq!(words(HandshakeError::NotTls), "the server does not speak TLS on this port");
        let failure = TlsFailure::from(Alert::BadRecordMac).to_string();
        assert_eq!(failure, "a record is wrong: bad_record_mac (20)");
    }
}
