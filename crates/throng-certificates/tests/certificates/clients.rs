//! Clients with certificates.

use rustls::version::{TLS12, TLS13};
use throng_certificates::{ClientSettings, Reload, ServerTls, TlsSettings, UserField};

use crate::files::{Authority, Files, settings};
use crate::talk::Client;

fn with_clients(files: &Files, authority: &Authority, is_required: bool) -> TlsSettings {
    let mut settings = settings(vec![files.certificate("own", &["a.example"])]);
    settings.clients = Some(ClientSettings {
        authorities: files.write("ca.crt", &authority.0.pem()),
        revocations: None,
        is_required,
        user: Some(UserField::CommonName),
    });
    settings
}

#[test]
fn the_configured_field_of_the_certificate_is_the_user() {
    let (files, authority) = (Files::new(), Authority::new("ca"));
    let mut settings = with_clients(&files, &authority, true);
    let client = Client::with_certificate(&TLS13, Some(authority.client(1)));
    for (field, expected) in [
        (Some(UserField::CommonName), Some("ann")),
        (Some(UserField::Uri), Some("spiffe://a/ann")),
        (Some(UserField::Dns), Some("device.example")),
        (Some(UserField::Email), Some("ann@a.example")),
        (None, None),
    ] {
        settings.clients.as_mut().unwrap().user = field;
        let tls = ServerTls::load(settings.clone()).unwrap();
        let peer = client.talk(&tls.acceptor(), "a.example").unwrap().peer;
        assert_eq!(peer.user.as_ref().map(|user| &*user.name), expected, "{field:?}");
    }
}

#[test]
fn a_required_certificate_keeps_strangers_out() {
    let (files, authority) = (Files::new(), Authority::new("ca"));
    for version in [&TLS12, &TLS13] {
        let stranger = Client::with_certificate(version, Some(Authority::new("ca").client(1)));
        let nobody = Client::new(version);
        let required = ServerTls::load(with_clients(&files, &authority, true)).unwrap();
        let optional = ServerTls::load(with_clients(&files, &authority, false)).unwrap();
        for tls in [&required, &optional] {
            assert!(stranger.talk(&tls.acceptor(), "a.example").is_err());
        }
        assert!(nobody.talk(&required.acceptor(), "a.example").is_err());
        let peer = nobody.talk(&optional.acceptor(), "a.example").unwrap().peer;
        assert_eq!(peer.user, None);
    }
}

#[test]
fn a_revoked_client_is_refused_from_the_next_connection_on() {
    let (files, authority) = (Files::new(), Authority::new("ca"));
    let mut settings = with_clients(&files, &authority, true);
    let revocations = files.write("crl.pem", &authority.revocations(&[7]));
    settings.clients.as_mut().unwrap().revocations = Some(revocations);
    let tls = ServerTls::load(settings).unwrap();
    for version in [&TLS12, &TLS13] {
        let good = Client::with_certificate(version, Some(authority.client(1)));
        let revoked = Client::with_certificate(version, Some(authority.client(7)));
        assert!(revoked.talk(&tls.acceptor(), "a.example").is_err());
        // No session of such a client is resumed: each is checked against the list of today.
        for _ in 0..3 {
            assert!(!good.talk(&tls.acceptor(), "a.example").unwrap().peer.is_resumed);
        }
        files.write("crl.pem", &authority.revocations(&[7, 1]));
        assert_eq!(tls.reload(), Reload::Replaced);
        assert!(good.talk(&tls.acceptor(), "a.example").is_err());
        files.write("crl.pem", &authority.revocations(&[7]));
        assert_eq!(tls.reload(), Reload::Replaced);
    }
    files.write("crl.pem", "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n");
    assert!(matches!(tls.reload(), Reload::Kept(_)));
    let good = Client::with_certificate(&TLS13, Some(authority.client(1)));
    assert!(good.talk(&tls.acceptor(), "a.example").is_ok(), "the old list holds");
}
