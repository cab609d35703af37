//! PROXY headers: no input panics, and the result does not depend on how much has arrived.
//!
//! Input: one byte for the split, then the first bytes of a connection.

#![no_main]

use libfuzzer_sys::fuzz_target;
use throng_access::address::{PROXY_BYTES_MAX, ProxyHeader, parse_proxy_header};

fn check_prefix(bytes: &[u8], cut: usize) {
    let whole = parse_proxy_header(bytes);
    match parse_proxy_header(&bytes[..cut]) {
        Ok(ProxyHeader::Incomplete) => {
            assert!(!matches!(whole, Ok(ProxyHeader::Complete { length, .. }) if length <= cut));
        }
        decided => assert_eq!(decided, whole, "cut at {cut}"),
    }
}

fuzz_target!(|data: &[u8]| {
    let [cut, bytes @ ..] = data else { return };
    check_prefix(bytes, usize::from(*cut).min(bytes.len()));
    check_prefix(bytes, bytes.len().saturating_sub(usize::from(*cut)));
    match parse_proxy_header(bytes) {
        Ok(ProxyHeader::Complete { length, .. }) => {
            assert!((1..=PROXY_BYTES_MAX).contains(&length) && length <= bytes.len());
            assert_eq!(parse_proxy_header(&bytes[..length - 1]), Ok(ProxyHeader::Incomplete));
        }
        Ok(ProxyHeader::Incomplete) => assert!(bytes.len() < PROXY_BYTES_MAX),
        Err(_) => {}
    }
});
