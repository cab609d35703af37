//! Why TLS fails: a few reasons, so that they can be counted.

use rustls::{Error, PeerIncompatible};
use serde::Serialize;
use throng_tls::{Alert, HandshakeError, alert_name};

/// Why a handshake or a connection fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum TlsFailure {
    /// The server answers with something else than TLS.
    #[error("the server does not speak TLS on this port")]
    NotTls,
    /// The server gives up with this alert.
    #[error("the server's alert {}", named(*.0))]
    Alert(u8),
    /// The server's certificate is not accepted.
    #[error("the server's certificate: {0}")]
    Certificate(&'static str),
    /// The server speaks no version or suite that this program does.
    #[error("the server is incompatible: {0}")]
    Incompatible(&'static str),
    /// The server violates the protocol of handshakes.
    #[error("the server's handshake is wrong")]
    Handshake,
    /// A record of the server is wrong; it is told so with this alert.
    #[error("a record is wrong: {}", named(*.0))]
    Record(u8),
    /// The handshake timed out.
    #[error("timeout in the handshake")]
    Timeout,
    /// The server closed the connection during the handshake.
    #[error("closed in the handshake")]
    ClosedInHandshake,
    /// The connection ended without `close_notify`: what came may not be all that was sent.
    #[error("closed by the server without close_notify")]
    Truncated,
    /// Nothing more can be sent under the key of TLS 1.2.
    #[error("the key is used up, and TLS 1.2 has no other")]
    Exhausted,
    /// The keys that were taken out of the handshake are not those that it derived.
    #[error("the keys of the handshake are not as expected")]
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

/// An alert, with its name if it has one.
fn named(alert: u8) -> String {
    alert_name(alert).map_or(alert.to_string(), |name| format!("{name} ({alert})"))
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
