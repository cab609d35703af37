//! Request heads: no input panics, the result does not depend on how much has arrived, and httparse
//! finds the same end.
//!
//! Input: one byte for the split, then a request head and the bytes after it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use throng_wire::credential::{self, Credential, TOKEN_BYTES_MAX};
use throng_wire::head::{HEADERS_MAX, Limits, Parsed, parse};
use throng_wire::subscribe::{Route, route};
use throng_wire::{ErrorCode, ErrorResponse};

const LIMITS: Limits = Limits { max_head_bytes: 2048 };

/// The result of parsing, for comparisons: incomplete, the length, or the error.
fn outcome(bytes: &[u8]) -> Result<Option<usize>, String> {
    match parse(bytes, LIMITS) {
        Ok(Parsed::Incomplete) => Ok(None),
        Ok(Parsed::Complete { length, .. }) => Ok(Some(length)),
        Err(error) => Err(format!("{error:?}")),
    }
}

fn check_prefix(bytes: &[u8], cut: usize, whole: &Result<Option<usize>, String>) {
    match outcome(&bytes[..cut]) {
        Ok(None) => assert!(!matches!(whole, Ok(Some(length)) if *length <= cut)),
        decided => assert_eq!(&decided, whole, "cut at {cut}"),
    }
}

/// A credential is bounded, and neither it nor an error shows it.
fn check_credential(found: Result<Option<Credential<'_>>, ErrorResponse>) {
    match found {
        Ok(None) => {}
        Ok(Some(credential)) => {
            let token = credential.text();
            assert!((1..=TOKEN_BYTES_MAX).contains(&token.len()));
            assert!(token.bytes().all(|byte| byte.is_ascii_graphic()));
            let shown = format!("{credential:?}");
            assert!(token.len() < 32 || !shown.contains(token));
        }
        Err(error) => {
            assert!(matches!(error.code, ErrorCode::InvalidToken | ErrorCode::BadRequest));
            assert!(error.message.len() < 100);
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let [cut, bytes @ ..] = data else { return };
    let whole = outcome(bytes);
    check_prefix(bytes, usize::from(*cut).min(bytes.len()), &whole);
    check_prefix(bytes, bytes.len().saturating_sub(usize::from(*cut)), &whole);

    let Ok(Parsed::Complete { head, length }) = parse(bytes, LIMITS) else { return };
    assert!(length <= LIMITS.max_head_bytes);
    assert_eq!(outcome(&bytes[..length]), Ok(Some(length)));
    assert_eq!(outcome(&bytes[..length - 1]), Ok(None));

    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let theirs = httparse::Request::new(&mut headers).parse(bytes);
    assert_eq!(theirs, Ok(httparse::Status::Complete(length)));

    if let Ok(Route::Subscribe(request)) = route(&head) {
        for target in &request.targets {
            assert_eq!(throng_wire::check_name(&target.name, target.kind.noun()), Ok(()));
        }
        check_credential(credential::of_subscription(&head, &request, Some("token")));
    }
    check_credential(credential::of_request(|name| head.headers(name), Some("token")));
});
