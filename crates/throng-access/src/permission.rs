//! Permissions on a channel or a user's inbox.

/// A permission on a channel or a user's inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Permission {
    /// To follow it.
    Subscribe,
    Publish,
    /// To read the messages that it keeps.
    History,
    /// To read who follows it.
    Presence,
    /// To erase messages of it.
    Erase,
    /// To replace messages of others.
    Edit,
    /// To set and remove keys of its state.
    State,
    /// To end it, and to open it again.
    End,
    /// To choose what the client shows of itself to the other members.
    Update,
    /// To create it.
    Create,
}

impl Permission {
    /// All permissions, in the order of the reference.
    pub const ALL: [Permission; 10] = [
        Permission::Subscribe,
        Permission::Publish,
        Permission::History,
        Permission::Presence,
        Permission::Erase,
        Permission::Edit,
        Permission::State,
        Permission::End,
        Permission::Update,
        Permission::Create,
    ];

    /// The word for it in tokens and settings.
    pub fn word(self) -> &'static str {
        match self {
            Permission::Subscribe => "subscribe",
            Permission::Publish => "publish",
            Permission::History => "history",
            Permission::Presence => "presence",
            Permission::Erase => "erase",
            Permission::Edit => "edit",
            Permission::State => "state",
            Permission::End => "end",
            Permission::Update => "update",
            Permission::Create => "create",
        }
    }
}

/// A set of permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Permissions(u16);

const _: () = assert!(Permission::ALL.len() <= u16::BITS as usize);

impl Permissions {
    /// True if the set contains `permission`.
    pub fn contains(self, permission: Permission) -> bool {
        self.0 & 1 << permission as u16 != 0
    }

    /// The set with `permission` besides.
    pub fn with(self, permission: Permission) -> Permissions {
        Permissions(self.0 | 1 << permission as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_a_set() {
        let set = Permissions::default().with(Permission::Presence).with(Permission::Publish);
        let contained: Vec<_> = Permission::ALL.map(|one| set.contains(one)).into();
        assert_eq!(contained, [false, true, false, true, false, false, false, false, false, false]);
    }
}
