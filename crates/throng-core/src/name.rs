//! Channel and user names.
//!
//! A user is a channel with a reserved name, and so is a log of the server's own: the first byte of
//! the key tells the kinds apart, and no public name can contain it. Whether a name obeys the
//! public rules is the wire's business.

use std::fmt;

pub use throng_wire::Kind;

const CHANNEL_MARK: char = '\u{1}';
const USER_MARK: char = '\u{2}';
const INTERNAL_MARK: char = '\u{3}';

pub use throng_wire::name::NAME_BYTES_MAX;

/// The name of a channel, of a user, or of a log of the server's own.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ChannelName(Box<str>);

impl ChannelName {
    /// Names the channel or user `name`.
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

    /// The name of a channel.
    pub fn channel(name: &str) -> ChannelName {
        ChannelName::new(Kind::Channel, name)
    }

    /// The name of a user.
    pub fn user(name: &str) -> ChannelName {
        ChannelName::new(Kind::User, name)
    }

    /// The log of samples that the status page follows.
    pub fn status() -> ChannelName {
        ChannelName::new(Kind::Internal, throng_wire::name::STATUS)
    }

    /// Mark and name: what the engine looks up.
    pub fn key(&self) -> &str {
        &self.0
    }

    /// The inverse of [`ChannelName::key`].
    pub fn from_key(key: &str) -> ChannelName {
        ChannelName(key.into())
    }

    /// Channel, user, or the server's own.
    pub fn kind(&self) -> Kind {
        match self.0.chars().next() {
            Some(USER_MARK) => Kind::User,
            Some(INTERNAL_MARK) => Kind::Internal,
            _ => Kind::Channel,
        }
    }

    /// The public name.
    pub fn name(&self) -> &str {
        &self.0[1..]
    }
}

impl fmt::Debug for ChannelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?}", self.kind(), self.name())
    }
}
