//! The forms of JSON bodies: the schemas of the document.
//!
//! Answers may get further fields in a later version, so no schema forbids them. The tests do.

pub(crate) mod form;
mod messages;
mod operate;

use serde_json::{Map, Value};

/// All schemas by name.
pub(crate) fn all() -> Value {
    let mut all = Map::new();
    for (name, schema) in messages::all().into_iter().chain(operate::all()) {
        all.insert(name.into(), schema);
    }
    Value::Object(all)
}
