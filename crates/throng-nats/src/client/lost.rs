//! Why a connection ended, and what to do about it: one sentence each, without anything secret.

use std::io;

use throng_trust::fault;
use tokio_rustls::rustls::{AlertDescription, CertificateError, Error as TlsError};

use super::login::Login;
use crate::api::NatsLimit;
use crate::permissions::Verb;
use crate::protocol::decoder::DecodeError;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionLost {
    #[error("cannot connect: {0}")]
    Unreachable(String),
    #[error("the connection broke: {0}")]
    Broken(String),
    #[error("TLS: {0}")]
    Tls(String),
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error("the server has closed the connection")]
    Closed,
    #[error("the server does not answer")]
    Silent,
    /// It has said nothing at all.
    #[error(
        "the server accepts the connection and says nothing: if it expects TLS first \
         (handshake_first), name it with tls-first://; else it is frozen or overloaded"
    )]
    Mute,
    #[error("the server says: {0}")]
    Said(String),
    #[error("{0}")]
    Refused(String),
    /// It is so old that it lacks something that nodes need.
    #[error("{}", super::version::sentence(version))]
    Old { version: String },
    /// Files of the settings cannot be used.
    #[error("{0}")]
    Settings(String),
    /// The owner of the journal is gone.
    #[error("the node stops")]
    Stopped,
}

impl From<io::Error> for ConnectionLost {
    fn from(error: io::Error) -> ConnectionLost {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>()) {
            Some(error) => ConnectionLost::Tls(of_tls(error)),
            None => ConnectionLost::Broken(words(&error)),
        }
    }
}

impl ConnectionLost {
    /// There was no connection at all.
    pub(super) fn unreachable(error: &io::Error) -> ConnectionLost {
        ConnectionLost::Unreachable(words(error))
    }

    /// True if a server that answers does not want this client.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(
            self,
            ConnectionLost::Said(_)
                | ConnectionLost::Refused(_)
                | ConnectionLost::Old { .. }
                | ConnectionLost::Tls(_)
        )
    }

    /// The meaning of a server's last words before it hangs up.
    pub(super) fn said(error: &str, login: &Login) -> ConnectionLost {
        let lower = error.to_ascii_lowercase();
        ConnectionLost::Refused(if lower.contains("authorization violation") {
            match login {
                Login::Anonymous => {
                    "the server asks for a login (authorization violation); give one in the file \
                     of nats-login"
                        .into()
                }
                login => format!(
                    "the server refuses the login (authorization violation); it knows no such {}: \
                     compare nats-login with the users of the server",
                    login.kind()
                ),
            }
        } else if lower.contains("authentication expired") {
            format!("the login has expired ({lower}); put a new one into the file of nats-login")
        } else if lower.contains("authentication revoked") {
            format!("the login is revoked ({lower}); put a new one into the file of nats-login")
        } else {
            let remedy = NatsLimit::of_complaint(error).map(NatsLimit::remedy);
            return ConnectionLost::Said(match remedy {
                Some(remedy) => format!("{error}; {remedy}"),
                None => error.to_owned(),
            });
        })
    }
}

/// A server's refusal of a subject that this user may not use; the connection stays.
pub(super) fn violation(error: &str) -> String {
    format!(
        "{error}: the server does not let this user do that; the guide \"From one node to many\" \
         lists the permissions that a node needs"
    )
}

/// True if a server refuses a subscription, and stays: there are too many, or it is too long.
/// ([`denied`] is about those that this user may not make.)
pub(super) fn is_about_a_subscription(error: &str) -> bool {
    let lower = error.to_ascii_lowercase();
    lower.contains("subscription") && lower.contains("exceeded")
}

/// The verb and subject of a violation: `... for Publish to "SUBJECT"`, or `... for Subscription to
/// ...`.
pub(super) fn denied(error: &str) -> Option<(Verb, &str)> {
    let (verb, rest) = if let Some((_, rest)) = error.split_once("for Publish to \"") {
        (Verb::Publish, rest)
    } else {
        (Verb::Subscribe, error.split_once("for Subscription to \"")?.1)
    };
    Some((verb, rest.split_once('"')?.0))
}

/// The words of the system, without its number.
fn words(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}

fn of_tls(error: &TlsError) -> String {
    match error {
        TlsError::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "the server's certificate cannot be trusted: no trusted authority has signed it; name \
             the file of its authority with nats-ca"
                .into()
        }
        TlsError::InvalidCertificate(error) => {
            format!("the server's certificate cannot be trusted: {}", fault(error))
        }
        TlsError::InvalidMessage(_) => {
            "the server does not answer in TLS; leave nats-tls-first out unless the server has \
             handshake_first"
                .into()
        }
        TlsError::AlertReceived(AlertDescription::CertificateRequired) => {
            "the server asks for a client certificate; give one with nats-cert and nats-key".into()
        }
        TlsError::AlertReceived(
            alert @ (AlertDescription::BadCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::AccessDenied),
        ) => format!(
            "the server refuses the client certificate of nats-cert, or misses one ({alert:?})"
        ),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_say_what_to_do() {
        let said = |text: &str, login: &Login| ConnectionLost::said(text, login).to_string();
        let user = Login::User { user: "ann".into(), password: "s3cret".into() };
        for (text, login, expected) in [
            ("Authorization Violation", &Login::Anonymous, "give one in the file of nats-login"),
            ("Authorization Violation", &user, "it knows no such user and password"),
            ("User Authentication Expired", &user, "the login has expired"),
            ("User Authentication Revoked", &user, "the login is revoked"),
            ("maximum connections exceeded", &user, "exceeded; raise max_connections of the"),
        ] {
            let found = said(text, login);
            assert!(found.contains(expected) && !found.contains("s3cret"), "{found}");
        }
    }

    #[test]
    fn violations_name_their_subject() {
        let of = |text: &str| denied(text).map(|(verb, subject)| (verb, subject.to_owned()));
        let publish = r#"Permissions Violation for Publish to "$KV.a.user.b""#;
        assert_eq!(of(publish), Some((Verb::Publish, "$KV.a.user.b".into())));
        let subscribe = r#"Permissions Violation for Subscription to "a.>" using queue "q""#;
        assert_eq!(of(subscribe), Some((Verb::Subscribe, "a.>".into())));
        assert_eq!(of("Permissions Violation"), None);
    }

    #[test]
    fn faults_of_tls_say_what_to_do() {
        let of = |error: TlsError| {
            ConnectionLost::from(io::Error::new(io::ErrorKind::InvalidData, error))
        };
        for (error, expected) in [
            (CertificateError::UnknownIssuer.into(), "name the file of its authority with nats-ca"),
            (CertificateError::Expired.into(), "cannot be trusted: it has expired"),
            (CertificateError::NotValidForName.into(), "it is for another host name"),
            (
                TlsError::AlertReceived(AlertDescription::CertificateRequired),
                "asks for a client certificate; give one with nats-cert",
            ),
            (
                TlsError::AlertReceived(AlertDescription::UnknownCA),
                "refuses the client certificate of nats-cert, or misses one (UnknownCA)",
            ),
        ] {
            let found = of(error).to_string();
            assert!(found.starts_with("TLS: ") && found.contains(expected), "{found}");
        }
        let refused = io::Error::from_raw_os_error(111);
        assert_eq!(
            ConnectionLost::unreachable(&refused).to_string(),
            "cannot connect: connection refused"
        );
    }
}
