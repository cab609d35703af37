//! Common parts of several JSON parsers.

use std::borrow::Cow;

use serde::Deserialize;

/// A string that borrows where it has no escapes.
#[derive(Deserialize)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub Cow<'a, str>);

/// True if a text begins as an object does. Derived parsers of structures accept arrays, too.
pub(crate) fn is_object(json: &str) -> bool {
    json.trim_ascii_start().starts_with('{')
}
