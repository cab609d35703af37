//! Decodes event streams (`text/event-stream` of the HTML standard).

use std::borrow::Cow;

use memchr::{memchr, memchr2};

/// A part of an event stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SsePart<'a> {
    /// A block of lines that ended with an empty one.
    Block(&'a [u8]),
    /// A comment before an event.
    Comment,
}

/// Passes each part to `sink`. Returns how many bytes were used.
///
/// A comment before an event is used at once, so that heartbeats leave no state. A carriage return
/// at the end of the input ends its line; a line feed at the start of the next input is then an
/// empty line before an event, which has no effect.
pub(super) fn decode(bytes: &[u8], sink: &mut impl FnMut(SsePart<'_>)) -> usize {
    let (mut block, mut line) = (0, 0);
    while let Some(length) = memchr2(b'\n', b'\r', &bytes[line..]) {
        let end = line + length;
        let is_pair = bytes[end..].starts_with(b"\r\n");
        let next = end + if is_pair { 2 } else { 1 };
        if end == line {
            if line > block {
                sink(SsePart::Block(&bytes[block..line]));
            }
            block = next;
        } else if line == block && bytes[line] == b':' {
            sink(SsePart::Comment);
            block = next;
        }
        line = next;
    }
    block
}

/// The relevant fields of a block.
#[derive(Debug, Default)]
pub(super) struct EventFields<'a> {
    /// All `data:` lines, joined; without any, there is no message.
    pub data: Option<Cow<'a, [u8]>>,
    /// The last `id:`.
    pub id: Option<&'a [u8]>,
}

impl<'a> EventFields<'a> {
    /// Parses a block.
    pub(super) fn of(block: &'a [u8]) -> EventFields<'a> {
        let mut fields = EventFields::default();
        let mut rest = block;
        while !rest.is_empty() {
            let end = memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
            let line = &rest[..end];
            rest = rest.get(end + 1..).unwrap_or_default();
            let (name, value) = match memchr(b':', line) {
                Some(colon) => (&line[..colon], &line[colon + 1..]),
                None => (line, &line[line.len()..]),
            };
            let value = value.strip_prefix(b" ").unwrap_or(value);
            match name {
                b"data" => fields.data = Some(joined(fields.data.take(), value)),
                // An id with a zero byte is ignored.
                b"id" if memchr(0, value).is_none() => fields.id = Some(value),
                _ => {}
            }
        }
        fields
    }
}

/// Joins parts with line feeds, without copying if there is one.
fn joined<'a>(before: Option<Cow<'a, [u8]>>, part: &'a [u8]) -> Cow<'a, [u8]> {
    match before {
        None => Cow::Borrowed(part),
        Some(before) => {
            let mut all = before.into_owned();
            all.push(b'\n');
            all.extend_from_slice(part);
            Cow::Owned(all)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_browsers_do() {
        let fields = EventFields::of(b"id: 7\r\nevent: x\r\ndata: a\r\ndata:b\r\ndata\r\nid:8\r\n");
        assert_eq!(fields.data.as_deref(), Some(&b"a\nb\n"[..]));
        assert_eq!(fields.id, Some(&b"8"[..]));
        let fields = EventFields::of(b"data:  a\n:data: b\nid: \0\n");
        assert_eq!(fields.data.as_deref(), Some(&b" a"[..]));
        assert_eq!(fields.id, None);
        assert!(EventFields::of(b"retry: 5").data.is_none());
    }

    #[test]
    fn heartbeats_leave_nothing() {
        for (beat, comments) in
            [(&b":\n"[..], 1), (b":\n\n", 1), (b": x\r\n\r\n", 1), (b"\n", 0), (b":\r", 1)]
        {
            let mut found = 0;
            let used = decode(beat, &mut |part| {
                assert_eq!(part, SsePart::Comment);
                found += 1;
            });
            assert_eq!((used, found), (beat.len(), comments));
        }
        assert_eq!(decode(b":\ndata: x\n", &mut |part| assert_eq!(part, SsePart::Comment)), 2);
    }
}
