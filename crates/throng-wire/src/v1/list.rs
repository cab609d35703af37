//! The list of a command about many channels.
//!
//! Its entries are found at once and read one by one: ten thousand would hold up a worker.

use std::fmt;
use std::ops::Range;

use serde::de::{Deserializer as _, IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::fields::{Fields, owned, pace, replay};
use crate::error::ErrorResponse;
use crate::name::{Target, check_name, check_target_name};
use crate::subscribe::Replay;

/// The most entries of a list: as many channels as a connection may ever follow.
pub(crate) const ENTRIES_MAX: usize = 10_000;

/// The list of a command, whose text its methods are given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List {
    /// The command, which says what its entries may be.
    verb: Verb,
    /// The bytes of each entry in the text of the command.
    entries: Box<[Range<u32>]>,
    /// The earlier messages to start with, where an entry does not say.
    replay: Option<Replay>,
    /// The least time between two deliveries, in milliseconds, where an entry does not say.
    pace_ms: Option<u32>,
}

/// A command that may have a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Subscribe,
    Unsubscribe,
}

/// An entry of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The channel or user, whose name is valid only if `wanted` is no error; `None` if the entry
    /// names none.
    pub target: Option<Target>,
    pub wanted: Result<Wanted, ErrorResponse>,
}

/// Where the subscription of an entry is to begin.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wanted {
    /// The id to resume after.
    pub since: Option<String>,
    /// The earlier messages to start with.
    pub replay: Option<Replay>,
    /// The least time between two deliveries, in milliseconds, if the client wants one.
    pub pace_ms: Option<u32>,
}

impl List {
    /// The list `channels` of a command. `text` is the text of the command, which `fields` are of.
    pub(super) fn from_fields(
        verb: Verb,
        fields: &Fields<'_>,
        channels: &RawValue,
        text: &str,
    ) -> Result<List, ErrorResponse> {
        let names = match verb {
            Verb::Subscribe => {
                &["type", "ref", "channels", "since_time", "history", "state", "pace"][..]
            }
            Verb::Unsubscribe => &["type", "ref", "channels"],
        };
        refuse_single(fields)?;
        fields.check_names("a command with `channels`", names)?;
        let list = || ErrorResponse::bad_request("the field `channels` must be a list");
        let mut deserializer = serde_json::Deserializer::from_str(channels.get());
        let visitor = EntriesVisitor { base: text.as_ptr() as usize };
        let entries = deserializer.deserialize_seq(visitor).map_err(|_| list())?;
        if entries.is_empty() {
            return Err(ErrorResponse::bad_request("the list `channels` is empty"));
        }
        if entries.len() > ENTRIES_MAX {
            let message = format!("the list `channels` has more than {ENTRIES_MAX} entries");
            return Err(ErrorResponse::bad_request(message));
        }
        let replay = replay(fields)?;
        Ok(List { verb, entries: entries.into(), replay, pace_ms: pace(fields.pace)? })
    }

    /// The command that it is of.
    pub fn verb(&self) -> Verb {
        self.verb
    }

    /// The number of entries, 1 to [`ENTRIES_MAX`].
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes on the heap.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.entries)
    }

    /// Reads an entry of the command with this text; `None` behind the last one.
    pub fn entry(&self, index: usize, text: &str) -> Option<Entry> {
        let Range { start, end } = self.entries.get(index)?.clone();
        let entry = text.get(start as usize..end as usize)?;
        Some(self.read(entry))
    }

    fn read(&self, entry: &str) -> Entry {
        let fields = match entry.as_bytes().first() {
            Some(b'"') => serde_json::from_str::<&RawValue>(entry)
                .map(Fields::of_channel)
                .map_err(|_| ErrorResponse::bad_request("an entry is not JSON")),
            Some(b'{') => Fields::parse(entry),
            _ => Err(ErrorResponse::bad_request(
                "an entry of `channels` must be a name, or an object with `channel` or `user`",
            )),
        };
        let fields = match fields {
            Ok(fields) => fields,
            Err(error) => return Entry { target: None, wanted: Err(error) },
        };
        let target = match fields.unchecked_target() {
            Ok(target) => target,
            Err(error) => return Entry { target: None, wanted: Err(error) },
        };
        let wanted = self.wanted(&fields, &target);
        Entry { target: Some(target), wanted }
    }

    fn wanted(&self, fields: &Fields<'_>, target: &Target) -> Result<Wanted, ErrorResponse> {
        if self.verb == Verb::Unsubscribe {
            check_name(&target.name, target.kind.noun())?;
            fields.check_names("an entry of `channels`", &["channel", "user"])?;
            return Ok(Wanted::default());
        }
        check_target_name(&target.name, target.kind.noun())?;
        let names = ["channel", "user", "since", "since_time", "history", "state", "pace"];
        refuse_single(fields)?;
        fields.check_names("an entry of `channels`", &names)?;
        let since = owned(fields.since, "since")?;
        let replay = replay(fields)?.or(self.replay);
        let pace_ms = pace(fields.pace)?.or(self.pace_ms);
        Ok(Wanted { since, replay, pace_ms })
    }
}

/// Refuses fields of a subscription to one channel.
fn refuse_single(fields: &Fields<'_>) -> Result<(), ErrorResponse> {
    let single =
        [("presence", fields.presence), ("info", fields.info), ("expires_in", fields.expires_in)];
    let Some((name, _)) = single.into_iter().find(|(_, value)| value.is_some()) else {
        return Ok(());
    };
    Err(ErrorResponse::bad_request(format!(
        "the field `{name}` is for one channel: subscribe to that by `channel`, in a command of \
         its own; with `channels` there may be `since_time`, `history`, `state` and `pace`, and \
         in each entry `since`, too"
    )))
}

/// Collects the places of the entries, up to one more than there may be.
struct EntriesVisitor {
    /// The address of the text that the places are in.
    base: usize,
}

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Vec<Range<u32>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while entries.len() <= ENTRIES_MAX
            && let Some(entry) = list.next_element::<&'de RawValue>()?
        {
            let start = (entry.get().as_ptr() as usize).saturating_sub(self.base);
            let end = start + entry.get().len();
            // No command is that long.
            let places = (u32::try_from(start), u32::try_from(end));
            let (Ok(start), Ok(end)) = places else { break };
            entries.push(start..end);
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(entries)
    }
}
