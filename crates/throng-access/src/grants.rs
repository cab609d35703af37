//! Grants: what a token allows its owner to do.
//!
//! A claim such as
//!
//! ```json
//! {"subscribe": ["rooms/*", "private/{user}", {"users": "*"}], "publish": ["rooms/*"]}
//! ```
//!
//! Patterns match channels; `{"users": …}` matches users' inboxes, and `{"match": …}` is the long
//! form of a channel pattern, as in `[[channels]]`. Because `{user}` stays in the pattern,
//! everybody who gets the same claim shares one [`Grants`]. With `"max_channels": 2000` a
//! connection may follow more channels than the settings allow to everybody.

mod pool;
mod table;
mod throng_claim;

pub use pool::GrantsPool;
pub(crate) use table::GRANTS_IDS_MAX;
pub use table::{GrantsId, GrantsTable};
pub use throng_claim::{GrantsError, MemberName};

use std::sync::Arc;

use throng_core::name::ChannelName;

use crate::pattern::Pattern;
use crate::permission::{Permission, Permissions};

/// One pattern and what is granted where it matches.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Grant {
    pattern: Pattern,
    permissions: Permissions,
}

const _: () = assert!(size_of::<Grant>() == 32 && size_of::<Grants>() == 48);

/// The most patterns of one token, over all permissions. A token travels with every request and has
/// at most 8 KiB: patterns belong in it, lists of channels do not.
pub(crate) const PATTERNS_MAX: usize = 128;

/// The most channels that a token may let a connection follow. Each takes 24 bytes, and a
/// connection that ends leaves all of them in one turn of its worker.
pub const CHANNELS_MAX: u16 = 10_000;

/// The grants of a token. Immutable, and shared by everybody with the same claim.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Grants {
    list: Box<[Grant]>,
    /// They are a server key's, for which rules by channel do not count.
    is_of_key: bool,
    /// How many channels a connection may follow; 0 if they say nothing of it.
    max_channels: u16,
    /// Nothing is granted that these do not grant as well. They have none themselves.
    narrowed_to: Option<Arc<Grants>>,
    /// The prefix of an application, to whose names these grants are confined whatever rules say.
    within: Option<Box<str>>,
}

impl Grants {
    /// True if a pattern grants `permission` on `name`, where `{user}` stands for `user`. Allocates
    /// nothing.
    pub fn allow(&self, permission: Permission, name: &ChannelName, user: Option<&str>) -> bool {
        self.matching(permission, name, user).is_some()
    }

    /// The first pattern that grants `permission` on `name`: for explanations.
    pub fn matching(
        &self,
        permission: Permission,
        name: &ChannelName,
        user: Option<&str>,
    ) -> Option<&Pattern> {
        if !self.includes(name) {
            return None;
        }
        let found = self.patterns(permission).find(|pattern| pattern.matches(name, user))?;
        let is_within = |limit: &Arc<Grants>| limit.allow(permission, name, user);
        self.narrowed_to.as_ref().is_none_or(is_within).then_some(found)
    }

    /// The same, for names with this prefix alone.
    #[must_use]
    pub(crate) fn confined_to(self, prefix: &str) -> Grants {
        Grants { within: Some(prefix.into()), ..self }
    }

    /// The prefix to whose names they are confined; `None` if they are for all names.
    pub fn within(&self) -> Option<&str> {
        self.within.as_deref()
    }

    /// True if they may be about a name at all.
    pub(crate) fn includes(&self, name: &ChannelName) -> bool {
        self.within().is_none_or(|prefix| name.name().starts_with(prefix))
    }

    /// These grants, as far as `limit` includes them.
    #[must_use]
    pub(crate) fn narrowed_to(&self, limit: &Arc<Grants>) -> Grants {
        debug_assert!(self.narrowed_to.is_none() && limit.narrowed_to.is_none(), "two at most");
        let max_channels = self.max_channels.min(limit.max_channels);
        Grants { narrowed_to: Some(Arc::clone(limit)), max_channels, ..self.clone() }
    }

    /// How many channels a connection may follow, beyond what the settings allow; 0 if the grants
    /// say nothing of it.
    pub fn max_channels(&self) -> usize {
        self.max_channels.into()
    }

    /// True if some pattern may grant `permission` on some channel.
    pub(crate) fn may_grant(&self, permission: Permission) -> bool {
        let has_pattern = |grants: &Grants| grants.patterns(permission).next().is_some();
        has_pattern(self) && self.narrowed_to.as_deref().is_none_or(has_pattern)
    }

    /// The user for whom a pattern with `{user}` grants `permission` on `name`, if `is_user` says
    /// of a name that it is the user's: for callers that recognise the user without knowing the
    /// name. Allocates nothing.
    pub fn recognise_user<'n>(
        &self,
        permission: Permission,
        name: &'n ChannelName,
        mut is_user: impl FnMut(&str) -> bool,
    ) -> Option<&'n str> {
        let limits = self.narrowed_to.iter().flat_map(|limit| limit.patterns(permission));
        let mut patterns = self.patterns(permission).chain(limits).filter(|_| self.includes(name));
        patterns.find_map(|pattern| pattern.matching_user(name, &mut is_user))
    }

    /// The grants of a server key: each of `permissions` where one of `patterns` matches.
    pub(crate) fn of_key(permissions: &[Permission], patterns: &[Pattern]) -> Grants {
        let mut list = Vec::new();
        for &permission in permissions {
            for pattern in patterns {
                Grants::push(&mut list, pattern.clone(), permission);
            }
        }
        Grants { list: list.into(), is_of_key: true, ..Grants::default() }
    }

    /// True if they are a server key's.
    pub fn is_of_key(&self) -> bool {
        self.is_of_key
    }

    /// The patterns for `permission`, without those to which they are narrowed.
    pub fn patterns(&self, permission: Permission) -> impl Iterator<Item = &Pattern> {
        let granted = move |grant: &&Grant| grant.permissions.contains(permission);
        self.list.iter().filter(granted).map(|grant| &grant.pattern)
    }

    /// True if it grants nothing.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty() && self.max_channels == 0
    }

    /// Collects patterns; the same pattern for several permissions is kept once.
    fn push(list: &mut Vec<Grant>, pattern: Pattern, permission: Permission) {
        if let Some(known) = list.iter_mut().find(|grant| grant.pattern == pattern) {
            known.permissions = known.permissions.with(permission);
        } else {
            let permissions = Permissions::default().with(permission);
            list.push(Grant { pattern, permissions });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants(claim: &str) -> Grants {
        Grants::from_claim(claim).unwrap()
    }

    #[test]
    fn a_permission_is_granted_by_its_own_patterns_only() {
        let grants = grants(r#"{"subscribe": ["rooms/*", "a"], "publish": ["rooms/lobby"]}"#);
        let lobby = ChannelName::channel("rooms/lobby");
        let other = ChannelName::channel("rooms/other");
        assert!(grants.allow(Permission::Subscribe, &lobby, None));
        assert!(grants.allow(Permission::Publish, &lobby, None));
        assert!(grants.allow(Permission::Subscribe, &other, None));
        assert!(!grants.allow(Permission::Publish, &other, None));
        assert!(!grants.allow(Permission::History, &lobby, None));
        assert!(!grants.allow(Permission::Subscribe, &ChannelName::user("a"), None));
    }

    #[test]
    fn narrowed_grants_need_a_pattern_of_both() {
        let [token, limit] = [
            grants(r#"{"subscribe": ["a*", "private/{user}"], "publish": ["a*"]}"#),
            grants(r#"{"subscribe": ["*b", "private/*"], "history": ["*"]}"#),
        ];
        let narrowed = token.narrowed_to(&Arc::new(limit));
        let allows = |name: &str, user| {
            narrowed.allow(Permission::Subscribe, &ChannelName::channel(name), user)
        };
        for (name, is_allowed) in [("ab", true), ("a", false), ("b", false), ("acb", true)] {
            assert_eq!(allows(name, None), is_allowed, "{name}");
        }
        assert!(allows("private/ann", Some("ann")) && !allows("private/ann", Some("bob")));
        let may_grant = |permission| narrowed.may_grant(permission);
        assert!(may_grant(Permission::Subscribe));
        assert!(!may_grant(Permission::Publish) && !may_grant(Permission::History));
        for frozen in [narrowed.to_frozen(), token.to_frozen()] {
            assert_eq!(Grants::from_frozen(&frozen).unwrap().to_frozen(), frozen);
        }
        for bad in ["", "[]", "[{}]", "[{}, {}, {}]", "[{}, []]", r#"{"read": []}"#] {
            assert!(Grants::from_frozen(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_same_pattern_is_kept_once() {
        let grants = grants(r#"{"subscribe": ["rooms/*"], "history": ["rooms/*", "rooms/*"]}"#);
        assert_eq!(grants.list.len(), 1);
        assert_eq!(grants.patterns(Permission::History).count(), 1);
        assert_eq!(grants.patterns(Permission::Publish).count(), 0);
    }
}
