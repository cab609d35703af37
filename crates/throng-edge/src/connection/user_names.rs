//! The names of users whose connections follow no inbox of theirs, for an access policy that has to
//! know who sends a command, and for messages that show their publishers.
//!
//! A session has only the tag of its user. Names are kept by tags, once for all connections of a
//! user, and only if something needs them.

use std::collections::HashMap;

/// The sessions whose users' names are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeptNames {
    /// Those with commands: they publish with idempotency keys, which are their users' on all
    /// nodes.
    Commands,
    /// Those that can publish, because their messages show it.
    Publishers,
    /// All, because the policy needs them.
    All,
}

/// The user of a session that begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KnownUser<'a> {
    pub(crate) user: &'a str,
    /// The name for people, if some messages show it.
    pub(crate) shown: Option<&'a str>,
    /// The user's `info`, which other members see, if some channel has members.
    pub(crate) info: Option<&'a str>,
}

/// The names of the users of one worker's sessions.
#[derive(Debug, Default)]
pub(super) struct UserNames(HashMap<u64, Held>);

#[derive(Debug)]
struct Held {
    /// `None` if two users have the same tag: then neither has a name.
    name: Option<Box<str>>,
    /// The name for people by the newest token. Boxed twice, as most users have none.
    shown: Option<Box<Box<str>>>,
    /// The user's `info`, in the same way.
    info: Option<Box<Box<str>>>,
    sessions: u32,
}

impl UserNames {
    /// A session of this user begins.
    pub(super) fn hold(&mut self, tag: u64, KnownUser { user, shown, info }: KnownUser<'_>) {
        let new = || Held { name: Some(user.into()), shown: None, info: None, sessions: 0 };
        let held = self.0.entry(tag).or_insert_with(new);
        held.sessions += 1;
        if held.name.as_deref() != Some(user) {
            held.name = None;
        }
        for (held, text) in [(&mut held.shown, shown), (&mut held.info, info)] {
            if held.as_ref().map(|held| &***held) != text {
                *held = text.map(|text| Box::new(text.into()));
            }
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

    /// The name for people of the only user with this tag, if it is kept.
    pub(super) fn shown(&self, tag: u64) -> Option<&str> {
        let Held { name: Some(_), shown: Some(shown), .. } = self.0.get(&tag)? else { return None };
        Some(shown)
    }

    /// What the only user with this tag shows to other members, if it is kept.
    pub(super) fn info(&self, tag: u64) -> Option<&str> {
        let Held { name: Some(_), info: Some(info), .. } = self.0.get(&tag)? else { return None };
        Some(info)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<'a>(user: &'a str, shown: Option<&'a str>) -> KnownUser<'a> {
        KnownUser { user, shown, info: shown }
    }

    #[test]
    fn a_name_is_kept_as_long_as_a_session() {
        let mut names = UserNames::default();
        names.hold(1, of("ann", None));
        names.hold(1, of("ann", None));
        names.hold(2, of("bob", None));
        names.release(1);
        assert_eq!((names.get(1), names.get(2), names.get(3)), (Some("ann"), Some("bob"), None));
        names.release(1);
        names.release(1);
        assert_eq!((names.get(1), names.0.len()), (None, 1));
    }

    #[test]
    fn users_with_the_same_tag_are_not_confused() {
        let mut names = UserNames::default();
        names.hold(1, of("ann", Some("Ann")));
        names.hold(1, of("eve", Some("Ann")));
        assert_eq!((names.get(1), names.shown(1)), (None, None));
        names.release(1);
        names.hold(1, of("ann", Some("Ann")));
        assert_eq!((names.get(1), names.shown(1)), (None, None));
    }

    #[test]
    fn the_name_for_people_is_that_of_the_newest_token() {
        let mut names = UserNames::default();
        for shown in [Some("Ann"), Some("Ann B."), None, Some("A.")] {
            names.hold(1, of("ann", shown));
            assert_eq!((names.get(1), names.shown(1)), (Some("ann"), shown));
            assert_eq!(names.info(1), shown);
        }
        (0..4).for_each(|_| names.release(1));
        assert_eq!(names.shown(1), None);
    }
}
