//! Preferences of a request: the header `Prefer` (RFC 7240). They are not binding: an unknown or
//! malformed one is ignored.

/// True if a list of preferences has this one. `items` are the header's, between commas.
pub fn has<'a>(mut items: impl Iterator<Item = &'a [u8]>, name: &str) -> bool {
    items.any(|item| split(item).0.eq_ignore_ascii_case(name.as_bytes()))
}

/// `wait=SECONDS` in milliseconds, at most `max_ms`; `None` if the client does not say.
pub fn wait_ms<'a>(mut items: impl Iterator<Item = &'a [u8]>, max_ms: u32) -> Option<u32> {
    items.find_map(|item| {
        let (name, value) = split(item);
        if !name.eq_ignore_ascii_case(b"wait") {
            return None;
        }
        let wait_ms = parse_seconds(value?)?.min(u64::from(max_ms));
        u32::try_from(wait_ms).ok()
    })
}

/// Name and value of a preference, without its parameters and the value's quotes.
fn split(item: &[u8]) -> (&[u8], Option<&[u8]>) {
    let item = item.split(|&byte| byte == b';').next().unwrap_or_default();
    let Some(at) = item.iter().position(|&byte| byte == b'=') else {
        return (item.trim_ascii(), None);
    };
    let value = item[at + 1..].trim_ascii();
    let unquoted = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    (item[..at].trim_ascii(), Some(unquoted.unwrap_or(value)))
}

/// Parses seconds, with or without decimals, into milliseconds. Drops what is below a millisecond,
/// and saturates.
pub(crate) fn parse_seconds(text: &[u8]) -> Option<u64> {
    let mut halves = text.splitn(2, |&byte| byte == b'.');
    let whole = halves.next()?;
    let decimals = halves.next();
    let is_number = |digits: &[u8]| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    if !is_number(whole) || !decimals.is_none_or(is_number) {
        return None;
    }
    let decimals = decimals.unwrap_or_default().iter().copied();
    let milliseconds = decimals.chain(std::iter::repeat(b'0')).take(3);
    let digits = whole.iter().copied().chain(milliseconds);
    Some(
        digits.fold(0_u64, |sum, digit| {
            sum.saturating_mul(10).saturating_add(u64::from(digit - b'0'))
        }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(value: &str) -> impl Iterator<Item = &[u8]> {
        value.as_bytes().split(|&byte| byte == b',')
    }

    #[test]
    fn a_preference_is_found_in_any_case_and_with_parameters() {
        for value in ["receipt", "wait=1, Receipt", "receipt; x=1,a", " RECEIPT=1", "a , receipt "]
        {
            assert!(has(items(value), "receipt"), "{value}");
        }
        for value in ["", "receipts", "x=receipt", "a;receipt", "\"receipt\""] {
            assert!(!has(items(value), "receipt"), "{value}");
        }
    }

    #[test]
    fn a_wait_is_shortened_and_a_malformed_one_ignored() {
        for (value, expected) in [
            ("receipt", None),
            ("wait", None),
            ("wait=", None),
            ("wait=x", None),
            ("wait=-1", None),
            ("wait=x, wait=2", Some(2000)),
            ("wait=0", Some(0)),
            ("receipt, Wait = \"1.5\";x", Some(1500)),
            ("wait=61", Some(60_000)),
            ("wait=99999999999999999999", Some(60_000)),
        ] {
            assert_eq!(wait_ms(items(value), 60_000), expected, "{value}");
        }
    }
}
