//! Facts in a certificate: its names, its expiry, the kind of its key, and its owner.

use std::time::SystemTime;

use rustls::pki_types::CertificateDer;
use throng_tls::CertifiedUser;
use x509_cert::Certificate;
use x509_cert::der::asn1::{Ia5StringRef, PrintableStringRef, TeletexStringRef, Utf8StringRef};
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::der::oid::db::rfc4519::COMMON_NAME;
use x509_cert::der::oid::db::rfc5912::{ID_CE_SUBJECT_ALT_NAME, RSA_ENCRYPTION};
use x509_cert::der::{Any, Decode as _};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::time::Time;

/// The part of a client's certificate that names the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UserField {
    /// The first URI among its alternative names, such as a SPIFFE id.
    Uri,
    /// The first DNS name among its alternative names.
    Dns,
    /// The first e-mail address among its alternative names.
    Email,
    /// The common name of its subject.
    CommonName,
}

/// The facts of the server's own certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Facts {
    /// The DNS names that it is valid for, in lower case; some begin with `*.`.
    pub(crate) dns_names: Vec<String>,
    /// A name for people: the first DNS name, or else the common name, or else "unnamed".
    pub(crate) title: String,
    /// From when on it is valid.
    pub(crate) not_before: SystemTime,
    pub(crate) not_after: SystemTime,
    pub(crate) is_rsa: bool,
}

impl Facts {
    /// Reads a certificate. `None` if it is none.
    pub(crate) fn read(certificate: &CertificateDer<'_>) -> Option<Facts> {
        let certificate = Certificate::from_der(certificate).ok()?;
        let body = &certificate.tbs_certificate;
        let dns_names: Vec<String> = alternative_names(&certificate)
            .into_iter()
            .filter_map(|name| match name {
                GeneralName::DnsName(name) => Some(name.as_str().to_ascii_lowercase()),
                _ => None,
            })
            .collect();
        let at = |time: Time| SystemTime::UNIX_EPOCH + time.to_unix_duration();
        Some(Facts {
            title: dns_names
                .first()
                .cloned()
                .or_else(|| common_name(&certificate))
                .unwrap_or_else(|| "unnamed".into()),
            dns_names,
            not_before: at(body.validity.not_before),
            not_after: at(body.validity.not_after),
            is_rsa: is_rsa(body.subject_public_key_info.algorithm.oid),
        })
    }
}

/// The user that a client's certificate names in `field`, the client's own certificate first.
pub(crate) fn user(certificates: &[CertificateDer<'_>], field: UserField) -> Option<CertifiedUser> {
    let certificate = Certificate::from_der(certificates.first()?).ok()?;
    let name = match field {
        UserField::CommonName => common_name(&certificate),
        _ => alternative_names(&certificate).into_iter().find_map(|name| match (field, name) {
            (UserField::Uri, GeneralName::UniformResourceIdentifier(text))
            | (UserField::Dns, GeneralName::DnsName(text))
            | (UserField::Email, GeneralName::Rfc822Name(text)) => Some(text.as_str().to_owned()),
            _ => None,
        }),
    };
    let validity = certificate.tbs_certificate.validity;
    let seconds = |time: Time| u32::try_from(time.to_unix_duration().as_secs()).unwrap_or(u32::MAX);
    Some(CertifiedUser {
        name: name?.into(),
        from_s: seconds(validity.not_before),
        until_s: seconds(validity.not_after),
    })
}

fn is_rsa(algorithm: ObjectIdentifier) -> bool {
    algorithm == RSA_ENCRYPTION
}

fn alternative_names(certificate: &Certificate) -> Vec<GeneralName> {
    let extensions = certificate.tbs_certificate.extensions.iter().flatten();
    let mut values = extensions.filter(|extension| extension.extn_id == ID_CE_SUBJECT_ALT_NAME);
    let names =
        values.next().and_then(|value| SubjectAltName::from_der(value.extn_value.as_bytes()).ok());
    names.map(|names| names.0).unwrap_or_default()
}

/// The last common name of the subject, which is the most specific one.
fn common_name(certificate: &Certificate) -> Option<String> {
    let attributes = certificate.tbs_certificate.subject.0.iter().flat_map(|name| name.0.iter());
    let mut names = attributes.filter(|attribute| attribute.oid == COMMON_NAME);
    names.next_back().and_then(|attribute| text(&attribute.value))
}

/// The text of a string of ASN.1, of the kinds that stand in names.
fn text(value: &Any) -> Option<String> {
    let utf8 = value.decode_as::<Utf8StringRef<'_>>().map(|text| text.as_str().to_owned());
    let printable = || value.decode_as::<PrintableStringRef<'_>>().map(|t| t.as_str().to_owned());
    let ascii = || value.decode_as::<Ia5StringRef<'_>>().map(|t| t.as_str().to_owned());
    let teletex = || value.decode_as::<TeletexStringRef<'_>>().map(|t| t.as_str().to_owned());
    utf8.or_else(|_| printable()).or_else(|_| ascii()).or_else(|_| teletex()).ok()
}
