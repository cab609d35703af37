//! Keys for servers: what an application shows to publish and to administrate.
//!
//! A key is `throng_key_`, 43 letters and digits drawn at random (256 bits), and 6 that check the
//! others. The prefix lets scanners of repositories recognise a leaked key, the check lets the
//! server say that a key was mistyped.
//!
//! The server knows only the SHA-256 of a key. A plain hash is enough: slow hashes make guessing
//! expensive where secrets are chosen by people, but 256 random bits cannot be guessed, however
//! fast the hash. Because the hash of a guess cannot be steered towards the stored one, a
//! comparison that stops early would already tell an attacker nothing useful; the comparison here
//! takes the same time for every key all the same, and looks at all keys.

mod error;
mod limits;
mod login;
mod scope;
mod secret;

pub use error::ServerKeyError;
pub use limits::PREFIX;
use limits::SERVER_KEYS_MAX;
pub use login::{LOGIN_S, Logins};
pub use scope::Scope;
pub use secret::{KEY_BYTES, KeyHash, generate};

use std::sync::Arc;

use throng_core::name::{ChannelName, Kind};

use crate::grants::Grants;
use crate::pattern::Pattern;

/// A key that the server knows: its name and what it may be used for.
#[derive(Debug, Clone)]
pub struct ServerKey {
    name: Box<str>,
    hash: KeyHash,
    scopes: Vec<Scope>,
    /// The scopes that are about channels, with the key's patterns.
    grants: Arc<Grants>,
    /// The channels that the key is restricted to.
    patterns: Vec<Pattern>,
}

impl ServerKey {
    /// A key with this name. `patterns` restricts the scopes that are about channels and users;
    /// `None` does not. In them `{user}` matches nothing.
    pub fn new(
        name: &str,
        hash: KeyHash,
        scopes: Vec<Scope>,
        patterns: Option<Vec<Pattern>>,
    ) -> ServerKey {
        let any = |kind| Pattern::new(kind, "*").expect("a star is a pattern");
        let patterns = patterns.unwrap_or_else(|| vec![any(Kind::Channel), any(Kind::User)]);
        let permissions: Vec<_> = scopes.iter().filter_map(|scope| scope.permission()).collect();
        let grants = Arc::new(Grants::of_key(&permissions, &patterns));
        ServerKey { name: name.into(), hash, scopes, grants, patterns }
    }

    /// The name for logs and metrics.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True if the key has `scope`. For scopes that are about channels, [`ServerKey::grants`] says
    /// for which.
    pub fn has(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope)
    }

    /// Its grants on channels, in the same form as a token's.
    pub fn grants(&self) -> &Arc<Grants> {
        &self.grants
    }

    /// True if it is for this channel or user: the scope [`Scope::Listing`] shows these only.
    pub fn covers(&self, name: &ChannelName) -> bool {
        self.patterns.iter().any(|pattern| pattern.matches(name, None))
    }

    /// True if it may say what this user follows, by the user's inbox: a key that names users is
    /// for those alone.
    pub fn may_change_kept_of(&self, inbox: &ChannelName) -> bool {
        let names_users = self.patterns.iter().any(|pattern| pattern.kind() == Kind::User);
        !names_users || self.covers(inbox)
    }

    /// True if the key is for all channels and users.
    pub fn covers_all(&self) -> bool {
        let is_all = |kind| self.patterns.iter().any(|it| it.kind() == kind && it.text() == "*");
        is_all(Kind::Channel) && is_all(Kind::User)
    }

    #[cfg(test)]
    pub(crate) fn for_tests(name: &str, scopes: &[&str]) -> ServerKey {
        let scopes = scopes.iter().filter_map(|word| Scope::from_word(word)).collect();
        ServerKey::new(name, KeyHash::for_tests(name), scopes, None)
    }
}

/// All keys of a server.
#[derive(Debug, Clone, Default)]
pub struct ServerKeys {
    keys: Vec<Arc<ServerKey>>,
}

impl ServerKeys {
    /// A set of keys with different names and hashes.
    ///
    /// # Errors
    ///
    /// [`ServerKeyError::TooMany`] and [`ServerKeyError::Twice`].
    pub fn new(keys: Vec<ServerKey>) -> Result<ServerKeys, ServerKeyError> {
        if keys.len() > SERVER_KEYS_MAX {
            return Err(ServerKeyError::TooMany);
        }
        for (at, key) in keys.iter().enumerate() {
            let is_same = |other: &ServerKey| other.name == key.name || other.hash.is(&key.hash);
            if keys[..at].iter().any(is_same) {
                return Err(ServerKeyError::Twice);
            }
        }
        Ok(ServerKeys { keys: keys.into_iter().map(Arc::new).collect() })
    }

    /// The key that a client has shown. Takes the same time for each well-formed key.
    ///
    /// # Errors
    ///
    /// [`ServerKeyError::NoPrefix`], [`ServerKeyError::Mistyped`] and [`ServerKeyError::Unknown`].
    pub fn find(&self, key: &str) -> Result<Arc<ServerKey>, ServerKeyError> {
        self.find_hash(&KeyHash::of(key)?).ok_or(ServerKeyError::Unknown)
    }

    /// The key with this hash. Compares it with all keys, wherever the right one is.
    fn find_hash(&self, hash: &KeyHash) -> Option<Arc<ServerKey>> {
        let mut found = None;
        for known in &self.keys {
            if known.hash.is(hash) {
                found = Some(known);
            }
        }
        found.cloned()
    }

    /// True if there is no key.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The keys in the order of the settings.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<ServerKey>> {
        self.keys.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::permission::Permission;

    #[test]
    fn a_new_key_is_found_by_its_hash() {
        let [one, other] = [generate(), generate()].map(Result::unwrap);
        assert_ne!(one, other);
        assert_eq!(one.len(), KEY_BYTES);
        assert!(one.starts_with(PREFIX));
        let printed = KeyHash::of(&one).unwrap().to_string();
        let key = ServerKey::new("app", KeyHash::parse(&printed).unwrap(), vec![], None);
        let keys = ServerKeys::new(vec![ServerKey::for_tests("x", &[]), key]).unwrap();
        assert_eq!(keys.find(&one).unwrap().name(), "app");
        assert_eq!(keys.find(&other).unwrap_err(), ServerKeyError::Unknown);
    }

    /// Whether a key is right, and which, shows in no time that a client could measure: each key
    /// is compared with all, and each comparison looks at all bytes.
    #[test]
    fn a_right_key_costs_as_many_comparisons_as_a_wrong_one() {
        let texts: Vec<_> = (0..5).map(|_| generate().unwrap()).collect();
        let key = |(nth, text): (usize, &String)| {
            ServerKey::new(&nth.to_string(), KeyHash::of(text).unwrap(), vec![], None)
        };
        let keys = ServerKeys::new(texts.iter().enumerate().map(key).collect()).unwrap();
        let logins = Logins::with_secret([7; 32]);
        let comparisons = |find: &dyn Fn() -> bool, is_right: bool| {
            secret::COMPARISONS.set(0);
            assert_eq!(find(), is_right);
            secret::COMPARISONS.get()
        };
        for text in &texts {
            assert_eq!(comparisons(&|| keys.find(text).is_ok(), true), 5);
            let login = logins.issue(&keys.find(text).unwrap(), 0);
            assert_eq!(comparisons(&|| logins.find(&login, &keys, 1).is_some(), true), 5);
        }
        let wrong = generate().unwrap();
        assert_eq!(comparisons(&|| keys.find(&wrong).is_ok(), false), 5);
        let gone = ServerKey::for_tests("gone", &[]);
        let login = logins.issue(&gone, 0);
        assert_eq!(comparisons(&|| logins.find(&login, &keys, 1).is_some(), false), 5);
    }

    #[test]
    fn two_keys_need_two_names() {
        let key = |name: &str| ServerKey::for_tests(name, &[]);
        assert!(ServerKeys::new(vec![key("a"), key("b")]).is_ok());
        let twice = ServerKeys::new(vec![key("a"), key("b"), key("a")]);
        assert_eq!(twice.unwrap_err(), ServerKeyError::Twice);
        let many = (0..=SERVER_KEYS_MAX).map(|number| key(&number.to_string())).collect();
        assert_eq!(ServerKeys::new(many).unwrap_err(), ServerKeyError::TooMany);
    }

    #[test]
    fn patterns_restrict_a_key() {
        let hash = KeyHash::for_tests("app");
        let scopes = vec![Scope::Publish, Scope::Listing];
        let [room, other] = ["rooms/a", "news"].map(ChannelName::channel);
        let inbox = ChannelName::user("rooms/a");
        let may = |key: &ServerKey, name| key.grants().allow(Permission::Publish, name, None);
        let key = ServerKey::new("app", hash, scopes.clone(), None);
        assert!(may(&key, &room) && may(&key, &other) && may(&key, &inbox));
        assert!(key.covers(&room) && key.covers(&inbox) && !key.covers(&ChannelName::status()));
        assert!(!key.grants().allow(Permission::History, &room, None));
        let pattern = Pattern::new(Kind::Channel, "rooms/*").unwrap();
        let key = ServerKey::new("app", hash, scopes, Some(vec![pattern]));
        assert!(may(&key, &room) && !may(&key, &other) && !may(&key, &inbox));
        assert!(!may(&key, &ChannelName::status()));
        assert!(key.covers(&room) && !key.covers(&other) && !key.covers(&inbox));
        assert!(key.has(Scope::Listing) && !key.has(Scope::Administration));
    }

    #[test]
    fn no_debug_output_contains_a_hash() {
        let key = ServerKey::for_tests("app", &[]);
        assert!(!format!("{key:?}").contains("sha256"));
    }
}
