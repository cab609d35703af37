//! A secret in the file of settings.

use std::fmt;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// What is printed in place of a secret.
pub(crate) const HIDDEN: &str = "not shown";

/// A text that is never printed: neither for debugging nor with the settings, and no error quotes
/// it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(pub String);

impl Secret {
    /// Whether it is what `throng check` prints in place of a secret.
    pub(crate) fn is_hidden(&self) -> bool {
        self.0 == HIDDEN
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, target: S) -> Result<S::Ok, S::Error> {
        target.serialize_str(HIDDEN)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Secret, D::Error> {
        source.deserialize_any(SecretVisitor)
    }
}

struct SecretVisitor;

/// serde quotes a number or boolean in place of the text, and with it perhaps the secret.
pub(super) const NOT_TEXT: &str = "a secret is a text in quotation marks";

impl Visitor<'_> for SecretVisitor {
    type Value = Secret;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text in quotation marks")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Secret, E> {
        Ok(Secret(text.to_owned()))
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<Secret, E> {
        Err(E::custom(NOT_TEXT))
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<Secret, E> {
        Err(E::custom(NOT_TEXT))
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<Secret, E> {
        Err(E::custom(NOT_TEXT))
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Secret, E> {
        Err(E::custom(NOT_TEXT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize, Serialize)]
    struct Table {
        secret: Secret,
    }

    #[test]
    fn a_secret_is_not_printed() {
        let table: Table = toml::from_str("secret = 'hunter2'").unwrap();
        assert_eq!(table.secret.0, "hunter2");
        let printed = toml::to_string(&table).unwrap();
        assert!(!format!("{table:?}{printed}").contains("hunter2"));
        assert!(toml::from_str::<Table>(&printed).unwrap().secret.is_hidden());
    }

    #[test]
    fn an_error_does_not_quote_it() {
        for bad in ["271828", "2718.28", "true", "[271828]", "{ a = 271828 }", "2718-02-08"] {
            let error = toml::from_str::<Table>(&format!("secret = {bad}")).unwrap_err();
            assert!(!error.message().contains("27"), "{error}");
        }
    }
}
