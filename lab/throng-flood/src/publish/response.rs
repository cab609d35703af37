//! Decodes responses to HTTP publishes: bytes in, outcomes out.

use crate::failure::Failure;
use crate::protocol::http::{BodyEnd, ResponseHead};
use crate::protocol::{check_length, refusal};

/// A complete response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PublishResponse {
    pub(super) status: u16,
    /// True if the server closes the connection after it.
    pub(super) closes: bool,
    /// Why the message was rejected, if it was.
    pub(super) refusal: Option<Failure>,
}

/// Reads the responses of one connection, one after the other.
#[derive(Debug, Default)]
pub(super) struct ResponseReader {
    /// The start of a response that has not arrived completely.
    partial: Vec<u8>,
    /// A text that marks a response as a rejection, whatever its status.
    refused_by: Option<Box<str>>,
}

impl ResponseReader {
    /// For responses that are rejections if their body contains `text`.
    pub(super) fn refused_by(text: Option<&str>) -> ResponseReader {
        ResponseReader { refused_by: text.map(Box::from), ..ResponseReader::default() }
    }

    /// Takes received bytes, and appends the responses that are complete with them.
    pub(super) fn receive(
        &mut self,
        bytes: &[u8],
        responses: &mut Vec<PublishResponse>,
    ) -> Result<(), &'static str> {
        self.partial.extend_from_slice(bytes);
        let mut rest = &self.partial[..];
        while let Some(head) = ResponseHead::parse(rest)? {
            let body = head.body(&rest[head.bytes..])?;
            if !body.is_whole {
                break;
            }
            rest = &rest[head.bytes + body.bytes..];
            // The final response follows an interim one.
            if head.status >= 200 {
                responses.push(self.response(&head, &body.content));
            }
        }
        let used = self.partial.len() - rest.len();
        self.partial.drain(..used);
        check_length(self.partial.len())
    }

    /// The connection has ended. Returns the response that ends with it, if there is one.
    pub(super) fn end(&mut self) -> Option<PublishResponse> {
        let partial = std::mem::take(&mut self.partial);
        let head = ResponseHead::parse(&partial).ok()??;
        let ends_here = head.body_end() == Ok(BodyEnd::Connection);
        ends_here.then(|| self.response(&head, &partial[head.bytes..]))
    }

    fn response(&self, head: &ResponseHead<'_>, body: &[u8]) -> PublishResponse {
        let status = head.status;
        let marked = self.refused_by.as_ref().and_then(|mark| refusal::containing(body, mark));
        let refusal = marked.or_else(|| {
            let is_page = head.header("content-type").is_some_and(refusal::is_page);
            let is_rejected = !(200..300).contains(&status);
            is_rejected.then(|| refusal::of_content(status, is_page, body))
        });
        let closes = !head.keeps_alive() || head.body_end() == Ok(BodyEnd::Connection);
        PublishResponse { status, closes, refusal }
    }
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
        reader.receive(&[b'x'; 2 * 4096], &mut responses).expect("valid");
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
