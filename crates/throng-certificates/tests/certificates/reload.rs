//! Which certificate clients see, before and after the files change.

use rustls::version::{TLS12, TLS13};
use throng_certificates::{CertificateFiles, Reload, Reloads, ServerTls, TlsSettings, Validation};

use crate::files::{Files, settings};
use crate::talk::Client;

fn title(tls: &ServerTls, name: &'static str) -> Vec<u8> {
    Client::new(&TLS13).talk(&tls.acceptor(), name).unwrap().shown.unwrap()
}

fn der(files: &CertificateFiles) -> Vec<u8> {
    use rustls::pki_types::pem::PemObject as _;
    let file = std::fs::read(&files.certificate).unwrap();
    rustls::pki_types::CertificateDer::from_pem_slice(&file).unwrap().to_vec()
}

#[test]
fn a_client_gets_the_certificate_for_its_name() {
    let files = Files::new();
    let first = files.certificate("first", &["a.example"]);
    let second = files.certificate("second", &["b.example", "*.c.example"]);
    let tls = ServerTls::load(settings(vec![first.clone(), second.clone()])).unwrap();
    for (name, expected) in [
        ("a.example", &first),
        ("b.example", &second),
        ("B.Example", &second),
        ("x.c.example", &second),
        ("c.example", &first),
        ("x.y.c.example", &first),
        ("unknown.example", &first),
        ("127.0.0.1", &first),
    ] {
        assert!(title(&tls, name) == der(expected), "{name}");
    }
    let names: Vec<String> = tls.certificates().into_iter().map(|one| one.name).collect();
    assert_eq!(names, ["a.example", "b.example"]);
}

#[test]
fn new_files_replace_old_ones_and_broken_ones_do_not() {
    let files = Files::new();
    let own = files.certificate("own", &["a.example"]);
    let tls = ServerTls::load(settings(vec![own.clone()])).unwrap();
    let acceptor = tls.acceptor();
    let shown = |name| Client::new(&TLS13).talk(&acceptor, name).unwrap().shown.unwrap();
    let old = shown("a.example");
    assert_eq!(tls.reload(), Reload::Unchanged);

    // The certificate was replaced, its key not yet.
    let old_key = std::fs::read_to_string(&own.key).unwrap();
    files.certificate("own", &["new.example"]);
    let new_key = std::fs::read_to_string(&own.key).unwrap();
    files.write("own.key", &old_key);
    let Reload::Kept(error) = tls.reload() else { panic!("a broken pair was used") };
    assert!(error.to_string().contains("is not the key of the certificate"), "{error}");
    assert_eq!(tls.reload(), Reload::Unchanged, "the error is told once");
    assert!(shown("a.example") == old);

    files.remove("own.key");
    let Reload::Kept(error) = tls.reload() else { panic!("a missing key was used") };
    assert!(error.to_string().contains("there is no file"), "{error}");
    assert_eq!(tls.reload(), Reload::Unchanged, "the error is told once");
    assert!(shown("a.example") == old);

    files.write("own.key", &new_key);
    assert_eq!(tls.reload(), Reload::Replaced);
    assert!(shown("a.example") == der(&own));
    assert_eq!(tls.certificates()[0].name, "new.example");
    let reloads = Reloads { replaced: 1, refused: 2, is_refused: false };
    assert_eq!(tls.reloads(), reloads);
    assert_eq!(tls.reload(), Reload::Unchanged);
}

#[test]
fn sessions_are_resumed_also_after_a_reload() {
    for version in [&TLS12, &TLS13] {
        let files = Files::new();
        let own = files.certificate("own", &["a.example"]);
        let tls = ServerTls::load(settings(vec![own])).unwrap();
        let client = Client::new(version);
        assert!(!client.talk(&tls.acceptor(), "a.example").unwrap().peer.is_resumed);
        assert!(client.talk(&tls.acceptor(), "a.example").unwrap().peer.is_resumed);
        files.certificate("own", &["a.example"]);
        assert_eq!(tls.reload(), Reload::Replaced);
        assert!(client.talk(&tls.acceptor(), "a.example").unwrap().peer.is_resumed);
    }
}

#[test]
fn sessions_are_not_resumed_without_tickets() {
    let files = Files::new();
    let mut settings = settings(vec![files.certificate("own", &["a.example"])]);
    settings.ticket_lifetime = std::time::Duration::ZERO;
    let tls = ServerTls::load(settings).unwrap();
    for version in [&TLS12, &TLS13] {
        let client = Client::new(version);
        for _ in 0..3 {
            assert!(!client.talk(&tls.acceptor(), "a.example").unwrap().peer.is_resumed);
        }
    }
}

#[test]
fn servers_that_share_a_file_resume_each_others_sessions() {
    let files = Files::new();
    let own = files.certificate("own", &["a.example"]);
    let (old, new) = ("11".repeat(32), "22".repeat(32));
    let mut shared = settings(vec![own]);
    shared.ticket_keys = Some(files.write("keys", &old));
    let servers = [(); 2].map(|()| ServerTls::load(shared.clone()).unwrap());
    let client = Client::new(&TLS13);
    let is_resumed = |server: usize| {
        client.talk(&servers[server].acceptor(), "a.example").unwrap().peer.is_resumed
    };
    assert!(!is_resumed(0));
    assert!(is_resumed(1));

    files.write("keys", &format!("{new}\n{old}\n"));
    assert_eq!(servers[0].reload(), Reload::Replaced);
    assert!(is_resumed(0), "the old key still opens");
    assert_eq!(servers[1].reload(), Reload::Replaced);
    assert!(is_resumed(1));

    files.write("keys", &old);
    assert_eq!(servers[0].reload(), Reload::Replaced);
    assert!(!is_resumed(0), "the new key is gone");
}

fn expired(files: &Files, name: &str) {
    let key = rcgen::KeyPair::generate().unwrap();
    files.write(&format!("{name}.crt"), &crate::files::expired().self_signed(&key).unwrap().pem());
    files.write(&format!("{name}.key"), &key.serialize_pem());
}

#[test]
fn an_expired_certificate_replaces_no_valid_one() {
    let files = Files::new();
    let own = files.certificate("own", &["a.example"]);
    expired(&files, "own");
    let tls = ServerTls::load(settings(vec![own.clone()])).unwrap();
    assert!(title(&tls, "a.example") == der(&own));
    assert!(tls.certificates()[0].left(std::time::SystemTime::now()).is_zero());
    expired(&files, "own");
    assert_eq!(tls.reload(), Reload::Replaced, "it takes the place of nothing better");

    files.certificate("own", &["a.example"]);
    assert_eq!(tls.reload(), Reload::Replaced);
    let valid = title(&tls, "a.example");
    expired(&files, "own");
    let Reload::Kept(error) = tls.reload() else { panic!("a valid certificate was replaced") };
    assert!(error.to_string().contains("has expired on Tue, 01 Jan 2002"), "{error}");
    assert_eq!(tls.last_error(), Some(error));
    assert!(title(&tls, "a.example") == valid);
}

#[test]
fn a_certificate_of_acme_may_come_later_and_in_one_file() {
    let files = Files::new();
    let path = files.path("acme.pem");
    let of_acme = CertificateFiles {
        certificate: path.clone(),
        key: path.clone(),
        is_of_acme: true,
        ..files.named("acme")
    };
    let tls = ServerTls::load(settings(vec![of_acme])).unwrap();
    assert!(Client::new(&TLS13).talk(&tls.acceptor(), "a.example").is_err(), "there is none");
    let own = files.certificate("own", &["a.example"]);
    let [key, chain] = [&own.key, &own.certificate].map(|path| std::fs::read(path).unwrap());
    std::fs::write(&path, [key, chain].concat()).unwrap();
    assert_eq!(tls.reload(), Reload::Replaced);
    assert!(title(&tls, "a.example") == der(&own));
    assert_eq!(tls.certificates()[0].names, ["a.example"]);
    assert!(tls.certificates()[0].is_of_acme);
}

#[test]
fn a_validating_authority_gets_the_challenge_certificate() {
    let files = Files::new();
    let authority = crate::files::Authority::new("ca");
    let clients = throng_certificates::ClientSettings {
        authorities: files.write("ca.pem", &authority.0.pem()),
        revocations: None,
        is_required: true,
        user: None,
    };
    let own = files.certificate("own", &["a.example"]);
    let of_server = TlsSettings { clients: Some(clients), ..settings(vec![own]) };
    let tls = ServerTls::load(of_server).unwrap();
    let validate = || Client::validating().talk(&tls.acceptor(), "a.example");
    assert!(validate().is_err(), "no validation is awaited");
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = crate::files::params(&["a.example"]);
    params.custom_extensions = vec![rcgen::CustomExtension::new_acme_identifier(&[7; 32])];
    let certificate = params.self_signed(&key).unwrap();
    let answer = |name: &str| Validation {
        name: name.into(),
        certificate: certificate.der().clone(),
        key: rustls::pki_types::PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
    };
    tls.answer_validations(vec![answer("a.example")]).unwrap();
    let talk = validate().unwrap();
    assert_eq!(talk.peer.alpn.as_deref(), Some(&b"acme-tls/1"[..]));
    assert!(talk.shown.as_deref() == Some(&certificate.der()[..]));
    assert!(Client::new(&TLS13).talk(&tls.acceptor(), "a.example").is_err(), "it has none");
    tls.answer_validations(vec![answer("b.example")]).unwrap();
    assert!(validate().is_err(), "the answer is for another name");
    tls.answer_validations(Vec::new()).unwrap();
    assert!(validate().is_err(), "the validation is over");
}

#[test]
fn what_is_prepared_holds_once_it_is_committed() {
    let files = Files::new();
    let own = files.certificate("own", &["a.example"]);
    let tls = ServerTls::load(settings(vec![own.clone()])).unwrap();
    let acceptor = tls.acceptor();
    let shown = || Client::new(&TLS13).talk(&acceptor, "a.example").unwrap().shown.unwrap();
    let old = shown();
    assert!(!tls.prepare().unwrap().commit(), "nothing has changed");
    files.certificate("own", &["a.example"]);
    drop(tls.prepare().unwrap());
    assert!(shown() == old);
    assert!(tls.prepare().unwrap().commit());
    assert!(shown() == der(&own) && shown() != old);
    files.write("own.key", "broken");
    for _ in 0..2 {
        assert!(tls.prepare().is_err(), "whoever asks is told, however often");
    }
    assert_eq!(tls.reloads().refused, 1);
}

#[test]
fn other_files_replace_those_of_before_once_they_are_committed() {
    let files = Files::new();
    let first = files.certificate("first", &["a.example"]);
    let second = files.certificate("second", &["b.example"]);
    let tls = ServerTls::load(settings(vec![first.clone()])).unwrap();
    let missing = files.named("missing");
    assert!(tls.prepare_for(vec![first.clone(), missing]).is_err());
    assert_eq!((tls.reload(), tls.reloads().is_refused), (Reload::Unchanged, false));
    assert!(!tls.prepare_for(vec![first.clone()]).unwrap().commit(), "they are the same");

    drop(tls.prepare_for(vec![second.clone()]).unwrap());
    assert!(title(&tls, "b.example") == der(&first), "it was not committed");
    assert!(tls.prepare_for(vec![first.clone(), second.clone()]).unwrap().commit());
    assert!(title(&tls, "a.example") == der(&first) && title(&tls, "b.example") == der(&second));

    // From now on it is these files that are looked at.
    files.certificate("second", &["b.example"]);
    assert_eq!(tls.reload(), Reload::Replaced);
    assert!(title(&tls, "b.example") == der(&second));
    files.remove("first.key");
    assert!(tls.prepare_for(vec![second]).unwrap().commit());
    assert_eq!(tls.reload(), Reload::Unchanged);
}
