//! Decodes responses to HTTP publishes: bytes in, outcomes out. Bodies are skipped, except where
//! they say why a message was rejected.

use crate::failure::Failure;
use crate::protocol::chunked::{Chunked, Piece};
use crate::protocol::http::{BodyEnd, ResponseHead};
use crate::protocol::refusal;

/// How much of a body is searched for a rejection.
const SEARCHED_BYTES_MAX: usize = 4 * 1024;

/// A complete response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PublishResponse {
    pub(super) status: u16,
    /// Whether the server closes the connection after it.
    pub(super) closes: bool,
    /// Why the message was rejected, if it was.
    pub(super) refusal: Option<Failure>,
}

/// Reads the responses of one connection, one after the other.
#[derive(Debug, Default)]
pub(super) struct ResponseReader {
    /// The start of a head that has not arrived completely.
    head: Vec<u8>,
    /// The response whose body is being read.
    current: Option<PartialResponse>,
    /// A text that marks a response as a rejection, whatever its status.
    refused_by: Option<Box<str>>,
}

#[derive(Debug)]
struct PartialResponse {
    status: u16,
    closes: bool,
    /// Whether the body is a page for people, whose lines explain nothing.
    is_page: bool,
    body: BodyProgress,
    /// The start of the body, if it is searched.
    text: Vec<u8>,
}

#[derive(Debug)]
enum BodyProgress {
    Bytes { left: u64 },
    Chunked(Chunked),
    UntilClose,
}

impl ResponseReader {
    /// For responses that are rejections if their body contains `text`.
    pub(super) fn refused_by(text: Option<&str>) -> ResponseReader {
        ResponseReader { refused_by: text.map(Box::from), ..ResponseReader::default() }
    }

    /// Takes received bytes, and appends the responses that are complete with them.
    pub(super) fn receive(
        &mut self,
        mut bytes: &[u8],
        responses: &mut Vec<PublishResponse>,
    ) -> Result<(), &'static str> {
        while !bytes.is_empty() {
            bytes = match &self.current {
                None => self.read_head(bytes)?,
                Some(_) => self.read_body(bytes)?,
            };
            if self.current.as_ref().is_some_and(PartialResponse::is_complete) {
                responses.extend(self.complete());
            }
        }
        Ok(())
    }

    /// The connection has ended. Returns the response that ends with it, if there is one.
    pub(super) fn end(&mut self) -> Option<PublishResponse> {
        let ends_here = self
            .current
            .as_ref()
            .is_some_and(|current| matches!(current.body, BodyProgress::UntilClose));
        let response = self.complete();
        self.head.clear();
        response.filter(|_| ends_here)
    }

    /// Reads a head, or a part of one; returns the bytes after it.
    fn read_head<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], &'static str> {
        let before = self.head.len();
        let input = if before == 0 {
            bytes
        } else {
            self.head.extend_from_slice(bytes);
            &self.head
        };
        let Some(head) = ResponseHead::parse(input)? else {
            if before == 0 {
                self.head.extend_from_slice(bytes);
            }
            return Ok(&[]);
        };
        let after = &bytes[head.bytes - before..];
        // The final response follows an interim one.
        if head.status >= 200 {
            let body = match head.body_end()? {
                BodyEnd::Bytes(left) => BodyProgress::Bytes { left },
                BodyEnd::Chunked => BodyProgress::Chunked(Chunked::default()),
                BodyEnd::Connection => BodyProgress::UntilClose,
            };
            self.current = Some(PartialResponse {
                status: head.status,
                closes: !head.keeps_alive() || matches!(body, BodyProgress::UntilClose),
                is_page: head.header("content-type").is_some_and(refusal::is_page),
                body,
                text: Vec::new(),
            });
        }
        self.head.clear();
        Ok(after)
    }

    /// Reads a part of a body; returns the bytes after it.
    fn read_body<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], &'static str> {
        let is_searched = self.refused_by.is_some();
        let Some(current) = &mut self.current else { return Ok(bytes) };
        let is_searched = is_searched || !is_success(current.status);
        let (data, after) = match &mut current.body {
            BodyProgress::UntilClose => (bytes, &bytes[bytes.len()..]),
            BodyProgress::Bytes { left } => {
                let here = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= here as u64;
                bytes.split_at(here)
            }
            BodyProgress::Chunked(chunked) => match chunked.next(bytes)? {
                (Piece::Data(data), after) => (data, after),
                (Piece::None, after) => (&[][..], after),
                (Piece::End, after) => {
                    current.body = BodyProgress::Bytes { left: 0 };
                    (&[][..], after)
                }
            },
        };
        if is_searched {
            let space = SEARCHED_BYTES_MAX - current.text.len();
            current.text.extend_from_slice(&data[..data.len().min(space)]);
        }
        Ok(after)
    }

    fn complete(&mut self) -> Option<PublishResponse> {
        let PartialResponse { status, closes, is_page, text, .. } = self.current.take()?;
        let marked = self.refused_by.as_ref().and_then(|mark| refusal::containing(&text, mark));
        let refusal = marked.or_else(|| match (is_success(status), is_page) {
            (true, _) => None,
            (false, true) => Some(Failure::Status(status)),
            (false, false) => Some(refusal::of_text(status, &text)),
        });
        Some(PublishResponse { status, closes, refusal })
    }
}

impl PartialResponse {
    fn is_complete(&self) -> bool {
        matches!(self.body, BodyProgress::Bytes { left: 0 })
    }
}

/// Whether the server accepted the message, by the status alone.
fn is_success(status: u16) -> bool {
    (200..300).contains(&status)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANY: &[u8] = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\nok\
        HTTP/1.1 100 Continue\r\n\r\n\
        HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\nx: y\r\n\r\n\
        HTTP/1.1 204 No Content\r\n\r\n\
        HTTP/1.1 503 Busy\r\nConnection: keep-alive, Close\r\nContent-Length: 14\r\n\r\n\
        try later\nnow\n";

    fn response(status: u16, closes: bool) -> PublishResponse {
        PublishResponse { status, closes, refusal: None }
    }

    #[test]
    fn responses_are_found_in_pieces_of_any_size() {
        for piece_bytes in 1..MANY.len() {
            let (mut reader, mut responses) = (ResponseReader::default(), Vec::new());
            for piece in MANY.chunks(piece_bytes) {
                reader.receive(piece, &mut responses).expect("valid");
            }
            let taken = [(201, false), (200, false), (204, false)];
            let mut expected = taken.map(|(status, closes)| response(status, closes)).to_vec();
            let refusal = Some(Failure::Refusal(503, "try later".to_owned()));
            expected.push(PublishResponse { status: 503, closes: true, refusal });
            assert_eq!(responses, expected);
            assert_eq!(reader.end(), None);
        }
    }

    #[test]
    fn a_rejection_belongs_to_the_response_that_contains_it() {
        let mut reader = ResponseReader::refused_by(Some("err"));
        let many = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n an \
            HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7\r\n error \r\n0\r\n\r\n\
            HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        let mut responses = Vec::new();
        reader.receive(many.as_bytes(), &mut responses).expect("valid");
        reader.receive(b"HTTP/1.0 200 OK\r\n\r\n", &mut responses).expect("valid");
        reader.receive(&[b'x'; 2 * SEARCHED_BYTES_MAX], &mut responses).expect("valid");
        responses.extend(reader.end());
        let refusals: Vec<_> = responses.into_iter().map(|response| response.refusal).collect();
        assert_eq!(refusals, [None, Some(Failure::Message("error".to_owned())), None, None]);
    }

    #[test]
    fn a_response_without_length_ends_with_the_connection() {
        let (mut reader, mut responses) = (ResponseReader::default(), Vec::new());
        reader.receive(b"HTTP/1.0 200 OK\r\n\r\nsome", &mut responses).expect("valid");
        reader.receive(b" more", &mut responses).expect("valid");
        assert!(responses.is_empty());
        assert_eq!(reader.end(), Some(response(200, true)));
    }

    #[test]
    fn a_truncated_response_is_dropped() {
        let (mut reader, mut responses) = (ResponseReader::default(), Vec::new());
        reader
            .receive(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nsome", &mut responses)
            .unwrap();
        assert_eq!((responses.len(), reader.end()), (0, None));
    }

    #[test]
    fn other_protocols_are_rejected() {
        for bytes in [
            &b"SSH-2.0-OpenSSH\n\n"[..],
            b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        ] {
            assert!(ResponseReader::default().receive(bytes, &mut Vec::new()).is_err());
        }
        let endless = vec![b'a'; crate::protocol::http::HEAD_BYTES_MAX + 1];
        assert!(ResponseReader::default().receive(&endless, &mut Vec::new()).is_err());
    }
}
