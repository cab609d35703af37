//! The headers of a message: a version line, which may carry a status, and fields.

use std::fmt::Write as _;

/// The first line of each block.
const VERSION: &str = "NATS/1.0";

/// Room for the fields of most publications.
const BYTES_USUAL: usize = 128;

/// The headers of a message that was received; empty if it has none. Bytes that are no headers read
/// as if there were none: what a stranger publishes cannot do more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Headers<'a>(&'a str);

impl<'a> Headers<'a> {
    /// The headers in a block as the protocol carries it.
    pub fn new(block: &'a [u8]) -> Headers<'a> {
        let text = std::str::from_utf8(block).ok();
        Headers(text.filter(|text| text.starts_with(VERSION)).unwrap_or_default())
    }

    /// The status of an answer that is not a message: 204 at the end of a batch, 404 if nothing was
    /// found, 503 if no subscriber listens to the subject.
    pub fn status(&self) -> Option<u16> {
        let line = self.0.get(VERSION.len()..)?.split("\r\n").next()?;
        line.split_ascii_whitespace().next()?.parse().ok()
    }

    /// All fields, the last one first: names, whose case matters, and values. The server appends
    /// its fields, so the last one with a name is what it says and not what a publisher claims.
    pub(crate) fn last_first(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let lines = self.0.rsplit('\n').filter_map(|line| line.split_once(':'));
        lines.map(|(name, value)| (name, value.trim_matches([' ', '\t', '\r'])))
    }

    /// The value of the last field with this name.
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.last_first().find_map(|(field, value)| (field == name).then_some(value))
    }

    /// The value of a field that is a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.parse().ok()
    }
}

/// Writes a block of headers.
#[derive(Debug, Clone, Default)]
pub struct HeaderWriter(String);

impl HeaderWriter {
    /// Appends a field. Control characters of the value are left out, so that none ends the field
    /// early.
    #[must_use]
    pub fn field(mut self, name: &str, value: impl std::fmt::Display) -> HeaderWriter {
        debug_assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'));
        if self.0.is_empty() {
            self.0.reserve(BYTES_USUAL);
            self.0.push_str(VERSION);
            self.0.push_str("\r\n");
        }
        self.0.push_str(name);
        self.0.push_str(": ");
        let start = self.0.len();
        // Writing to a string does not fail.
        let _ = write!(self.0, "{value}");
        if self.0[start..].contains(char::is_control) {
            let clean: String = self.0[start..].chars().filter(|char| !char.is_control()).collect();
            self.0.truncate(start);
            self.0.push_str(&clean);
        }
        self.0.push_str("\r\n");
        self
    }

    /// The block; empty if no field was written.
    pub fn finish(mut self) -> Vec<u8> {
        if !self.0.is_empty() {
            self.0.push_str("\r\n");
        }
        self.0.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_status_and_its_fields_are_read() {
        let headers = Headers::new(b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 17\r\n\r\n");
        assert_eq!((headers.status(), headers.number("Nats-Num-Pending")), (Some(204), Some(17)));
        assert_eq!(headers.get("Nats-Sequence"), None);
        let headers = Headers::new(b"NATS/1.0\r\na: b\r\n\r\n");
        assert_eq!((headers.status(), headers.get("a")), (None, Some("b")));
        assert_eq!(Headers::new(b"HTTP/1.1 204\r\na: b\r\n\r\n"), Headers::default());
        assert_eq!(Headers::default().status(), None);
    }

    #[test]
    fn the_servers_field_wins_over_a_publishers() {
        let headers = Headers::new(b"NATS/1.0\r\nNats-Sequence: 9\r\nNats-Sequence: 10\r\n\r\n");
        assert_eq!(headers.number("Nats-Sequence"), Some(10));
    }

    proptest! {
        #[test]
        fn no_value_adds_a_field(value in "(?s).{0,40}") {
            let block = HeaderWriter::default().field("A", &value).field("B", "b").finish();
            let headers = Headers::new(&block);
            prop_assert_eq!(headers.get("B"), Some("b"));
            let clean: String = value.chars().filter(|char| !char.is_control()).collect();
            prop_assert_eq!(headers.get("A"), Some(clean.trim_matches(' ')));
            prop_assert_eq!(block.windows(2).filter(|pair| pair == b"\r\n").count(), 4);
        }

        #[test]
        fn any_bytes_are_read_without_panic(block: Vec<u8>) {
            let mut with_version = b"NATS/1.0".to_vec();
            with_version.extend_from_slice(&block);
            for block in [&block, &with_version] {
                let headers = Headers::new(block);
                let _ = (headers.status(), headers.get("a"), headers.number("a"));
            }
        }
    }
}
