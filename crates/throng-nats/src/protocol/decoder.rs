//! Decoder of a server's output, in pieces of any size.

use super::headers::Headers;

/// The longest line, in bytes: INFO lists all servers of a cluster.
const LINE_BYTES_MAX: usize = 256 << 10;

/// The largest message, in bytes, whatever the server allows. Those of Throng are far smaller.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Beyond this many bytes, a buffer that is empty is given back.
const BUFFER_BYTES_KEPT: usize = 256 << 10;

/// A message to one of the client's subscriptions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerMessage<'a> {
    /// The subject that it was published to.
    pub subject: &'a str,
    pub sid: u64,
    /// Where an answer goes, if one is wanted.
    pub reply: Option<&'a str>,
    pub headers: Headers<'a>,
    pub payload: &'a [u8],
}

/// A server's operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerOp<'a> {
    /// The server's description and demands, as JSON.
    Info(&'a [u8]),
    Message(ServerMessage<'a>),
    Ping,
    Pong,
    Ok,
    /// An error. The server mostly hangs up after it.
    Error(&'a str),
}

/// A violation of the protocol. The connection is of no use any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A line longer than any that a server writes.
    #[error("the server sent a line of more than {LINE_BYTES_MAX} bytes: is it a NATS server?")]
    Line,
    /// A message that is too large.
    #[error("the server sent a message of more than {MESSAGE_BYTES_MAX} bytes")]
    Message,
    /// A line that the protocol does not have.
    #[error("the server does not speak the protocol of NATS")]
    Syntax,
}

/// Takes bytes, gives operations.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Where what is not decoded begins.
    start: usize,
    /// How far no end of a line was found, from `start` on.
    searched: usize,
}

/// The line of a message: where its parts are, relative to the line.
struct MessageLine<'a> {
    subject: &'a str,
    sid: u64,
    reply: Option<&'a str>,
    headers: usize,
    total: usize,
}

impl Decoder {
    /// Takes what the server sent.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
            if self.buffer.capacity() > BUFFER_BYTES_KEPT {
                self.buffer = Vec::new();
            }
        } else if self.start > self.buffer.len() / 2 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next operation; `None` if more bytes are needed.
    ///
    /// # Errors
    ///
    /// If these bytes are not the protocol.
    pub(crate) fn next_op(&mut self) -> Result<Option<ServerOp<'_>>, DecodeError> {
        let rest = &self.buffer[self.start..];
        let Some(at) = rest[self.searched..].iter().position(|byte| *byte == b'\n') else {
            self.searched = rest.len();
            return if rest.len() > LINE_BYTES_MAX { Err(DecodeError::Line) } else { Ok(None) };
        };
        let end = self.searched + at;
        let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
        if line.len() > LINE_BYTES_MAX {
            return Err(DecodeError::Line);
        }
        let text = std::str::from_utf8(line).map_err(|_| DecodeError::Syntax)?;
        let (verb, arguments) = text.split_once([' ', '\t']).unwrap_or((text, ""));
        let has_headers = verb.eq_ignore_ascii_case("HMSG");
        if has_headers || verb.eq_ignore_ascii_case("MSG") {
            let line = message_line(arguments, has_headers)?;
            let body = end + 1;
            let whole = body + line.total + 2;
            if rest.len() < whole {
                return Ok(None);
            }
            if &rest[whole - 2..whole] != b"\r\n" {
                return Err(DecodeError::Syntax);
            }
            let (headers, payload) = rest[body..whole - 2].split_at(line.headers);
            self.start += whole;
            self.searched = 0;
            return Ok(Some(ServerOp::Message(ServerMessage {
                subject: line.subject,
                sid: line.sid,
                reply: line.reply,
                headers: Headers::new(headers),
                payload,
            })));
        }
        let op = match verb.to_ascii_uppercase().as_str() {
            "INFO" => ServerOp::Info(arguments.as_bytes()),
            "PING" => ServerOp::Ping,
            "PONG" => ServerOp::Pong,
            "+OK" => ServerOp::Ok,
            "-ERR" => ServerOp::Error(arguments.trim().trim_matches('\'')),
            _ => return Err(DecodeError::Syntax),
        };
        self.start += end + 1;
        self.searched = 0;
        Ok(Some(op))
    }
}

/// Parses `subject sid [reply] [headers] total`.
fn message_line(arguments: &str, has_headers: bool) -> Result<MessageLine<'_>, DecodeError> {
    let mut parts = [""; 5];
    let mut count = 0;
    for part in arguments.split_ascii_whitespace() {
        *parts.get_mut(count).ok_or(DecodeError::Syntax)? = part;
        count += 1;
    }
    let sizes = if has_headers { 2 } else { 1 };
    let reply = match count.checked_sub(sizes) {
        Some(2) => None,
        Some(3) => Some(parts[2]),
        _ => return Err(DecodeError::Syntax),
    };
    let number = |part: &str| part.parse::<usize>().map_err(|_| DecodeError::Syntax);
    let total = number(parts[count - 1])?;
    let headers = if has_headers { number(parts[count - 2])? } else { 0 };
    if total > MESSAGE_BYTES_MAX {
        return Err(DecodeError::Message);
    }
    if headers > total {
        return Err(DecodeError::Syntax);
    }
    let sid = parts[1].parse().map_err(|_| DecodeError::Syntax)?;
    Ok(MessageLine { subject: parts[0], sid, reply, headers, total })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode(pieces: &[&[u8]]) -> Result<Vec<String>, DecodeError> {
        let mut decoder = Decoder::default();
        let mut found = Vec::new();
        for piece in pieces {
            decoder.feed(piece);
            while let Some(op) = decoder.next_op()? {
                found.push(format!("{op:?}"));
            }
        }
        Ok(found)
    }

    const SESSION: &[u8] = b"INFO {\"a\":1}\r\n+OK\r\nPING\r\nMSG a.b 7 3\r\nx\ny\r\n\
        HMSG a 12 r.1 12 14\r\nNATS/1.0\r\n\r\nhi\r\nMSG a 1 0\r\n\r\nPONG\r\n\
        -ERR 'Slow Consumer'\r\n";

    #[test]
    fn a_session_is_the_same_however_it_is_split() {
        let whole = decode(&[SESSION]).expect("it is the protocol");
        assert_eq!(whole.len(), 8);
        assert!(whole[3].contains("sid: 7") && whole[3].contains("[120, 10, 121]"), "{}", whole[3]);
        assert!(whole[4].contains("reply: Some(\"r.1\")") && whole[4].contains("[104, 105]"));
        assert_eq!(whole[7], "Error(\"Slow Consumer\")");
        for at in 0..=SESSION.len() {
            let (first, second) = SESSION.split_at(at);
            assert_eq!(decode(&[first, second]).as_ref(), Ok(&whole), "split at {at}");
        }
        let bytes: Vec<_> = SESSION.chunks(1).collect();
        assert_eq!(decode(&bytes), Ok(whole));
    }

    #[test]
    fn what_is_not_the_protocol_is_an_error() {
        for line in [
            "HTTP/1.1 400 Bad Request\r\n",
            "MSG a 7\r\n",
            "MSG a 7 r s 3\r\n",
            "MSG a x 3\r\n",
            "MSG a 7 -1\r\n",
            "MSG a 7 1\r\nabc\r\n",
            "HMSG a 7 9 8\r\n",
            "\r\n",
        ] {
            assert_eq!(decode(&[line.as_bytes()]), Err(DecodeError::Syntax), "{line}");
        }
        assert_eq!(decode(&[b"MSG a 7 99999999999\r\n"]), Err(DecodeError::Message));
        assert_eq!(decode(&[&vec![b'a'; LINE_BYTES_MAX + 1]]), Err(DecodeError::Line));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(pieces: Vec<Vec<u8>>) {
            let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            let _ = decode(&pieces);
        }
    }
}
