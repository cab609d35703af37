//! The headers of proxies: no input panics, and a client cannot choose its address.
//!
//! Input: one byte for the header, then what the client sent.

#![no_main]

use std::net::IpAddr;

use libfuzzer_sys::fuzz_target;
use throng_access::address::{
    ClientAddress, ForwardedHeader, HeaderError, Networks, client_address,
};

const CLIENT: &str = "203.0.113.9";

fuzz_target!(|data: &[u8]| {
    let [which, sent @ ..] = data else { return };
    let (header, added) = if which & 1 == 0 {
        (ForwardedHeader::Forwarded, format!("for={CLIENT}"))
    } else {
        (ForwardedHeader::XForwardedFor, CLIENT.to_owned())
    };
    let peer: IpAddr = "10.0.0.1".parse().expect("an address");
    let trusted = Networks::new(vec!["10.0.0.0/8".parse().expect("a network")]);
    let find = |values: &[&[u8]]| client_address(peer, &trusted, header, values.iter().copied());
    let client = Ok(ClientAddress::Known(CLIENT.parse().expect("an address")));

    // A proxy that adds a line of its own.
    assert_eq!(find(&[sent, added.as_bytes()]), client);
    // A proxy that appends to the client's line.
    let joined = [sent, b", ", added.as_bytes()].concat();
    let found = find(&[&joined]);
    let may_break = str::from_utf8(sent).is_err() || sent.contains(&b'"');
    assert!(found == client || may_break && found == Err(HeaderError::Malformed));
    let _ = find(&[sent]);
});
