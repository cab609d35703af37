//! The trace of a connection in RFC 8448, section 3, as known answers.

use crate::alert::Alert;
use crate::incoming::{End, Incoming, Role};
use crate::keys::{RecordKey, Secret};
use crate::outgoing::Outgoing;
use crate::suite::Suite;

const SUITE: Suite = Suite::Tls13Aes128Gcm;

const CLIENT_SECRET: &str = "9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5";
const CLIENT_KEY: &str = "17422dda596ed5d9acd890e3c63f5051";
const CLIENT_IV: &str = "5b78923dee08579033e523d9";
const CLIENT_DATA: &str = "1703030043a23f7054b62c94d0affafe8228ba55cbefacea42f914aa66bcab3f2b98\
    19a8a5b46b395bd54a9a20441e2b62974e1f5a6292a2977014bd1e3deae63aeebb21694915e4";
const CLIENT_ALERT: &str = "1703030013c9872760655666b74d7ff1153efd6db6d0b0e3";

const SERVER_SECRET: &str = "a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643";
const SERVER_KEY: &str = "9f02283b6c9c07efc26bb9f2ac92e356";
const SERVER_IV: &str = "cf782b88dd83549aadf1e984";
const SERVER_DATA: &str = "17030300432e937e11ef4ac740e538ad36005fc4a46932fc3225d05f82aa1b36e30e\
    faf97d90e6dffc602dcb501a59a8fcc49c4bf2e5f0a21c0047c2abf332540dd032e167c2955d";
const SERVER_ALERT: &str = "1703030013b58fd67166ebf599d24720cfbe7efa7a8864a9";

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |index: usize| u8::from_str_radix(&hex[index..index + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(digit).collect()
}

fn secret(hex: &str) -> Secret {
    Secret::new(SUITE, &bytes(hex)).unwrap()
}

/// The side that has sent `number` records already, which are its tickets.
fn side(role: Role, number: u64) -> (Outgoing, Incoming) {
    let (own, peer, peer_number) = match role {
        Role::Client => (CLIENT_SECRET, SERVER_SECRET, 1),
        Role::Server => (SERVER_SECRET, CLIENT_SECRET, 0),
    };
    let key = RecordKey::derive(SUITE, &secret(own));
    let secrets = (secret(peer), secret(own));
    (Outgoing::new(SUITE, key, number), Incoming::new(role, SUITE, secrets, peer_number))
}

#[test]
fn keys_follow_from_secrets() {
    for (of, key, iv) in
        [(CLIENT_SECRET, CLIENT_KEY, CLIENT_IV), (SERVER_SECRET, SERVER_KEY, SERVER_IV)]
    {
        let derived = RecordKey::derive(SUITE, &secret(of));
        assert_eq!(derived.key(SUITE), bytes(key));
        assert_eq!(derived.iv()[..], bytes(iv));
    }
}

#[test]
fn records_are_sealed_as_in_the_trace() {
    let content: Vec<u8> = (0..50).collect();
    for (role, number, data, alert) in
        [(Role::Client, 0, CLIENT_DATA, CLIENT_ALERT), (Role::Server, 1, SERVER_DATA, SERVER_ALERT)]
    {
        let (mut outgoing, _) = side(role, number);
        let mut out = Vec::new();
        let sealed = outgoing.seal([&content[..20], &content[20..]], &mut out).unwrap();
        assert_eq!((sealed.record_bytes(), sealed.content_bytes()), (72, 50));
        outgoing.keep(sealed);
        outgoing.seal_alert(Alert::CloseNotify, &mut out).unwrap();
        assert_eq!(out, bytes(&[data, alert].concat()));
    }
}

#[test]
fn records_of_the_trace_are_opened() {
    let content: Vec<u8> = (0..50).collect();
    for (role, data, alert) in
        [(Role::Server, CLIENT_DATA, CLIENT_ALERT), (Role::Client, SERVER_DATA, SERVER_ALERT)]
    {
        let (mut outgoing, mut incoming) = side(role, 0);
        let mut records = bytes(&[data, alert].concat());
        let opened = incoming.open(&mut outgoing, &mut records);
        assert_eq!((opened.used_bytes, opened.end), (72 + 24, Some(End::Closed)));
        assert_eq!(records[..opened.content_bytes], content);
    }
}
