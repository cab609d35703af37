//! The output to a client, in pieces: each with the step in which its first byte was written.

/// One piece of what a connection is written.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// The head of a response: its status and all of its text.
    Head(u16, String),
    /// A text frame of a WebSocket, or a chunk of a stream.
    Text(String),
    /// The code and the reason of a close frame.
    Close(u16, String),
    /// The chunk that ends a stream.
    LastChunk,
}

#[derive(Debug, Default, Clone, Copy)]
enum Framing {
    #[default]
    Head,
    Frames,
    Chunks,
    /// The body of an error, which nothing follows.
    Body,
}

#[derive(Debug, Default)]
pub(super) struct Stream {
    framing: Framing,
    pending: Vec<u8>,
    /// The step in which the first byte of `pending` was written.
    began: u64,
}

impl Stream {
    /// Adds what was written in a step. Returns the pieces that are complete with it.
    pub(super) fn feed(&mut self, bytes: &[u8], step: u64) -> Vec<(u64, Piece)> {
        if self.pending.is_empty() {
            self.began = step;
        }
        self.pending.extend_from_slice(bytes);
        let mut pieces = Vec::new();
        while let Some((length, piece)) = self.next() {
            self.pending.drain(..length);
            pieces.push((self.began, piece));
            // A second piece begins among the bytes of this step.
            self.began = step;
        }
        pieces
    }

    /// True if the last piece is complete.
    pub(super) fn is_at_rest(&self) -> bool {
        self.pending.is_empty() || matches!(self.framing, Framing::Body)
    }

    fn next(&mut self) -> Option<(usize, Piece)> {
        match self.framing {
            Framing::Head => {
                let end = find(&self.pending, b"\r\n\r\n")? + 4;
                let head = String::from_utf8_lossy(&self.pending[..end]).into_owned();
                let status = head["HTTP/1.1 ".len()..][..3].parse().expect("a status");
                self.framing = match status {
                    101 => Framing::Frames,
                    200 if head.contains("chunked") => Framing::Chunks,
                    _ => Framing::Body,
                };
                Some((end, Piece::Head(status, head)))
            }
            Framing::Frames => self.frame(),
            Framing::Chunks => {
                let line = find(&self.pending, b"\r\n")?;
                let digits = str::from_utf8(&self.pending[..line]).expect("digits");
                let length = usize::from_str_radix(digits, 16).expect("a length");
                let (begin, end) = (line + 2, line + 2 + length);
                let text = String::from_utf8_lossy(self.pending.get(begin..end)?).into_owned();
                self.pending.get(end..end + 2)?;
                let piece = if length == 0 { Piece::LastChunk } else { Piece::Text(text) };
                Some((end + 2, piece))
            }
            Framing::Body => None,
        }
    }

    fn frame(&self) -> Option<(usize, Piece)> {
        let [first, second] = *self.pending.first_chunk()?;
        let (begin, length) = match second {
            126 => {
                let [high, low] = *self.pending.get(2..4)?.first_chunk()?;
                (4, usize::from(u16::from_be_bytes([high, low])))
            }
            short => (2, usize::from(short)),
        };
        let payload = self.pending.get(begin..begin + length)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let piece = match first {
            0x81 => Piece::Text(text(payload)),
            0x88 => {
                let (code, reason) = payload.split_first_chunk().expect("a close code");
                Piece::Close(u16::from_be_bytes(*code), text(reason))
            }
            other => panic!("a frame that begins with {other:#x}"),
        };
        Some((begin + length, piece))
    }
}

fn find(bytes: &[u8], text: &[u8]) -> Option<usize> {
    bytes.windows(text.len()).position(|window| window == text)
}

#[test]
fn a_piece_began_when_its_first_byte_was_written() {
    let mut stream = Stream::default();
    assert_eq!(stream.feed(b"HTTP/1.1 101 S\r\n\r\n\x81\x02h", 7).len(), 1);
    let pieces = stream.feed(b"i\x88\x05\x0f\xa4end\x81", 8);
    let expected = [(7, Piece::Text("hi".into())), (8, Piece::Close(4004, "end".into()))];
    assert_eq!(pieces, expected);
    assert_eq!(stream.feed(b"\x01x", 9), [(8, Piece::Text("x".into()))]);
    assert!(stream.is_at_rest());
}
