//! What flags, variables and settings files have to know of a type of value.

use std::fmt::Display;
use std::path::Path;
use std::str::FromStr;

use crate::{Address, Count, Invalid, Size, Switch, Time};

/// A type of value that has the same text in a flag, a variable and a settings file.
pub trait Value: Sized + FromStr<Err = Invalid> + Display {
    /// The placeholder for the value in help texts.
    const PLACEHOLDER: &'static str;

    /// The accepted forms, for error messages.
    const EXPECTED: &'static str;

    /// How a settings file writes the value.
    const FORM: Form = Form::Text;

    /// A number, a size in bytes or a time in nanoseconds, to compare it with a range; `None` for
    /// anything else.
    fn magnitude(&self) -> Option<u128> {
        None
    }

    /// The value as a file in `directory` means it: a relative path is relative to that.
    fn placed(self, _directory: &Path) -> Self {
        self
    }
}

/// How a settings file writes a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// In quotation marks.
    Text,
    /// As a number, if the value is one.
    Number,
    /// As `true` or `false`. A flag of this form may stand alone and then means `true`.
    Boolean,
    /// As a list of texts. In a flag or variable commas separate them.
    List,
}

impl Value for Address {
    const PLACEHOLDER: &'static str = "ADDRESS";
    const EXPECTED: &'static str = Address::EXPECTED;
}

impl Value for Count {
    const PLACEHOLDER: &'static str = "NUMBER";
    const EXPECTED: &'static str = Count::EXPECTED;
    const FORM: Form = Form::Number;

    fn magnitude(&self) -> Option<u128> {
        Some(self.0 as u128)
    }
}

impl Value for Size {
    const PLACEHOLDER: &'static str = "SIZE";
    const EXPECTED: &'static str = Size::EXPECTED;

    fn magnitude(&self) -> Option<u128> {
        Some(self.0 as u128)
    }
}

impl Value for Switch {
    const PLACEHOLDER: &'static str = "true|false";
    const EXPECTED: &'static str = Switch::EXPECTED;
    const FORM: Form = Form::Boolean;
}

impl Value for Time {
    const PLACEHOLDER: &'static str = "TIME";
    const EXPECTED: &'static str = Time::EXPECTED;

    fn magnitude(&self) -> Option<u128> {
        Some(self.0.as_nanos())
    }
}
