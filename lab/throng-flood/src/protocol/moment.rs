//! The moment at which a client that is turned away is told to come back.

use super::http::ResponseHead;

/// The longest moment that is heeded: no test lasts longer.
const AFTER_MS_MAX: u64 = 3_600_000;

/// The moment of a response, in milliseconds from now; `None` if it has none. What the body says is
/// precise: the reason of a close frame, or the `retry` of an event stream. `Retry-After` has whole
/// seconds, so that the clients with the same one spread themselves over another second: `nth` is
/// the number of this one.
pub(crate) fn of_response(head: &ResponseHead<'_>, body: &[u8], nth: usize) -> Option<u64> {
    let seconds = seconds(head)?;
    Some(of_text(body).unwrap_or_else(|| of_seconds(seconds, nth)))
}

/// The precise moment in a close frame or in an event stream, in milliseconds from now.
pub(crate) fn of_text(text: &[u8]) -> Option<u64> {
    let told = |before: &[u8]| number_after(text, before);
    let precise = told(b"reconnect in ").or_else(|| told(b"retry: "));
    precise.map(|after_ms| after_ms.min(AFTER_MS_MAX))
}

/// The whole seconds of `Retry-After`; `None` without it, or if it is a date.
pub(crate) fn seconds(head: &ResponseHead<'_>) -> Option<u64> {
    head.header("retry-after")?.trim().parse().ok()
}

/// The moment of a client that was told whole seconds, in milliseconds.
pub(crate) fn of_seconds(seconds: u64, nth: usize) -> u64 {
    // A step that is prime to the number of milliseconds, so that neighbours are far apart.
    let spread_ms = nth as u64 % 1000 * 617 % 1000;
    seconds.saturating_mul(1000).saturating_add(spread_ms).min(AFTER_MS_MAX)
}

/// The number behind some text.
fn number_after(bytes: &[u8], text: &[u8]) -> Option<u64> {
    let at = memchr::memmem::find(bytes, text)? + text.len();
    let digits = bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    // Without an end, there may be more of them.
    let is_whole = bytes.get(at + digits).is_some();
    str::from_utf8(&bytes[at..at + digits]).ok().filter(|_| is_whole)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(header: &str, body: &[u8], nth: usize) -> Option<u64> {
        let head = format!("HTTP/1.1 503 Later\r\n{header}\r\n\r\n");
        let head = ResponseHead::parse(head.as_bytes()).expect("a head").expect("whole");
        of_response(&head, body, nth)
    }

    #[test]
    fn a_precise_moment_is_taken_as_it_is() {
        let close = b"\x88\x18\x03\xf5reconnect in 1234 ms";
        assert_eq!(moment("Retry-After: 2", close, 7), Some(1234));
        assert_eq!(moment("Retry-After: 2", b": busy\nretry: 1777\n\n", 7), Some(1777));
        assert_eq!(moment("A: b", close, 7), None);
    }

    #[test]
    fn seconds_are_spread_over_one_more() {
        let cut = b"\x88\x18\x03\xf5reconnect in 12";
        for body in [&b""[..], b"{\"error\":\"busy\"}", cut] {
            assert_eq!(moment("Retry-After: 2", body, 1), Some(2617));
        }
        let mut all: Vec<_> =
            (0..1000).filter_map(|nth| moment("Retry-After: 0", b"", nth)).collect();
        all.sort_unstable();
        assert_eq!(all, (0..1000).collect::<Vec<_>>());
        assert_eq!(moment("Retry-After: Thu, 01 Jan 1970 00:00:00 GMT", b"", 0), None);
        assert_eq!(moment(&format!("Retry-After: {}", u64::MAX), b"", 0), Some(AFTER_MS_MAX));
    }
}
