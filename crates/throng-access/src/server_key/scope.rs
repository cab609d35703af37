//! Uses of server keys.

use crate::permission::Permission;

/// A permitted use of a server key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// To publish to channels and users.
    Publish,
    /// To read the messages that channels keep.
    History,
    /// To read who follows a channel.
    Presence,
    Subscribe,
    /// To erase messages.
    Erase,
    /// To replace messages.
    Edit,
    /// To set and remove keys of states.
    State,
    /// To end channels and open them again.
    End,
    /// To choose what clients show of themselves to other members.
    Update,
    /// To create channels.
    Create,
    Listing,
    /// To say which channels users follow.
    Subscriptions,
    /// To read status and metrics, and to disconnect users and revoke tokens.
    Administration,
}

impl Scope {
    /// All scopes, in the order of the reference.
    pub const ALL: [Scope; 13] = [
        Scope::Publish,
        Scope::History,
        Scope::Presence,
        Scope::Subscribe,
        Scope::Erase,
        Scope::Edit,
        Scope::State,
        Scope::End,
        Scope::Update,
        Scope::Create,
        Scope::Listing,
        Scope::Subscriptions,
        Scope::Administration,
    ];

    /// The word for it in settings.
    pub fn word(self) -> &'static str {
        match self {
            Scope::Publish => "publish",
            Scope::History => "history",
            Scope::Presence => "presence",
            Scope::Subscribe => "subscribe",
            Scope::Erase => "erase",
            Scope::Edit => "edit",
            Scope::State => "state",
            Scope::End => "end",
            Scope::Update => "update",
            Scope::Create => "create",
            Scope::Listing => "listing",
            Scope::Subscriptions => "subscriptions",
            Scope::Administration => "administration",
        }
    }

    /// The inverse of [`Scope::word`].
    pub fn from_word(word: &str) -> Option<Scope> {
        Scope::ALL.into_iter().find(|scope| scope.word() == word)
    }

    /// The permission on channels that it gives; `None` for scopes that are not about channels.
    pub fn permission(self) -> Option<Permission> {
        match self {
            Scope::Publish => Some(Permission::Publish),
            Scope::History => Some(Permission::History),
            Scope::Presence => Some(Permission::Presence),
            Scope::Subscribe => Some(Permission::Subscribe),
            Scope::Erase => Some(Permission::Erase),
            Scope::Edit => Some(Permission::Edit),
            Scope::State => Some(Permission::State),
            Scope::End => Some(Permission::End),
            Scope::Update => Some(Permission::Update),
            Scope::Create => Some(Permission::Create),
            Scope::Listing | Scope::Subscriptions | Scope::Administration => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_parsed() {
        for scope in Scope::ALL {
            assert_eq!(Scope::from_word(scope.word()), Some(scope));
        }
    }
}
