//! Bodies of requests that change the channels users follow.

use std::fmt;

use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use throng_access::{KeptChange, ServerKey};
use throng_core::Kind;
use throng_wire::interchange;
use throng_wire::{ErrorCode, ErrorResponse, check_name, check_target_name};

use crate::kept_changes::check_covered;

/// Maximum number of channels that one change names: twice what a user may follow.
const MAX_NAMES: usize = 20_000;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeptBody {
    /// The user, in a line about several users.
    pub(super) user: Option<String>,
    /// The user follows exactly these.
    pub(super) channels: Option<NameList>,
    /// The user follows these, too.
    add: Option<NameList>,
    /// The user no longer follows these.
    remove: Option<NameList>,
}

/// Names of channels; of too many, one more than there may be. A name takes three bytes of a body,
/// and many times that in a list.
#[derive(Debug, Default)]
pub(super) struct NameList(Vec<String>);

impl<'de> Deserialize<'de> for NameList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<NameList, D::Error> {
        deserializer.deserialize_seq(NamesVisitor)
    }
}

struct NamesVisitor;

impl<'de> Visitor<'de> for NamesVisitor {
    type Value = NameList;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of names")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<NameList, A::Error> {
        let mut names = Vec::new();
        while names.len() <= MAX_NAMES
            && let Some(name) = list.next_element()?
        {
            names.push(name);
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(NameList(names))
    }
}

impl KeptBody {
    pub(super) fn parse(bytes: &[u8]) -> Result<KeptBody, ErrorResponse> {
        // Of a list, the parser would take the elements for the fields, in their order.
        if bytes.trim_ascii_start().first().is_some_and(|first| *first != b'{') {
            let message = "this is not a JSON object: it does not begin with `{`";
            return Err(ErrorResponse::new(ErrorCode::BadJson, message));
        }
        serde_json::from_slice(bytes).map_err(|error| {
            let message = format!(
                "this is not an object with `channels`, or with `add` and `remove`, as lists of \
                names: {}",
                interchange::misfit(&error)
            );
            ErrorResponse::new(ErrorCode::BadJson, message)
        })
    }

    /// The change, if the key covers its channels.
    pub(super) fn change(self, key: Option<&ServerKey>) -> Result<KeptChange, ErrorResponse> {
        let change = match (self.channels, self.add, self.remove) {
            (Some(NameList(channels)), None, None) => KeptChange::Replace(channels),
            (None, add, remove) if add.is_some() || remove.is_some() => {
                let (NameList(add), NameList(remove)) =
                    (add.unwrap_or_default(), remove.unwrap_or_default());
                KeptChange::Update { add, remove }
            }
            _ => {
                let message = "give either `channels`, or `add` and `remove`";
                return Err(ErrorResponse::new(ErrorCode::BadJson, message));
            }
        };
        let (first, second): (&[String], &[String]) = match &change {
            KeptChange::Replace(channels) => (channels, &[]),
            KeptChange::Update { add, remove } => (add, remove),
        };
        if first.len() + second.len() > MAX_NAMES {
            let message = format!("a change names at most {MAX_NAMES} channels");
            return Err(ErrorResponse::new(ErrorCode::TooManyChannels, message));
        }
        for name in first.iter().chain(second) {
            check_name(name, Kind::Channel.noun())?;
            check_covered(key, name)?;
        }
        for name in first {
            check_target_name(name, Kind::Channel.noun())?;
        }
        Ok(change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_too_many_names_one_more_than_there_may_be_is_read() {
        for (count, is_right) in [(MAX_NAMES, true), (MAX_NAMES + 1, false), (1_000_000, false)] {
            let text = format!("{{\"add\":[{}]}}", vec!["\"\""; count].join(","));
            let body = KeptBody::parse(text.as_bytes()).expect("it is a list of names");
            let Some(NameList(names)) = &body.add else { panic!("there are names") };
            assert_eq!(names.len(), count.min(MAX_NAMES + 1));
            let refusal = body.change(None).expect_err("a name is not empty");
            assert_eq!(refusal.code == ErrorCode::BadName, is_right);
            assert_eq!(refusal.code == ErrorCode::TooManyChannels, !is_right);
        }
        for list in [r#"["ann",["a"],null,null]"#, " []", "\u{feff}{}", "\"a\"", "x"] {
            let refusal = KeptBody::parse(list.as_bytes()).expect_err("it is no object");
            assert!(refusal.message.contains("does not begin with `{`"), "{}", refusal.message);
        }
        let message =
            |text: &str| KeptBody::parse(text.as_bytes()).unwrap_err().message.into_owned();
        assert!(message(r#"{"add":1}"#).ends_with("expected a list of names at column 8"));
        assert!(message("{\n\"add\":1}").ends_with("at line 2 column 7"));
        for wrong in [r#"{"add":"a"}"#, r#"{"add":[1]}"#, r#"{"add":["a"}"#, r#"{"add":["a",]}"#] {
            assert_eq!(KeptBody::parse(wrong.as_bytes()).unwrap_err().code, ErrorCode::BadJson);
        }
    }
}
