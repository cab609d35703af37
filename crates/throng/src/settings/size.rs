//! Sizes in bytes: `64KiB`, or a plain number.

use std::fmt;
use std::str::FromStr;

use toml::Value;

use super::written::{Invalid, Written, quoted, written};

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub usize);

written!(Size);

impl Written for Size {
    const NAME: &'static str = "SIZE";
    const EXPECTED: &'static str = "a size, like \"64KiB\", \"8MiB\", \"1GiB\" or 65536";

    fn from_value(value: &Value) -> Result<Size, Invalid> {
        match value {
            Value::Integer(bytes) => {
                usize::try_from(*bytes).map(Size).map_err(|_| Invalid::not::<Size>(bytes))
            }
            Value::String(text) => text.parse(),
            other => Err(Invalid::not::<Size>(other)),
        }
    }
}

impl FromStr for Size {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Size, Invalid> {
        let size = text.parse::<throng_text::written::Size>();
        size.map(|size| Size(size.0)).map_err(|_| Invalid::not::<Size>(quoted(text)))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        throng_text::written::Size(self.0).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_sizes() {
        for (text, bytes) in
            [("0", 0), ("1000", 1000), ("16KiB", 16384), ("8MiB", 8 << 20), ("1GiB", 1 << 30)]
        {
            let size: Size = text.parse().unwrap();
            assert_eq!(size, Size(bytes));
            assert_eq!(size.to_string(), text);
        }
        assert_eq!("64 KiB".parse(), Ok(Size(65536)));
        assert_eq!(Size(1536).to_string(), "1536");
        assert_eq!(Size::from_value(&Value::Integer(65536)), Ok(Size(65536)));
    }

    #[test]
    fn refuses_what_is_not_a_size() {
        for text in ["", "KiB", "64KB", "64K", "1.5MiB", "-1", "+1", "1 2", "99999999999999999GiB"]
        {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
        assert!(Size::from_value(&Value::Integer(-1)).is_err());
    }
}
