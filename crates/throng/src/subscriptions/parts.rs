//! Cuts a file of lines into requests.

use std::io::{self, BufRead, ErrorKind, Read as _};

/// A part is complete with this many bytes. The server's default limit is 8 MiB.
const PART_BYTES: usize = 1 << 20;

/// A part is complete with this many lines: the most that the server takes.
const PART_LINES: usize = 10_000;

/// The longest line, so that a file without line feeds does not fill the memory. It is far more
/// than servers take.
const LINE_BYTES_MAX: usize = 64 << 20;

/// First bytes of text files by programs on Windows.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Lines that are sent together, each with its line feed except perhaps the last one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ImportPart {
    /// The number of the first line in the file, counted from 1.
    pub(super) first: u64,
    /// The number of lines, empty ones included.
    pub(super) lines: usize,
    pub(super) bytes: Vec<u8>,
}

impl ImportPart {
    /// The number of the last line in the file.
    pub(super) fn last(&self) -> u64 {
        self.first + self.lines as u64 - 1
    }

    /// Both halves; `None` for a single line.
    pub(super) fn halves(self) -> Option<[ImportPart; 2]> {
        let lines = self.lines / 2;
        let cut = self.bytes.split_inclusive(|byte| *byte == b'\n').take(lines);
        let cut = cut.map(<[u8]>::len).sum();
        let ImportPart { first, lines: all, mut bytes } = self;
        let upper = bytes.split_off(cut);
        let second = ImportPart { first: first + lines as u64, lines: all - lines, bytes: upper };
        (lines > 0).then_some([ImportPart { first, lines, bytes }, second])
    }
}

/// The parts of a file, in order.
#[derive(Debug)]
pub(super) struct ImportParts<R> {
    file: R,
    /// The number of the next line.
    next: u64,
}

impl<R: BufRead> ImportParts<R> {
    pub(super) fn new(file: R) -> ImportParts<R> {
        ImportParts { file, next: 1 }
    }

    fn read(&mut self) -> io::Result<Option<ImportPart>> {
        let mut part = ImportPart { first: self.next, lines: 0, bytes: Vec::new() };
        while part.bytes.len() < PART_BYTES && part.lines < PART_LINES {
            let mut line = self.file.by_ref().take(LINE_BYTES_MAX as u64 + 1);
            let bytes = line.read_until(b'\n', &mut part.bytes)?;
            if bytes == 0 {
                break;
            }
            part.lines += 1;
            if bytes > LINE_BYTES_MAX {
                let message = format!("line {} is longer than {LINE_BYTES_MAX} bytes", part.last());
                return Err(io::Error::new(ErrorKind::InvalidData, message));
            }
        }
        if self.next == 1 && part.bytes.starts_with(BYTE_ORDER_MARK) {
            part.bytes.drain(..BYTE_ORDER_MARK.len());
        }
        self.next += part.lines as u64;
        Ok((part.lines > 0).then_some(part))
    }
}

impl<R: BufRead> Iterator for ImportParts<R> {
    type Item = io::Result<ImportPart>;

    fn next(&mut self) -> Option<io::Result<ImportPart>> {
        self.read().transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &[u8]) -> Vec<ImportPart> {
        ImportParts::new(text).collect::<io::Result<_>>().unwrap()
    }

    #[test]
    fn a_part_has_whole_lines_and_their_numbers() {
        assert_eq!(parts(b""), []);
        assert_eq!(parts(b"a"), [ImportPart { first: 1, lines: 1, bytes: b"a".to_vec() }]);
        let lines = "\n".repeat(PART_LINES + 2) + "x";
        let parts = parts(lines.as_bytes());
        assert_eq!((parts[0].first, parts[0].last()), (1, PART_LINES as u64));
        assert_eq!((parts[1].first, parts[1].lines), (PART_LINES as u64 + 1, 3));
        assert_eq!(parts[1].bytes, b"\n\nx");
    }

    #[test]
    fn a_part_is_little_larger_than_its_limit_unless_a_line_is() {
        let line = "x".repeat(PART_BYTES / 3) + "\n";
        let long = "y".repeat(PART_BYTES * 2) + "\n";
        let parts = parts((line.repeat(3) + &long + &line).as_bytes());
        let lines: Vec<_> = parts.iter().map(|part| part.lines).collect();
        assert_eq!(lines, [3, 1, 1]);
        assert_eq!(parts[1].bytes.len(), long.len());
    }

    #[test]
    fn a_file_may_begin_with_a_byte_order_mark_and_need_not_end() {
        assert_eq!(parts(b"\xef\xbb\xbfa\n\xef\xbb\xbf")[0].bytes, b"a\n\xef\xbb\xbf");
        let endless = io::Read::chain(&b"a\n"[..], io::repeat(b'x'));
        let mut parts = ImportParts::new(io::BufReader::new(endless));
        let error = parts.next().expect("there is something").expect_err("the line has no end");
        assert!(error.to_string().starts_with("line 2 is longer than"), "{error}");
    }

    #[test]
    fn halves_have_all_lines() {
        let part = |first, lines, bytes: &[u8]| ImportPart { first, lines, bytes: bytes.to_vec() };
        let halves = part(7, 3, b"a\n\nbc").halves().unwrap();
        assert_eq!(halves, [part(7, 1, b"a\n"), part(8, 2, b"\nbc")]);
        assert_eq!(part(7, 1, b"a\n").halves(), None);
    }
}
