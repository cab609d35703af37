//! The id of a request, by which its answer and its line in the log are found: `X-Request-Id`.

/// The name of the header, in requests and answers.
pub const X_REQUEST_ID: &str = "X-Request-Id";

/// The longest id that is taken from a request: the log and the answer repeat it.
const BYTES_MAX: usize = 128;

/// The id that a request brings in the `values` of its headers of that name. One that could be
/// taken for something else in a log counts as none, and so do two.
pub fn given<'a>(mut values: impl Iterator<Item = &'a [u8]>) -> Option<&'a str> {
    match (values.next(), values.next()) {
        (Some(id), None) if is_sane(id) => str::from_utf8(id).ok(),
        _ => None,
    }
}

/// True if it is short, and has only characters that common ids have: no spaces, quotes or escapes.
fn is_sane(id: &[u8]) -> bool {
    let is_known = |byte: &u8| byte.is_ascii_alphanumeric() || b"._~:/+=@-".contains(byte);
    (1..=BYTES_MAX).contains(&id.len()) && id.iter().all(is_known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ids: &[&str]) -> Option<String> {
        given(ids.iter().map(|id| id.as_bytes())).map(str::to_owned)
    }

    #[test]
    fn a_sane_id_is_taken_and_any_other_counts_as_none() {
        let longest = "x".repeat(BYTES_MAX);
        for id in ["1", "2f6b8c1e-7a40-4d1c-9a55-0e3b1f0d7c11", "Root=1-67891233-abc", &longest] {
            assert_eq!(of(&[id]).as_deref(), Some(id));
        }
        let too_long = "x".repeat(BYTES_MAX + 1);
        for id in ["", "a b", "a\tb", "a\"b", "a\\n", "ü", &too_long] {
            assert_eq!(of(&[id]), None, "{id}");
        }
        assert_eq!(of(&["a", "a"]), None);
        assert_eq!(of(&[]), None);
    }
}
