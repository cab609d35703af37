//! The messages in the body of a batch: its lines, or the elements of one JSON array.

use std::fmt;

use serde::de::{Deserializer as _, SeqAccess, Visitor};
use serde_json::value::RawValue;
use throng_wire::{ErrorCode, interchange};

use crate::http::answer::ApiError;

/// Maximum number of messages in a batch. The response to one can be fifty times as long as the
/// message, so the limit on a batch's size does not limit the response enough.
const ITEMS_MAX: usize = 10_000;

/// How the messages of a batch are separated, and so are the answers to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Form {
    Lines,
    Array,
}

/// Divides a batch. The text of each message is as the client sent it, JSON or not. An error means
/// that the batch as a whole is refused.
pub(in super::super) fn divide(bytes: &[u8]) -> Result<(Form, Vec<&[u8]>), ApiError> {
    let (form, count, items) = if bytes.trim_ascii_start().starts_with(b"[") {
        let (count, items) = elements(bytes)?;
        (Form::Array, count, items)
    } else {
        (Form::Lines, lines(bytes).count(), lines(bytes).take(ITEMS_MAX).collect())
    };
    if count > ITEMS_MAX {
        let unit = if form == Form::Array { "elements" } else { "lines" };
        let message = format!(
            "the batch has {count} {unit}; the maximum is {ITEMS_MAX}; no message was published"
        );
        return Err(ApiError::new(ErrorCode::TooLarge, message));
    }
    Ok((form, items))
}

/// The lines that are not empty.
fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty())
}

/// The number of elements of a JSON array, and the first `ITEMS_MAX` of them.
fn elements(bytes: &[u8]) -> Result<(usize, Vec<&[u8]>), ApiError> {
    let mut parser = serde_json::Deserializer::from_slice(bytes);
    let result = parser.deserialize_seq(Elements);
    result.and_then(|elements| parser.end().map(|()| elements)).map_err(|error| {
        let fault = interchange::fault(&error);
        let message = format!("the batch is not a JSON array: {fault}; no message was published");
        ApiError::new(ErrorCode::BadJson, message)
    })
}

/// Collects elements. Those beyond the limit are only counted, because a list of millions would
/// take much more memory than the batch.
struct Elements;

impl<'de> Visitor<'de> for Elements {
    type Value = (usize, Vec<&'de [u8]>);

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Self::Value, A::Error> {
        let (mut count, mut items) = (0, Vec::new());
        while let Some(element) = array.next_element::<&'de RawValue>()? {
            count += 1;
            if count <= ITEMS_MAX {
                items.push(element.get().as_bytes());
            }
        }
        Ok((count, items))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(batch: &str) -> (Form, Vec<&str>) {
        let (form, items) = divide(batch.as_bytes()).unwrap();
        (form, items.into_iter().map(|item| str::from_utf8(item).unwrap()).collect())
    }

    #[test]
    fn lines_and_elements_are_told_apart_by_the_first_byte() {
        assert_eq!(texts("{}\r\n \n[]\n"), (Form::Lines, vec!["{}\r", "[]"]));
        assert_eq!(texts(" \n[ {\"a\":\n[1]} ,2\n]\n"), (Form::Array, vec!["{\"a\":\n[1]}", "2"]));
        assert_eq!(texts("[]"), (Form::Array, vec![]));
        assert_eq!(texts(""), (Form::Lines, vec![]));
    }

    #[test]
    fn an_array_that_does_not_end_or_goes_on_is_refused_as_a_whole() {
        for batch in ["[", "[{}", "[{}]{}", "[{}]\n[{}]", "[{},]", "[\"\u{1}\"]"] {
            let error = divide(batch.as_bytes()).unwrap_err();
            assert_eq!(error.error.code, ErrorCode::BadJson, "{batch}");
        }
        assert_eq!(divide(b"[\"\xff\"]").unwrap_err().error.code, ErrorCode::BadJson);
    }

    #[test]
    fn a_batch_has_a_limited_number_of_messages() {
        for (start, separator, end) in [("", "\n", ""), ("[", ",", "]")] {
            let batch = |count| format!("{start}{}{end}", vec!["1"; count].join(separator));
            assert_eq!(divide(batch(ITEMS_MAX).as_bytes()).unwrap().1.len(), ITEMS_MAX);
            let error = divide(batch(ITEMS_MAX + 1).as_bytes()).unwrap_err();
            assert_eq!(error.error.code, ErrorCode::TooLarge);
        }
    }
}
