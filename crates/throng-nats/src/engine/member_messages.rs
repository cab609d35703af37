//! What nodes tell each other of the members of channels, as JSON, and what is taken of it.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use throng_core::{ChannelName, MemberChange, MemberPart, MemberValue, MemberWant};

/// The longest key of a member that is taken from another node, in bytes: a user or a connection.
const KEY_BYTES_MAX: usize = 1 << 10;

/// The longest member, in bytes: what it shows, and its names.
const MEMBER_BYTES_MAX: usize = 8 << 10;

/// [`MemberChange`] between nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ChangeElsewhere {
    channel: Box<str>,
    #[serde(flatten)]
    member: MemberElsewhere,
}

/// A member between nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct MemberElsewhere {
    key: Box<str>,
    #[serde(default)]
    stamp: u64,
    /// The member as a JSON object, in a text. None: it is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    member: Option<Box<str>>,
}

/// [`MemberWant`] between nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WantElsewhere {
    channel: Box<str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    after: Option<Box<str>>,
}

/// The answer to [`Question::Members`].
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MembersAnswer {
    pub(super) node: Box<str>,
    pub(super) parts: Vec<PartElsewhere>,
}

/// [`MemberPart`] between nodes.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PartElsewhere {
    channel: Box<str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    after: Option<Box<str>>,
    as_of: u64,
    members: Vec<MemberElsewhere>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next: Option<Box<str>>,
}

impl From<&MemberChange> for ChangeElsewhere {
    fn from(change: &MemberChange) -> ChangeElsewhere {
        ChangeElsewhere {
            channel: change.channel.name().into(),
            member: MemberElsewhere::of(&change.key, change.value.as_ref()),
        }
    }
}

impl ChangeElsewhere {
    /// The change. One that nobody may be shown is of nobody, and keeps its number.
    pub(super) fn change(self) -> MemberChange {
        let read = self.member.read();
        let channel = if read.is_some() { &*self.channel } else { "" };
        let channel = ChannelName::channel(channel);
        let (key, value) = read.unwrap_or_default();
        MemberChange { channel, key, value }
    }
}

impl From<MemberWant> for WantElsewhere {
    fn from(want: MemberWant) -> WantElsewhere {
        WantElsewhere { channel: want.channel.name().into(), after: want.after }
    }
}

impl WantElsewhere {
    pub(super) fn want(self) -> MemberWant {
        MemberWant { channel: ChannelName::channel(&self.channel), after: self.after }
    }
}

impl MemberElsewhere {
    fn of(key: &str, value: Option<&MemberValue>) -> MemberElsewhere {
        MemberElsewhere {
            key: key.into(),
            stamp: value.map_or(0, |value| value.stamp),
            member: value.map(|value| value.object.clone()),
        }
    }

    /// The key and the value; `None` if nobody may be shown that.
    fn read(self) -> Option<(Box<str>, Option<MemberValue>)> {
        let MemberElsewhere { key, stamp, member } = self;
        let value = member.map(|object| MemberValue { stamp, object });
        let is_shown = value.as_ref().is_none_or(|value| is_object(&value.object));
        (is_shown && (1..=KEY_BYTES_MAX).contains(&key.len())).then_some((key, value))
    }
}

/// True if a text is a JSON object on one line, and not too long.
fn is_object(text: &str) -> bool {
    text.len() <= MEMBER_BYTES_MAX
        && text.starts_with('{')
        && !text.contains(['\n', '\r'])
        && serde_json::from_str::<&RawValue>(text).is_ok()
}

impl From<&MemberPart> for PartElsewhere {
    fn from(part: &MemberPart) -> PartElsewhere {
        let member = |(key, value): &(Box<str>, MemberValue)| MemberElsewhere::of(key, Some(value));
        PartElsewhere {
            channel: part.channel.name().into(),
            after: part.after.clone(),
            as_of: part.as_of,
            members: part.members.iter().map(member).collect(),
            next: part.next.clone(),
        }
    }
}

impl PartElsewhere {
    pub(super) fn part(self) -> MemberPart {
        let read = |member: MemberElsewhere| {
            let (key, value) = member.read()?;
            Some((key, value?))
        };
        let mut members: Vec<_> = self.members.into_iter().filter_map(read).collect();
        members.sort_unstable_by(|(left, _), (right, _)| left.cmp(right));
        MemberPart {
            channel: ChannelName::channel(&self.channel),
            after: self.after,
            as_of: self.as_of,
            members,
            next: self.next,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kept::reads;

    fn value(object: &str) -> MemberValue {
        MemberValue { stamp: 7, object: object.into() }
    }

    fn change(object: Option<&str>) -> MemberChange {
        let channel = ChannelName::channel("room");
        MemberChange { channel, key: "ann".into(), value: object.map(value) }
    }

    #[test]
    fn kept_news_of_members_is_read() {
        let changes = [change(Some(r#"{"user":"ann","info":{}}"#)), change(None)];
        reads("member-changes", &changes.each_ref().map(ChangeElsewhere::from));
        let again = changes.each_ref().map(|change| ChangeElsewhere::from(change).change());
        assert_eq!(again, changes);
        let want = MemberWant { channel: ChannelName::channel("a/b"), after: Some("bob".into()) };
        reads("member-wants", &[WantElsewhere::from(want.clone())]);
        assert_eq!(WantElsewhere::from(want.clone()).want(), want);
        let part = MemberPart {
            channel: want.channel,
            after: want.after,
            as_of: u64::MAX,
            members: vec![("cy".into(), value(r#"{"user":"cy"}"#))],
            next: Some("cy".into()),
        };
        let parts = vec![PartElsewhere::from(&part)];
        reads("member-parts", &[MembersAnswer { node: "n1".into(), parts }]);
        assert_eq!(PartElsewhere::from(&part).part(), part);
    }

    #[test]
    fn what_nobody_may_be_shown_is_of_nobody() {
        let too_long = format!("{{\"a\":\"{}\"}}", "x".repeat(MEMBER_BYTES_MAX));
        for object in ["", "{", "[]", "{\"a\":\n1}", "{}{}", "event: x", &too_long] {
            let read = ChangeElsewhere::from(&change(Some(object))).change();
            assert_eq!((read.channel.name(), &*read.key, read.value), ("", "", None), "{object}");
        }
        let long = MemberChange { key: "k".repeat(KEY_BYTES_MAX + 1).into(), ..change(None) };
        assert_eq!(&*ChangeElsewhere::from(&long).change().key, "");
    }
}
