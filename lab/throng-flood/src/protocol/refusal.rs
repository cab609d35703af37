//! The text of a rejection: the first line of the body of a response with an unexpected status.
//!
//! # Invariants
//!
//! - A line is at most [`LINE_BYTES_MAX`] bytes long and has no control characters.
//! - At most [`BODY_BYTES_MAX`] bytes of a body are awaited.
//! - Up to [`LINES_MAX`] different lines are counted separately; after that, rejections are counted
//!   by status.

use std::collections::BTreeMap;

use super::http::{BodyEnd, ResponseHead};
use crate::failure::Failure;

/// The most bytes that are kept of a line.
pub(crate) const LINE_BYTES_MAX: usize = 160;

/// The most different lines that are counted separately. A server may put the client's id into
/// each.
pub(crate) const LINES_MAX: usize = 20;

/// The most bytes of a body that are read.
pub(crate) const BODY_BYTES_MAX: usize = 4 * 1024;

/// The failure of a response with this head and the part of its body that has arrived; `None` if
/// more of it is needed.
pub(crate) fn of_response(head: &ResponseHead<'_>, body: &[u8]) -> Option<Failure> {
    of_body(head, body, false)
}

/// The failure of a response that ends here.
pub(crate) fn of_last(head: &ResponseHead<'_>, body: &[u8]) -> Failure {
    of_body(head, body, true).unwrap_or(Failure::Status(head.status))
}

fn of_body(head: &ResponseHead<'_>, body: &[u8], is_last: bool) -> Option<Failure> {
    let Ok(body) = head.body(body) else { return Some(Failure::Status(head.status)) };
    let is_page = head.header("content-type").is_some_and(is_page);
    let text = &body.content[..];
    // The server may never end a body without a length, so the part that came with the head must
    // do.
    let is_enough = body.is_whole || is_last || head.body_end() == Ok(BodyEnd::Connection);
    let is_enough = is_enough || is_page || text.len() >= BODY_BYTES_MAX || has_line(text);
    is_enough.then(|| of_content(head.status, is_page, text))
}

/// The failure with this status and body. The first line of a page explains nothing.
pub(crate) fn of_content(status: u16, is_page: bool, body: &[u8]) -> Failure {
    match line(body).filter(|_| !is_page) {
        Some(line) => Failure::Refusal(status, line),
        None => Failure::Status(status),
    }
}

/// True if this content type is a page for people, whose lines are markup.
pub(crate) fn is_page(content_type: &str) -> bool {
    let kind = content_type.trim_start();
    kind.get(..9).is_some_and(|start| start.eq_ignore_ascii_case("text/html"))
}

/// The first line that is not empty. JSON may span lines, and becomes one.
fn line(body: &[u8]) -> Option<String> {
    let body = body.trim_ascii();
    let line = if is_json(body) {
        body
    } else {
        body.split(|&byte| matches!(byte, b'\n' | b'\r')).next()?
    };
    let line = said(line);
    (!line.is_empty()).then_some(line)
}

/// The rejection in a message that contains `text`: the line with that text.
pub(crate) fn containing(message: &[u8], text: &str) -> Option<Failure> {
    let at = memchr::memmem::find(message, text.as_bytes())?;
    let start = memchr::memrchr(b'\n', &message[..at]).map_or(0, |end| end + 1);
    let end = memchr::memchr(b'\n', &message[at..]).map_or(message.len(), |end| at + end);
    Some(Failure::Message(said(&message[start..end])))
}

/// Untrusted bytes as one short line, with single spaces for runs of spaces and control characters.
pub(crate) fn said(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(BODY_BYTES_MAX)]);
    let words = text.split(|request: char| request.is_control() || request.is_whitespace());
    let mut line = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    if line.len() > LINE_BYTES_MAX {
        let end = (0..=LINE_BYTES_MAX).rev().find(|&end| line.is_char_boundary(end));
        line.truncate(end.unwrap_or_default());
        line.push('…');
    }
    line
}

fn is_json(body: &[u8]) -> bool {
    matches!(body.first(), Some(b'{' | b'['))
}

/// True if the first line is complete.
fn has_line(body: &[u8]) -> bool {
    let body = body.trim_ascii_start();
    !is_json(body) && body.iter().any(|byte| matches!(byte, b'\n' | b'\r'))
}

/// Counts a failure. At most [`LINES_MAX`] different texts of servers are counted separately.
pub(crate) fn count(failures: &mut BTreeMap<Failure, u64>, failure: Failure, number: u64) {
    // Counts of agents are bounded already.
    let is_text = |failure: &Failure| matches!(failure, Failure::Message(_) | Failure::Refusal(..));
    let is_further = is_text(&failure)
        && !failures.contains_key(&failure)
        && failures.keys().filter(|known| is_text(known)).count() >= LINES_MAX;
    let failure = if is_further { failure.without_words() } else { failure };
    *failures.entry(failure).or_default() += number;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(head: &str, body: &str) -> Option<Failure> {
        let head = format!("HTTP/1.1 400 Bad\r\n{head}\r\n\r\n");
        let head = ResponseHead::parse(head.as_bytes()).expect("a head").expect("whole");
        of_response(&head, body.as_bytes())
    }

    fn words(text: &str) -> Option<Failure> {
        Some(Failure::Refusal(400, text.to_owned()))
    }

    #[test]
    fn a_complete_first_line_is_enough() {
        let body = "\r\nuse \"match\"\nand more";
        assert_eq!(refusal("Content-Length: 99", body), words("use \"match\""));
        assert_eq!(refusal("A: b", body), words("use \"match\""));
        let chunked = "Transfer-Encoding: chunked";
        assert_eq!(
            refusal(chunked, "3\r\nuse\r\n9;a=b\r\n \"match\"\n\r\n"),
            words("use \"match\"")
        );
        assert_eq!(refusal(chunked, "3\r\nuse\r\n0\r\n\r\n"), words("use"));
        for waiting in ["Content-Length: 4", chunked] {
            assert_eq!(refusal(waiting, "1"), None, "{waiting}");
        }
        assert_eq!(refusal("A: b", "us"), words("us"));
        assert_eq!(refusal("Content-Length: 3", "usefulness"), words("use"));
        assert_eq!(refusal("Content-Length: 0", ""), Some(Failure::Status(400)));
    }

    #[test]
    fn json_becomes_one_line_and_pages_are_left_out() {
        let body = "{\r\n  \"error\": \"full\"\n}";
        assert_eq!(refusal("Content-Length: 23", body), None);
        let length = format!("Content-Length: {}", body.len());
        assert_eq!(refusal(&length, body), words("{ \"error\": \"full\" }"));
        let page = "Content-Type: Text/HTML; charset=utf-8\r\nContent-Length: 9";
        assert_eq!(refusal(page, "<html>"), Some(Failure::Status(400)));
    }

    #[test]
    fn lines_are_short_and_without_controls() {
        let text = said(b"\x1b[31mred\x07 \t and\0so \xff on");
        assert_eq!(text, "[31mred and so \u{fffd} on");
        let long = said("ä".repeat(500).as_bytes());
        assert_eq!(long.chars().count(), LINE_BYTES_MAX / 2 + 1);
        let endless = "x".repeat(BODY_BYTES_MAX);
        assert!(matches!(
            refusal("Content-Length: 99999", &endless),
            Some(Failure::Refusal(400, _))
        ));
    }

    #[test]
    fn many_different_lines_are_counted_by_status() {
        let mut failures = BTreeMap::new();
        for number in 0..LINES_MAX + 30 {
            let refusal = Failure::Refusal(400, format!("request {number}"));
            count(&mut failures, refusal, 1);
        }
        count(&mut failures, Failure::Refusal(400, "request 3".to_owned()), 1);
        assert_eq!(failures.len(), LINES_MAX + 1);
        assert_eq!(failures[&Failure::Status(400)], 30);
        assert_eq!(failures[&Failure::Refusal(400, "request 3".to_owned())], 2);
    }
}
