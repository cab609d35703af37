//! Channel and user names.
//!
//! A user's inbox is a channel, and so is an internal log of the server: the first byte of the key
//! tells the kinds apart, and no public name can contain it. The wire checks the rules for public
//! names.

use std::borrow::Borrow;
use std::fmt;

pub use throng_wire::Kind;

const CHANNEL_MARK: char = '\u{1}';
const USER_MARK: char = '\u{2}';
const INTERNAL_MARK: char = '\u{3}';
const PRESENCE_MARK: char = '\u{4}';
const MEMBERS_MARK: char = '\u{5}';
const ONLINE_MARK: char = '\u{6}';

pub use throng_wire::name::NAME_BYTES_MAX;

/// The name of a channel, of a user, or of an internal log.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelName(Box<str>);

impl ChannelName {
    /// The name of a channel or user.
    pub fn new(kind: Kind, name: &str) -> ChannelName {
        let mark = match kind {
            Kind::Channel => CHANNEL_MARK,
            Kind::User => USER_MARK,
            Kind::Internal => INTERNAL_MARK,
        };
        let mut key = String::with_capacity(name.len() + 1);
        key.push(mark);
        key.push_str(name);
        ChannelName(key.into_boxed_str())
    }

    /// The internal log of the presence events of the channel with this name.
    pub fn presence_events(channel: &str) -> ChannelName {
        ChannelName(format!("{PRESENCE_MARK}{channel}").into_boxed_str())
    }

    /// True if it names the presence events of a channel; [`ChannelName::name`] is the channel's.
    pub fn is_presence_events(&self) -> bool {
        self.0.starts_with(PRESENCE_MARK)
    }

    /// The internal log of the members of the channel with this name.
    pub fn members(channel: &str) -> ChannelName {
        ChannelName(format!("{MEMBERS_MARK}{channel}").into_boxed_str())
    }

    /// True if it names the members of a channel; [`ChannelName::name`] is the channel's.
    pub fn is_members(&self) -> bool {
        self.0.starts_with(MEMBERS_MARK)
    }

    /// The internal log of whether the user with this name is online.
    pub fn online(user: &str) -> ChannelName {
        ChannelName(format!("{ONLINE_MARK}{user}").into_boxed_str())
    }

    /// True if it names whether a user is online; [`ChannelName::name`] is the user's.
    pub fn is_online(&self) -> bool {
        self.0.starts_with(ONLINE_MARK)
    }

    /// True if it names the presence events or the members of a channel, or whether a user is
    /// online.
    pub fn is_presence(&self) -> bool {
        is_presence_key(&self.0)
    }

    /// The name of a channel.
    pub fn channel(name: &str) -> ChannelName {
        ChannelName::new(Kind::Channel, name)
    }

    /// The name of a user.
    pub fn user(name: &str) -> ChannelName {
        ChannelName::new(Kind::User, name)
    }

    /// The internal log of samples that the status page follows.
    pub fn status() -> ChannelName {
        ChannelName::new(Kind::Internal, throng_wire::name::STATUS)
    }

    /// The internal log that the canary publishes to and follows, to find out whether messages
    /// arrive.
    pub fn canary() -> ChannelName {
        ChannelName::new(Kind::Internal, throng_wire::name::CANARY)
    }

    /// The byte of the kind, then the name: the engine's key.
    pub fn key(&self) -> &str {
        &self.0
    }

    /// The inverse of [`ChannelName::key`].
    pub(crate) fn from_key(key: &str) -> ChannelName {
        ChannelName(key.into())
    }

    /// Whether it names a channel, a user or an internal log.
    pub fn kind(&self) -> Kind {
        kind_of_key(&self.0)
    }

    /// The name as clients know it.
    pub fn name(&self) -> &str {
        &self.0[1..]
    }
}

/// True if a text can be the [key](ChannelName::key) of a channel or a user: others may have said
/// it.
pub(crate) fn is_public_key(key: &str) -> bool {
    matches!(key.chars().next(), Some(CHANNEL_MARK | USER_MARK))
}

/// The kind of the name that has this [key](ChannelName::key).
pub(crate) fn kind_of_key(key: &str) -> Kind {
    match key.chars().next() {
        Some(USER_MARK) => Kind::User,
        Some(INTERNAL_MARK | PRESENCE_MARK | MEMBERS_MARK | ONLINE_MARK) => Kind::Internal,
        _ => Kind::Channel,
    }
}

/// The same as [`ChannelName::is_presence`] of the name that has this [key](ChannelName::key).
pub(crate) fn is_presence_key(key: &str) -> bool {
    key.starts_with([PRESENCE_MARK, MEMBERS_MARK, ONLINE_MARK])
}

/// Maps are looked up by key.
impl Borrow<str> for ChannelName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ChannelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?}", self.kind(), self.name())
    }
}
