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

use std::fmt;
use std::sync::Arc;

use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use throng_core::name::Kind;

use crate::grants::Grants;
use crate::pattern::Pattern;
use crate::permission::Permission;

/// What every key begins with.
pub const PREFIX: &str = "throng_key_";

/// Random characters of a key: 62^43 is more than 2^256.
const RANDOM_CHARACTERS: usize = 43;

/// Characters that check the others: 62^6 is more than 2^32.
const CHECK_CHARACTERS: usize = 6;

/// The length of every key.
pub const KEY_BYTES: usize = PREFIX.len() + RANDOM_CHARACTERS + CHECK_CHARACTERS;

/// What the hash of a key begins with in settings.
const HASH_PREFIX: &str = "sha256:";

/// The most keys of a server. Each request with a key is compared with all of them.
pub const SERVER_KEYS_MAX: usize = 256;

const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// What a server key may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// To publish to channels and users.
    Publish,
    /// To read the messages that channels keep.
    History,
    /// To read who follows a channel.
    Presence,
    /// To follow channels.
    Subscribe,
    /// To list channels.
    Listing,
    /// To read status and metrics, and to disconnect users and revoke tokens.
    Administration,
}

impl Scope {
    /// All scopes, in the order of the reference.
    pub const ALL: [Scope; 6] = [
        Scope::Publish,
        Scope::History,
        Scope::Presence,
        Scope::Subscribe,
        Scope::Listing,
        Scope::Administration,
    ];

    /// The word for it in settings.
    pub fn word(self) -> &'static str {
        match self {
            Scope::Publish => "publish",
            Scope::History => "history",
            Scope::Presence => "presence",
            Scope::Subscribe => "subscribe",
            Scope::Listing => "listing",
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
            Scope::Listing | Scope::Administration => None,
        }
    }
}

/// Why a key or its hash is invalid. No sentence contains either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ServerKeyError {
    /// It does not begin with [`PREFIX`].
    #[error("a server key begins with {PREFIX}")]
    NoPrefix,
    /// Its length or its last characters are wrong.
    #[error("this server key is mistyped or cut off")]
    Mistyped,
    /// The server has no such key.
    #[error("this server key is not known here")]
    Unknown,
    /// A hash is not `sha256:` and 64 hexadecimal digits.
    #[error("the hash of a server key is {HASH_PREFIX} and 64 hexadecimal digits")]
    BadHash,
    /// There are more keys than [`SERVER_KEYS_MAX`].
    #[error("there are more than {SERVER_KEYS_MAX} server keys")]
    TooMany,
    /// Two keys have the same name or the same hash.
    #[error("two server keys have the same name or the same hash")]
    Twice,
    /// The system gave no random bytes.
    #[error("the system has no random bytes")]
    NoRandom,
}

/// The SHA-256 of a server key.
#[derive(Clone, Copy)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    /// The hash of a key that a client has shown.
    ///
    /// # Errors
    ///
    /// [`ServerKeyError::NoPrefix`] and [`ServerKeyError::Mistyped`].
    pub fn of(key: &str) -> Result<KeyHash, ServerKeyError> {
        let body = key.strip_prefix(PREFIX).ok_or(ServerKeyError::NoPrefix)?;
        let is_plain = body.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !is_plain || body.len() != RANDOM_CHARACTERS + CHECK_CHARACTERS {
            return Err(ServerKeyError::Mistyped);
        }
        let (random, check) = body.split_at(RANDOM_CHARACTERS);
        if check.as_bytes() != check_characters(random) {
            return Err(ServerKeyError::Mistyped);
        }
        Ok(KeyHash(sha256(key.as_bytes())))
    }

    /// Parses a hash as settings have it.
    ///
    /// # Errors
    ///
    /// [`ServerKeyError::BadHash`].
    pub fn parse(text: &str) -> Result<KeyHash, ServerKeyError> {
        let digits = text.strip_prefix(HASH_PREFIX).ok_or(ServerKeyError::BadHash)?;
        let mut hash = [0; 32];
        if digits.len() != 2 * hash.len() || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(ServerKeyError::BadHash);
        }
        for (byte, pair) in hash.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            let pair = str::from_utf8(pair).map_err(|_| ServerKeyError::BadHash)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| ServerKeyError::BadHash)?;
        }
        Ok(KeyHash(hash))
    }

    /// Whether both are the same. Takes the same time whatever they are.
    fn is(&self, other: &KeyHash) -> bool {
        let differences =
            self.0.iter().zip(other.0).fold(0, |all, (one, other)| all | (one ^ other));
        // Keeps the compiler from leaving the loop at the first difference.
        std::hint::black_box(differences) == 0
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HASH_PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash")
    }
}

/// Makes a new key.
///
/// # Errors
///
/// [`ServerKeyError::NoRandom`].
pub fn generate() -> Result<String, ServerKeyError> {
    let random = SystemRandom::new();
    let mut characters = Vec::with_capacity(RANDOM_CHARACTERS);
    let mut bytes = [0; 64];
    while characters.len() < RANDOM_CHARACTERS {
        random.fill(&mut bytes).map_err(|_| ServerKeyError::NoRandom)?;
        // A byte of 248 or more would make the first characters likelier than the others.
        let fair = bytes.iter().filter(|&&byte| byte < 248);
        characters.extend(fair.map(|&byte| ALPHABET[usize::from(byte) % ALPHABET.len()]));
    }
    let random = &characters[..RANDOM_CHARACTERS];
    let random = str::from_utf8(random).expect("letters and digits are ASCII");
    let check = check_characters(random);
    let check = str::from_utf8(&check).expect("letters and digits are ASCII");
    Ok(format!("{PREFIX}{random}{check}"))
}

/// The characters that check a key's random ones: the start of their hash, in base 62.
fn check_characters(random: &str) -> [u8; CHECK_CHARACTERS] {
    let hash = sha256(random.as_bytes());
    let mut rest = u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]]);
    let mut characters = [0; CHECK_CHARACTERS];
    for character in characters.iter_mut().rev() {
        *character = ALPHABET[rest as usize % ALPHABET.len()];
        rest /= ALPHABET.len() as u32;
    }
    characters
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
    hash
}

/// A key that the server knows: its name and what it may be used for.
#[derive(Debug, Clone)]
pub struct ServerKey {
    name: Box<str>,
    hash: KeyHash,
    scopes: Vec<Scope>,
    /// The scopes that are about channels, with the key's patterns.
    grants: Arc<Grants>,
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
        ServerKey { name: name.into(), hash, scopes, grants }
    }

    /// The name for logs and metrics.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the key has `scope`. For scopes that are about channels, [`ServerKey::grants`] says
    /// for which.
    pub fn has(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope)
    }

    /// What it allows on channels, in the same form as for a token.
    pub fn grants(&self) -> &Arc<Grants> {
        &self.grants
    }

    #[cfg(test)]
    pub(crate) fn for_tests(name: &str, scopes: &[&str]) -> ServerKey {
        let scopes = scopes.iter().filter_map(|word| Scope::from_word(word)).collect();
        ServerKey::new(name, KeyHash(sha256(name.as_bytes())), scopes, None)
    }
}

/// All keys of a server.
#[derive(Debug, Clone, Default)]
pub struct ServerKeys {
    keys: Vec<ServerKey>,
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
        Ok(ServerKeys { keys })
    }

    /// The key that a client has shown. Takes the same time for each well-formed key.
    ///
    /// # Errors
    ///
    /// [`ServerKeyError::NoPrefix`], [`ServerKeyError::Mistyped`] and [`ServerKeyError::Unknown`].
    pub fn find(&self, key: &str) -> Result<&ServerKey, ServerKeyError> {
        let hash = KeyHash::of(key)?;
        let mut found = None;
        for known in &self.keys {
            if known.hash.is(&hash) {
                found = Some(known);
            }
        }
        found.ok_or(ServerKeyError::Unknown)
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The keys in the order of the settings.
    pub fn iter(&self) -> impl Iterator<Item = &ServerKey> {
        self.keys.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use throng_core::name::ChannelName;

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

    #[test]
    fn a_known_key_has_a_known_hash() {
        // Made by Python: `hashlib.sha256`, and base 62 with `divmod`.
        let key = "throng_key_0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefg25GAMC";
        let hash = "sha256:b21ac51ce014488d89a1ebb3baccfca77f82536907f87883c388bb261742a8d3";
        assert_eq!(KeyHash::of(key).unwrap().to_string(), hash);
    }

    #[test]
    fn mistyped_keys_are_recognised() {
        let key = generate().unwrap();
        let other = |at: usize| {
            let mut bytes = key.clone().into_bytes();
            bytes[at] = if bytes[at] == b'x' { b'y' } else { b'x' };
            String::from_utf8(bytes).unwrap()
        };
        for at in PREFIX.len()..KEY_BYTES {
            assert_eq!(KeyHash::of(&other(at)).unwrap_err(), ServerKeyError::Mistyped, "at {at}");
        }
        for at in 0..PREFIX.len() {
            assert_eq!(KeyHash::of(&other(at)).unwrap_err(), ServerKeyError::NoPrefix, "at {at}");
        }
        assert_eq!(KeyHash::of(&key[..KEY_BYTES - 1]).unwrap_err(), ServerKeyError::Mistyped);
        assert_eq!(KeyHash::of(&format!("{key}0")).unwrap_err(), ServerKeyError::Mistyped);
        let multibyte = format!("{PREFIX}{}", "é".repeat(24) + "a");
        assert_eq!(KeyHash::of(&multibyte).unwrap_err(), ServerKeyError::Mistyped);
    }

    #[test]
    fn bad_hashes_are_refused() {
        let digits = "0".repeat(64);
        assert!(KeyHash::parse(&format!("sha256:{digits}")).is_ok());
        let [plus, short, long] = [
            format!("sha256:+{}", &digits[1..]),
            format!("sha256:{}", &digits[1..]),
            format!("sha256:0{digits}"),
        ];
        for bad in [digits.as_str(), "", "sha256:", &plus, &short, &long] {
            assert_eq!(KeyHash::parse(bad).unwrap_err(), ServerKeyError::BadHash, "{bad}");
        }
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
        let hash = KeyHash(sha256(b"app"));
        let scopes = vec![Scope::Publish, Scope::Listing];
        let [room, other] = ["rooms/a", "news"].map(ChannelName::channel);
        let inbox = ChannelName::user("rooms/a");
        let may = |key: &ServerKey, name| key.grants().allow(Permission::Publish, name, None);
        let key = ServerKey::new("app", hash, scopes.clone(), None);
        assert!(may(&key, &room) && may(&key, &other) && may(&key, &inbox));
        assert!(!key.grants().allow(Permission::History, &room, None));
        let pattern = Pattern::new(Kind::Channel, "rooms/*").unwrap();
        let key = ServerKey::new("app", hash, scopes, Some(vec![pattern]));
        assert!(may(&key, &room) && !may(&key, &other) && !may(&key, &inbox));
        assert!(!may(&key, &ChannelName::status()));
        assert!(key.has(Scope::Listing) && !key.has(Scope::Administration));
    }

    #[test]
    fn words_are_parsed() {
        for scope in Scope::ALL {
            assert_eq!(Scope::from_word(scope.word()), Some(scope));
        }
    }

    #[test]
    fn no_debug_output_contains_a_hash() {
        let key = ServerKey::for_tests("app", &[]);
        assert!(!format!("{key:?}").contains("sha256"));
    }
}
