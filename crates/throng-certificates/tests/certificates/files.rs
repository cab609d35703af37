//! Certificates for tests, and the files that they stand in.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SanType, SerialNumber,
    date_time_ymd,
};
use tempfile::TempDir;
use throng_certificates::{CertificateFiles, TlsSettings};
use throng_tls::LeastVersion;

/// A directory with files.
pub(crate) struct Files(TempDir);

/// An authority that signs.
pub(crate) struct Authority(pub(crate) CertifiedIssuer<'static, KeyPair>);

impl Files {
    pub(crate) fn new() -> Files {
        Files(TempDir::new().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Writes `NAME.crt` and `NAME.key`, for these DNS names.
    pub(crate) fn certificate(&self, name: &str, dns_names: &[&str]) -> CertificateFiles {
        let key = KeyPair::generate().unwrap();
        let params = params(dns_names);
        self.write(&format!("{name}.crt"), &params.self_signed(&key).unwrap().pem());
        self.write(&format!("{name}.key"), &key.serialize_pem());
        self.named(name)
    }

    pub(crate) fn named(&self, name: &str) -> CertificateFiles {
        CertificateFiles {
            is_of_acme: false,
            certificate: self.path(&format!("{name}.crt")),
            key: self.path(&format!("{name}.key")),
            certificate_setting: "tls-cert".into(),
            key_setting: "tls-key".into(),
        }
    }

    pub(crate) fn remove(&self, name: &str) {
        std::fs::remove_file(self.path(name)).unwrap();
    }
}

pub(crate) fn params(dns_names: &[&str]) -> CertificateParams {
    let names: Vec<String> = dns_names.iter().map(|name| (*name).to_owned()).collect();
    CertificateParams::new(names).unwrap()
}

/// One that was valid for a year, long ago.
pub(crate) fn expired() -> CertificateParams {
    let mut params = params(&["a.example"]);
    params.not_before = date_time_ymd(2001, 1, 1);
    params.not_after = date_time_ymd(2002, 1, 1);
    params
}

impl Authority {
    pub(crate) fn new(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.key_identifier_method = KeyIdMethod::Sha256;
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// The certificate and the key of a client, in DER.
    pub(crate) fn client(&self, serial: u64) -> (Vec<u8>, Vec<u8>) {
        let mut params = params(&["device.example"]);
        params.serial_number = Some(SerialNumber::from(serial));
        params.distinguished_name.push(DnType::CommonName, "ann");
        params.subject_alt_names.push(SanType::URI("spiffe://a/ann".try_into().unwrap()));
        params.subject_alt_names.push(SanType::Rfc822Name("ann@a.example".try_into().unwrap()));
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        (certificate.der().to_vec(), key.serialize_der())
    }

    /// A list that revokes the certificates with these serial numbers.
    pub(crate) fn revocations(&self, serials: &[u64]) -> String {
        let revoked = serials.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2026, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2026, 1, 1),
            next_update: date_time_ymd(2200, 1, 1),
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.0).unwrap().pem().unwrap()
    }
}

pub(crate) fn settings(certificates: Vec<CertificateFiles>) -> TlsSettings {
    TlsSettings {
        certificates,
        least_version: LeastVersion::Tls12,
        ticket_lifetime: Duration::from_secs(3600),
        ticket_keys: None,
        clients: None,
    }
}

pub(crate) fn shown(path: &Path) -> String {
    path.display().to_string()
}
