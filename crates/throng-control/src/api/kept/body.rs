//! What requests say about the channels that users follow.

use serde::Deserialize;
use throng_access::{KeptChange, ServerKey};
use throng_core::Kind;
use throng_wire::{ErrorCode, ErrorResponse, check_name};

use crate::kept_changes::check_covered;

/// Maximum number of channels that one change names: twice what a user may follow.
const MAX_NAMES: usize = 20_000;

/// The body of a change.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Body {
    /// The user, in a line about several users.
    pub(super) user: Option<String>,
    /// The user follows exactly these.
    pub(super) channels: Option<Vec<String>>,
    /// The user follows these, too.
    add: Option<Vec<String>>,
    /// The user no longer follows these.
    remove: Option<Vec<String>>,
}

impl Body {
    pub(super) fn parse(bytes: &[u8]) -> Result<Body, ErrorResponse> {
        serde_json::from_slice(bytes).map_err(|error| {
            let message = format!(
                "this is not an object with `channels`, or with `add` and `remove`, as lists of \
                names: {error}"
            );
            ErrorResponse::new(ErrorCode::BadJson, message)
        })
    }

    /// The change, if the key covers its channels.
    pub(super) fn change(self, key: Option<&ServerKey>) -> Result<KeptChange, ErrorResponse> {
        let change = match (self.channels, self.add, self.remove) {
            (Some(channels), None, None) => KeptChange::Replace(channels),
            (None, add, remove) if add.is_some() || remove.is_some() => {
                let (add, remove) = (add.unwrap_or_default(), remove.unwrap_or_default());
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
        Ok(change)
    }
}
