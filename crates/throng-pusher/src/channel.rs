//! The names of channels, and what they say: who may follow a channel, and what it has.

/// The longest name of a channel, an event or a user, in bytes, as the libraries have it.
pub const NAME_BYTES_MAX: usize = 200;

/// The name of the channel of a signed-in user begins so; the rest is the user's id.
pub const OF_USER: &str = "#server-to-user-";

/// The clients that may follow a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Everybody who has the key of the application.
    Public,
    /// Those that the application has signed a subscription for.
    Private,
    /// The same, as a member that the application has named.
    Presence,
    /// One signed-in user.
    User,
}

/// A channel, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Channel<'a> {
    name: &'a str,
    access: Access,
    is_cache: bool,
    is_encrypted: bool,
}

impl<'a> Channel<'a> {
    /// The channel with this name; `None` if no channel can have it.
    pub fn of(name: &'a str) -> Option<Channel<'a>> {
        if let Some(user) = name.strip_prefix(OF_USER) {
            let access = Access::User;
            let channel = Channel { name, access, is_cache: false, is_encrypted: false };
            return is_user_id(user).then_some(channel);
        }
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-=@,.;".contains(&byte);
        let is_short = (1..=NAME_BYTES_MAX).contains(&name.len());
        if !is_short || !name.bytes().all(is_plain) || matches!(name, "." | "..") {
            return None;
        }
        let (access, rest) = if let Some(rest) = name.strip_prefix("private-") {
            (Access::Private, rest)
        } else if let Some(rest) = name.strip_prefix("presence-") {
            (Access::Presence, rest)
        } else {
            (Access::Public, name)
        };
        let encrypted = rest.strip_prefix("encrypted-").filter(|_| access == Access::Private);
        let is_cache = encrypted.unwrap_or(rest).starts_with("cache-");
        Some(Channel { name, access, is_cache, is_encrypted: encrypted.is_some() })
    }

    /// The name.
    pub fn name(self) -> &'a str {
        self.name
    }

    /// The clients that may follow it.
    pub fn access(self) -> Access {
        self.access
    }

    /// True if a new subscriber gets the newest event first.
    pub fn is_cache(self) -> bool {
        self.is_cache
    }

    /// True if clients may publish events of their own to it. Those of an encrypted channel could
    /// not be encrypted.
    pub fn takes_client_events(self) -> bool {
        matches!(self.access, Access::Private | Access::Presence) && !self.is_encrypted
    }

    /// The user whose channel it is.
    pub fn user(self) -> Option<&'a str> {
        self.name.strip_prefix(OF_USER)
    }
}

/// True if a user can have this id.
pub(crate) fn is_user_id(id: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&id.len()) && !id.chars().any(char::is_control)
}

/// True if an event can have this name and is no word of the protocol itself.
pub fn is_event_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len()) && !is_of_protocol(name)
}

/// The event that tells the clients of a channel how many follow it.
pub const SUBSCRIPTION_COUNT: &str = "pusher_internal:subscription_count";

/// True if the name of an event is a word of the protocol.
fn is_of_protocol(name: &str) -> bool {
    name.starts_with("pusher:") || name.starts_with("pusher_internal:")
}

/// True if it is the name of an event that clients publish.
pub fn is_client_event(name: &str) -> bool {
    name.starts_with("client-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_a_channel_is() {
        use Access::{Presence, Private, Public, User};
        for (name, access, is_cache, takes) in [
            ("news", Public, false, false),
            ("cache-news", Public, true, false),
            ("private-a", Private, false, true),
            ("private-cache-a", Private, true, true),
            ("private-encrypted-a", Private, false, false),
            ("private-encrypted-cache-a", Private, true, false),
            ("presence-a", Presence, false, true),
            ("presence-cache-a", Presence, true, true),
            ("presence-encrypted-a", Presence, false, true),
            ("privateer", Public, false, false),
            ("private-", Private, false, true),
            ("a_-=@,.;B0", Public, false, false),
            ("#server-to-user-ann", User, false, false),
        ] {
            let channel = Channel::of(name).expect(name);
            assert_eq!((channel.access(), channel.is_cache()), (access, is_cache), "{name}");
            assert_eq!(channel.takes_client_events(), takes, "{name}");
            assert_eq!(channel.user().is_some(), access == User);
        }
        let long = "x".repeat(NAME_BYTES_MAX);
        assert!(Channel::of(&long).is_some() && Channel::of(&format!("{long}x")).is_none());
        for bad in ["", ".", "..", "a/b", "a b", "a*", "é", "#a", "#server-to-user-", "a\n", "a:b"]
        {
            assert_eq!(Channel::of(bad), None, "{bad}");
        }
    }

    #[test]
    fn events_have_names_of_the_application() {
        for name in ["a", "client-a", "App\\Events\\Shipped", "é", &"e".repeat(NAME_BYTES_MAX)] {
            assert!(is_event_name(name), "{name}");
        }
        let long = "e".repeat(NAME_BYTES_MAX + 1);
        for name in ["", "pusher:ping", "pusher_internal:member_added", &long] {
            assert!(!is_event_name(name), "{name}");
        }
    }
}
