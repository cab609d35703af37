//! A head that outlives the buffer that it was read into.

use super::{BodyLength, HEADERS_MAX, Head, Version};

/// A part of the bytes: where it begins, and its length.
type Part = (u32, u32);

/// A head with its bytes, for a request that waits for something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptHead {
    bytes: Box<[u8]>,
    method: Part,
    target: Part,
    version: Version,
    host: Option<Part>,
    body: BodyLength,
    keep_alive: bool,
    headers: Box<[(Part, Part)]>,
}

impl KeptHead {
    /// Copies a head, which was parsed out of these bytes.
    pub fn new(head: &Head<'_>, bytes: &[u8]) -> KeptHead {
        let part = |part: &[u8]| {
            let from = (part.as_ptr() as usize).wrapping_sub(bytes.as_ptr() as usize);
            debug_assert!(from + part.len() <= bytes.len(), "a head of other bytes");
            (from as u32, part.len() as u32)
        };
        let headers = head.headers[..head.headers_count].iter();
        KeptHead {
            bytes: bytes.into(),
            method: part(head.method.as_bytes()),
            target: part(head.target.as_bytes()),
            version: head.version,
            host: head.host.map(|host| part(host.as_bytes())),
            body: head.body,
            keep_alive: head.keep_alive,
            headers: headers.map(|it| (part(it.name.as_bytes()), part(it.value))).collect(),
        }
    }

    /// The bytes that it was parsed out of.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The head.
    pub fn head(&self) -> Head<'_> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        for (header, &(name, value)) in headers.iter_mut().zip(&self.headers) {
            *header = httparse::Header { name: self.text(name), value: self.part(value) };
        }
        Head {
            method: self.text(self.method),
            target: self.text(self.target),
            version: self.version,
            host: self.host.map(|host| self.text(host)),
            body: self.body,
            keep_alive: self.keep_alive,
            headers,
            headers_count: self.headers.len(),
        }
    }

    fn part(&self, (from, length): Part) -> &[u8] {
        &self.bytes[from as usize..][..length as usize]
    }

    /// A part that was text when the head was parsed.
    fn text(&self, part: Part) -> &str {
        str::from_utf8(self.part(part)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Limits, Parsed, parse};
    use super::*;

    #[test]
    fn a_kept_head_says_what_the_head_said() {
        let bytes = b"\r\nGET http://a.example:80/channels/a?since=1 HTTP/1.0\r\nHost: b\r\n\
            Cookie: x=1\r\ncookie: y=\xff\r\nConnection: keep-alive\r\nEmpty:\r\n\r\nbehind";
        let limits = Limits { max_head_bytes: 1024 };
        let Ok(Parsed::Complete { head, length }) = parse(bytes, limits) else {
            panic!("the head is complete");
        };
        let kept = KeptHead::new(&head, &bytes[..length]);
        assert_eq!(format!("{:?}", kept.head()), format!("{head:?}"));
        assert_eq!(kept.bytes(), &bytes[..length]);
        assert_eq!(kept.head().headers("cookie").count(), 2);
        assert_eq!(kept.head().header("empty"), Some(&b""[..]));
    }
}
