//! What is wrong with a server's certificate, in a few words.

use rustls::CertificateError;

/// The words for an error, from a small set: no two certificates make different ones.
pub fn fault(error: &CertificateError) -> &'static str {
    use CertificateError as E;
    match error {
        E::Expired | E::ExpiredContext { .. } => "it has expired",
        E::NotValidYet | E::NotValidYetContext { .. } => "it is not valid yet",
        E::UnknownIssuer => "no trusted authority has signed it (--ca names another)",
        E::NotValidForName | E::NotValidForNameContext { .. } => "it is for another host name",
        E::Revoked => "it is revoked",
        E::InvalidPurpose | E::InvalidPurposeContext { .. } => "it is not for servers",
        // An authority of the same name, but with another key.
        E::BadSignature => "a signature is wrong",
        E::BadEncoding => "it is damaged",
        // rustls does not name this one. A self-signed certificate without the mark of an authority
        // can be trusted itself; one that has the mark cannot be a server's.
        E::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
            "it is an authority's own, not a server's"
        }
        _ => "it cannot be used",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_name_does_not_show() {
        let error = CertificateError::NotValidForNameContext {
            expected: rustls::pki_types::ServerName::try_from("secret.test").unwrap(),
            presented: vec!["other.test".to_owned()],
        };
        assert_eq!(fault(&error), "it is for another host name");
        assert_eq!(
            fault(&CertificateError::UnknownIssuer),
            "no trusted authority has signed it (--ca names another)"
        );
    }
}
