//! Sizes in bytes.

use std::fmt;
use std::str::FromStr;

use crate::Invalid;
use crate::number::{in_units, parts};

/// A number of bytes: `65536`, `64k`, `64KB`, `64KiB`.
///
/// `k`, `KB` and `KiB` are all 1024, as in nginx, Redis and PostgreSQL: sizes limit memory, and a
/// limit of 64 KB must accept a message of 65,536 bytes. `Display` writes `KiB`, which is
/// unambiguous.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub usize);

const UNITS: [(&str, u128); 14] = [
    ("", 1),
    ("B", 1),
    ("k", 1 << 10),
    ("KB", 1 << 10),
    ("KiB", 1 << 10),
    ("M", 1 << 20),
    ("MB", 1 << 20),
    ("MiB", 1 << 20),
    ("G", 1 << 30),
    ("GB", 1 << 30),
    ("GiB", 1 << 30),
    ("T", 1 << 40),
    ("TB", 1 << 40),
    ("TiB", 1 << 40),
];

/// The units that `Display` uses, largest first.
const DISPLAY_UNITS: [(&str, usize); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

impl Size {
    /// The accepted form, for error messages.
    pub const EXPECTED: &'static str = "a size, like 65536, \"64KiB\" or \"1.5M\"";

    /// The number before the unit, and the unit in bytes (`None` without a unit).
    pub fn parts(text: &str) -> Option<(f64, Option<f64>)> {
        parts(text, &UNITS)
    }
}

impl FromStr for Size {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Size, Invalid> {
        in_units(text, &UNITS)
            .and_then(|bytes| usize::try_from(bytes).ok())
            .map(Size)
            .ok_or_else(|| Invalid::new(text, Size::EXPECTED))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_whole = |(_, bytes): &&(&str, usize)| self.0 > 0 && self.0.is_multiple_of(*bytes);
        match DISPLAY_UNITS.iter().find(is_whole) {
            Some((unit, bytes)) => write!(f, "{}{unit}", self.0 / bytes),
            None => write!(f, "{}", self.0),
        }
    }
}
