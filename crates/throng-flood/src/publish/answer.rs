//! Answers to HTTP publishes: bytes in, statuses out. Bodies are counted through and dropped,
//! unless they say why a message was refused.

use crate::refusal;
use crate::tally::Failure;

/// More than the head of any answer to a publish.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// More than any server sends.
const HEADERS_MAX: usize = 64;

/// A line with the length of a chunk, extensions included.
const CHUNK_LINE_BYTES_MAX: usize = 4 * 1024;

/// A refusal is looked for in the first part of a body.
const WATCHED_BYTES_MAX: usize = 4 * 1024;

/// A whole answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Whether the server closes the connection after it.
    pub closes: bool,
    /// What its body says against it.
    pub refusal: Option<Failure>,
}

/// Reads the answers of one connection, one after the other.
#[derive(Debug, Default)]
pub struct Answers {
    /// A head or a chunk's line that is not there yet as a whole.
    held: Vec<u8>,
    state: State,
    /// The answer whose body is being read.
    current: Option<Answer>,
    /// What is looked for in bodies.
    refused_by: Option<Box<str>>,
    /// The first part of the current one, if it may say why a message was refused.
    body: Vec<u8>,
    /// Whether it is a page for people.
    is_page: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Head,
    Body {
        left: u64,
    },
    /// The line before a chunk, with its length.
    ChunkLine,
    /// A chunk and the line end behind it.
    Chunk {
        left: u64,
    },
    /// Lines behind the last chunk, the last of them empty.
    Trailer,
    /// The end of the connection is the end of the body.
    UntilClose,
}

impl Answers {
    /// For answers that are refusals if this is in their body.
    pub fn refused_by(text: Option<&str>) -> Answers {
        let refused_by = text.map(Box::from);
        Answers { refused_by, ..Answers::default() }
    }

    /// Takes what was received; answers that are whole with it are appended to `answers`.
    pub fn receive(
        &mut self,
        mut bytes: &[u8],
        answers: &mut Vec<Answer>,
    ) -> Result<(), &'static str> {
        while !bytes.is_empty() {
            match self.state {
                State::Head => {
                    let line_end = bytes.iter().position(|&byte| byte == b'\n');
                    self.hold(&mut bytes, line_end, HEAD_BYTES_MAX)?;
                    if self.held.ends_with(b"\r\n\r\n") || self.held.ends_with(b"\n\n") {
                        self.read_head()?;
                    }
                }
                State::Body { left } => match self.pass(&mut bytes, left) {
                    0 => self.state = State::Head,
                    left => self.state = State::Body { left },
                },
                State::ChunkLine | State::Trailer => self.read_line(&mut bytes)?,
                State::Chunk { left } => match self.pass(&mut bytes, left) {
                    0 => self.state = State::ChunkLine,
                    left => self.state = State::Chunk { left },
                },
                State::UntilClose => {
                    self.pass(&mut bytes, u64::MAX);
                }
            }
            if self.state == State::Head {
                answers.extend(self.whole());
            }
        }
        Ok(())
    }

    /// The connection has ended: the answer that ends with it, if there is one.
    pub fn end(&mut self) -> Option<Answer> {
        let is_whole = self.state == State::UntilClose;
        let current = self.whole();
        *self = Answers { refused_by: self.refused_by.take(), ..Answers::default() };
        current.filter(|_| is_whole)
    }

    /// The current answer, whose body has been read.
    fn whole(&mut self) -> Option<Answer> {
        let answer = self.current.take()?;
        let refused_by = self.refused_by.as_ref();
        let refusal = refused_by.and_then(|text| Failure::said(&self.body, text));
        let refusal = refusal.or_else(|| match (is_taken(answer.status), self.is_page) {
            (true, _) => None,
            (false, true) => Some(Failure::Status(answer.status)),
            (false, false) => Some(refusal::of_text(answer.status, &self.body)),
        });
        self.body.clear();
        Some(Answer { refusal, ..answer })
    }

    /// Passes over up to `left` bytes of a body; how many are left after that.
    fn pass(&mut self, bytes: &mut &[u8], left: u64) -> u64 {
        let here = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        let is_refused = self.current.as_ref().is_some_and(|answer| !is_taken(answer.status));
        if self.refused_by.is_some() || is_refused {
            let room = WATCHED_BYTES_MAX - self.body.len();
            self.body.extend_from_slice(&bytes[..here.min(room)]);
        }
        *bytes = &bytes[here..];
        left - here as u64
    }

    /// Moves bytes up to the line's end, or all if it is not there, to those that are held.
    fn hold(
        &mut self,
        bytes: &mut &[u8],
        line_end: Option<usize>,
        bytes_max: usize,
    ) -> Result<(), &'static str> {
        let (line, rest) = bytes.split_at(line_end.map_or(bytes.len(), |end| end + 1));
        if self.held.len() + line.len() > bytes_max {
            return Err("the head of an answer does not end");
        }
        self.held.extend_from_slice(line);
        *bytes = rest;
        Ok(())
    }

    fn read_head(&mut self) -> Result<(), &'static str> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut headers);
        match response.parse(&self.held) {
            Ok(httparse::Status::Complete(_)) => {}
            Ok(httparse::Status::Partial) | Err(_) => return Err("an answer is not HTTP"),
        }
        let status = response.code.unwrap_or_default();
        let body = Body::of(&response)?;
        self.held.clear();
        if (100..200).contains(&status) {
            // An interim answer: the real one follows.
            return Ok(());
        }
        self.is_page = body.is_page;
        self.current = Some(Answer { status, closes: body.closes, refusal: None });
        self.state = match (status, body.is_chunked, body.length) {
            (204 | 304, _, _) | (_, false, Some(0)) => State::Head,
            (_, true, _) => State::ChunkLine,
            (_, false, Some(left)) => State::Body { left },
            (_, false, None) => {
                self.current = Some(Answer { status, closes: true, refusal: None });
                State::UntilClose
            }
        };
        Ok(())
    }

    fn read_line(&mut self, bytes: &mut &[u8]) -> Result<(), &'static str> {
        let line_end = bytes.iter().position(|&byte| byte == b'\n');
        self.hold(bytes, line_end, CHUNK_LINE_BYTES_MAX)?;
        if line_end.is_none() {
            return Ok(());
        }
        let line = self.held.trim_ascii();
        self.state = match self.state {
            State::Trailer if line.is_empty() => State::Head,
            State::Trailer => State::Trailer,
            _ => match chunk_length(line).ok_or("a chunk has no length")? {
                0 => State::Trailer,
                length => State::Chunk { left: length.saturating_add(2) },
            },
        };
        self.held.clear();
        Ok(())
    }
}

/// What a head says about the body.
struct Body {
    length: Option<u64>,
    is_chunked: bool,
    closes: bool,
    is_page: bool,
}

impl Body {
    fn of(response: &httparse::Response<'_, '_>) -> Result<Body, &'static str> {
        let closes = response.version == Some(0);
        let mut body = Body { length: None, is_chunked: false, closes, is_page: false };
        for header in response.headers.iter() {
            let value = header.value.trim_ascii();
            if header.name.eq_ignore_ascii_case("content-length") {
                let length = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                body.length = Some(length.ok_or("the length of an answer is no number")?);
            } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
                body.is_chunked = has_word(value, b"chunked");
            } else if header.name.eq_ignore_ascii_case("content-type") {
                body.is_page = std::str::from_utf8(value).is_ok_and(refusal::is_page);
            } else if header.name.eq_ignore_ascii_case("connection") {
                body.closes = match body.closes {
                    true => !has_word(value, b"keep-alive"),
                    false => has_word(value, b"close"),
                };
            }
        }
        Ok(body)
    }
}

/// Whether the server took the message, by its status.
fn is_taken(status: u16) -> bool {
    (200..300).contains(&status)
}

fn has_word(list: &[u8], word: &[u8]) -> bool {
    list.split(|&byte| byte == b',').any(|item| item.trim_ascii().eq_ignore_ascii_case(word))
}

fn chunk_length(line: &[u8]) -> Option<u64> {
    let digits = line.split(|&byte| byte == b';').next()?.trim_ascii();
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
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

    fn answer(status: u16, closes: bool) -> Answer {
        Answer { status, closes, refusal: None }
    }

    #[test]
    fn answers_are_found_however_they_are_cut() {
        for piece_bytes in 1..MANY.len() {
            let (mut reader, mut answers) = (Answers::default(), Vec::new());
            for piece in MANY.chunks(piece_bytes) {
                reader.receive(piece, &mut answers).expect("valid");
            }
            let taken = [(201, false), (200, false), (204, false)];
            let mut expected = taken.map(|(status, closes)| answer(status, closes)).to_vec();
            let refusal = Some(Failure::Refusal(503, "try later".to_owned()));
            expected.push(Answer { status: 503, closes: true, refusal });
            assert_eq!(answers, expected);
            assert_eq!(reader.end(), None);
        }
    }

    #[test]
    fn a_refusal_is_found_in_the_body_that_it_is_in() {
        let mut reader = Answers::refused_by(Some("err"));
        let many = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n an \
            HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7\r\n error \r\n0\r\n\r\n\
            HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        let mut answers = Vec::new();
        reader.receive(many.as_bytes(), &mut answers).expect("valid");
        reader.receive(b"HTTP/1.0 200 OK\r\n\r\n", &mut answers).expect("valid");
        reader.receive(&[b'x'; 2 * WATCHED_BYTES_MAX], &mut answers).expect("valid");
        answers.extend(reader.end());
        let refusals: Vec<_> = answers.into_iter().map(|answer| answer.refusal).collect();
        assert_eq!(refusals, [None, Some(Failure::Said("error".to_owned())), None, None]);
    }

    #[test]
    fn an_answer_without_length_ends_with_the_connection() {
        let (mut reader, mut answers) = (Answers::default(), Vec::new());
        reader.receive(b"HTTP/1.0 200 OK\r\n\r\nsome", &mut answers).expect("valid");
        reader.receive(b" more", &mut answers).expect("valid");
        assert!(answers.is_empty());
        assert_eq!(reader.end(), Some(answer(200, true)));
    }

    #[test]
    fn an_answer_that_is_cut_off_is_none() {
        let (mut reader, mut answers) = (Answers::default(), Vec::new());
        reader.receive(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nsome", &mut answers).unwrap();
        assert_eq!((answers.len(), reader.end()), (0, None));
    }

    #[test]
    fn what_is_not_http_is_refused() {
        for bytes in [
            &b"SSH-2.0-OpenSSH\n\n"[..],
            b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        ] {
            assert!(Answers::default().receive(bytes, &mut Vec::new()).is_err());
        }
        let endless = vec![b'a'; HEAD_BYTES_MAX + 1];
        assert!(Answers::default().receive(&endless, &mut Vec::new()).is_err());
    }
}
