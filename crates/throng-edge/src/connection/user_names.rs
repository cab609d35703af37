//! The names of users whose connections follow no inbox of theirs, for an access policy that has to
//! know who sends a command.
//!
//! A session has only the tag of its user. Names are kept by tags, once for all connections of a
//! user, and only if the policy needs them.

use std::collections::HashMap;

/// The names of the users of one worker's sessions.
#[derive(Debug, Default)]
pub(super) struct UserNames(HashMap<u64, Held>);

#[derive(Debug)]
struct Held {
    /// `None` if two users have the same tag: then neither has a name.
    name: Option<Box<str>>,
    sessions: u32,
}

impl UserNames {
    /// A session of this user begins.
    pub(super) fn hold(&mut self, tag: u64, name: &str) {
        let held =
            self.0.entry(tag).or_insert_with(|| Held { name: Some(name.into()), sessions: 0 });
        held.sessions += 1;
        if held.name.as_deref() != Some(name) {
            held.name = None;
        }
    }

    /// A session of a user with this tag ends. One whose name was never known may take the name
    /// from others of the same user, which a policy is asked about without it then.
    pub(super) fn release(&mut self, tag: u64) {
        let Some(held) = self.0.get_mut(&tag) else { return };
        held.sessions -= 1;
        if held.sessions == 0 {
            self.0.remove(&tag);
        }
    }

    /// The name of the only user with this tag, if it is kept.
    pub(super) fn get(&self, tag: u64) -> Option<&str> {
        self.0.get(&tag)?.name.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_as_long_as_a_session() {
        let mut names = UserNames::default();
        names.hold(1, "ann");
        names.hold(1, "ann");
        names.hold(2, "bob");
        names.release(1);
        assert_eq!((names.get(1), names.get(2), names.get(3)), (Some("ann"), Some("bob"), None));
        names.release(1);
        names.release(1);
        assert_eq!((names.get(1), names.0.len()), (None, 1));
    }

    #[test]
    fn users_with_the_same_tag_are_not_confused() {
        let mut names = UserNames::default();
        names.hold(1, "ann");
        names.hold(1, "eve");
        assert_eq!(names.get(1), None);
        names.release(1);
        names.hold(1, "ann");
        assert_eq!(names.get(1), None);
    }
}
