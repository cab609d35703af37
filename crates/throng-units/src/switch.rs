//! Booleans, as flags and settings accept them.

use std::fmt;
use std::str::FromStr;

use crate::Invalid;

/// `true`, `yes`, `on` or `1`; `false`, `no`, `off` or `0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switch(pub bool);

impl Switch {
    /// The accepted form, for error messages.
    pub const EXPECTED: &'static str = "true or false";
}

impl FromStr for Switch {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Switch, Invalid> {
        match text.trim().to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => Ok(Switch(true)),
            "false" | "no" | "off" | "0" => Ok(Switch(false)),
            _ => Err(Invalid::new(text, Switch::EXPECTED)),
        }
    }
}

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
