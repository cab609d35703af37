//! Files that cannot be used, and the sentences that say so.

use rcgen::KeyPair;
use throng_certificates::{CertificateFiles, ServerTls};

use crate::files::{Files, params, settings, shown};

fn refusal(files: CertificateFiles) -> String {
    ServerTls::load(settings(vec![files])).map(|_| "it was accepted").unwrap_err().to_string()
}

#[test]
fn each_fault_names_the_setting_and_the_file() {
    let files = Files::new();
    let good = files.certificate("good", &["a.example"]);
    files.certificate("other", &["b.example"]);
    let (certificate, key) = (shown(&good.certificate), shown(&good.key));
    let pem = std::fs::read_to_string(&good.certificate).unwrap();

    files.write(
        "encrypted.key",
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END \
                                  ENCRYPTED PRIVATE KEY-----\n",
    );
    files.write(
        "legacy.key",
        "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nAAAA\n\
                               -----END EC PRIVATE KEY-----\n",
    );
    files.write("empty", "");
    files.write("half.crt", &pem[..pem.len() / 2]);
    files.write("garbage.crt", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let with = |certificate: &str, key: &str| CertificateFiles {
        certificate: files.path(certificate),
        key: files.path(key),
        ..good.clone()
    };
    let at = |name: &str| shown(&files.path(name));
    for (files, expected) in [
        (with("none", "good.key"), format!("tls-cert: there is no file {}", at("none"))),
        (with("good.crt", "none"), format!("tls-key: there is no file {}", at("none"))),
        (with("empty", "good.key"), format!("tls-cert: {} has no certificate;", at("empty"))),
        (with("good.key", "good.key"), format!("tls-cert: {key} has no certificate;")),
        (with("good.crt", "good.crt"), format!("tls-key: {certificate} has no private key;")),
        (with("good.crt", "empty"), format!("tls-key: {} has no private key;", at("empty"))),
        (
            with("good.crt", "other.key"),
            format!("tls-key: {} is not the key of the certificate in", at("other.key")),
        ),
        (
            with("good.crt", "encrypted.key"),
            format!("tls-key: {} is encrypted with a passphrase", at("encrypted.key")),
        ),
        (
            with("good.crt", "legacy.key"),
            format!("tls-key: {} is encrypted with a passphrase", at("legacy.key")),
        ),
        (with("half.crt", "good.key"), format!("tls-cert: {} is not intact PEM", at("half.crt"))),
        (
            with("garbage.crt", "good.key"),
            format!("tls-cert: {} begins with something that is not", at("garbage.crt")),
        ),
    ] {
        let refusal = refusal(files);
        assert!(refusal.starts_with(&expected), "{refusal}\n{expected}");
        assert!(!refusal.contains('\n'), "{refusal}");
    }
}

#[test]
fn a_certificate_of_tomorrow_is_refused_today() {
    let files = Files::new();
    let mut params = params(&["a.example"]);
    params.not_before = rcgen::date_time_ymd(2150, 1, 1);
    params.not_after = rcgen::date_time_ymd(2151, 1, 1);
    let key = KeyPair::generate().unwrap();
    files.write("new.crt", &params.self_signed(&key).unwrap().pem());
    files.write("new.key", &key.serialize_pem());
    let refusal = refusal(files.named("new"));
    assert!(refusal.contains("is not valid before Thu, 01 Jan 2150 00:00:00 GMT"), "{refusal}");
}
