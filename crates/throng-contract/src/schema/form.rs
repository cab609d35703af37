//! The parts that schemas are made of.

use serde_json::{Map, Value, json};

/// A reference to a schema.
pub(crate) fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// An object whose fields are always there, but for those of `optional`.
pub(crate) fn object(fields: &[(&str, Value)], optional: &[(&str, Value)]) -> Value {
    let required: Vec<_> = fields.iter().map(|(name, _)| *name).collect();
    let all = fields.iter().chain(optional);
    let properties: Map<_, _> =
        all.map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
    let mut object = json!({ "type": "object", "properties": properties });
    if !required.is_empty() {
        object["required"] = required.into();
    }
    object
}

pub(crate) fn described(mut schema: Value, description: &str) -> Value {
    schema["description"] = description.into();
    schema
}

pub(crate) fn list(items: Value) -> Value {
    json!({ "type": "array", "items": items })
}

pub(crate) fn text() -> Value {
    json!({ "type": "string" })
}

/// Marks an answer that lacks what other nodes know.
pub(crate) fn partial() -> Value {
    described(flag(), "`true` if not all nodes have answered, so that something may be missing.")
}

pub(crate) fn flag() -> Value {
    json!({ "type": "boolean" })
}

pub(crate) fn count() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

/// A time in milliseconds since 1970.
pub(crate) fn time_ms() -> Value {
    json!({ "type": "integer", "minimum": 0, "description": "Milliseconds since 1970." })
}
