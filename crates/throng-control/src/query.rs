//! The query part of a URL: `&` between pairs, `=` within, `+` for a space, percent-encoding.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use crate::answer::Refused;

/// The pairs in order. What is not UTF-8 is refused.
pub(crate) fn pairs(
    query: &str,
) -> impl Iterator<Item = Result<(Cow<'_, str>, Cow<'_, str>), Refused>> {
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        Ok((decode(name)?, decode(value)?))
    })
}

/// The first value of `name`.
pub(crate) fn find<'a>(query: &'a str, name: &str) -> Result<Option<Cow<'a, str>>, Refused> {
    for pair in pairs(query) {
        let (this, value) = pair?;
        if this == name {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

fn decode(text: &str) -> Result<Cow<'_, str>, Refused> {
    let refused = |_| Refused::parameter("a query parameter is not UTF-8");
    if text.contains('+') {
        let text = text.replace('+', " ");
        let decoded = percent_decode_str(&text).decode_utf8().map_err(refused)?;
        return Ok(Cow::Owned(decoded.into_owned()));
    }
    percent_decode_str(text).decode_utf8().map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_decoded_in_order() {
        let all: Vec<_> = pairs("a=1&&b&c=x%20y+z&a=%2B").map(Result::unwrap).collect();
        let all: Vec<_> = all.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(all, [("a", "1"), ("b", ""), ("c", "x y z"), ("a", "+")]);
        assert_eq!(find("b=2&a=1&a=3", "a").unwrap().as_deref(), Some("1"));
        assert_eq!(find("b=2", "a").unwrap(), None);
        assert!(find("a=%ff", "a").is_err());
    }
}
