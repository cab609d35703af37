//! Parses the claim `throng` of a token.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use throng_core::name::Kind;

use super::{CHANNELS_MAX, Grant, Grants, PATTERNS_MAX};
use crate::json::Text;
use crate::pattern::{Pattern, PatternError};
use crate::permission::Permission;

/// The member that is no permission.
const MAX_CHANNELS: &str = "max_channels";

/// Why the claim `throng` is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GrantsError {
    /// It is no object with lists of patterns.
    #[error("the claim `throng` is not an object with lists of patterns")]
    Form,
    /// It has a member that is none of the permissions.
    #[error("the claim `throng` has an unknown member{0}")]
    Unknown(MemberName),
    /// It has one of the permissions twice.
    #[error("the claim `throng` has the member `{0}` twice")]
    Twice(&'static str),
    /// It has more patterns than [`PATTERNS_MAX`].
    #[error("the claim `throng` has more than {PATTERNS_MAX} patterns")]
    TooMany,
    /// Its `max_channels` is not a number from 1 to [`CHANNELS_MAX`].
    #[error("the claim `throng`: `max_channels` must be a number from 1 to {CHANNELS_MAX}")]
    MaxChannels,
    /// One of its patterns is invalid.
    #[error("the claim `throng`: {0}")]
    Pattern(#[from] PatternError),
}

/// The name of a member that is unknown, as a sentence may quote it: a short word, or nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemberName {
    bytes: [u8; MemberName::BYTES_MAX],
    length: u8,
}

impl MemberName {
    /// A mistyped name of a permission is about as long as that.
    const BYTES_MAX: usize = 31;

    /// The name, if it is a word.
    pub fn new(name: &str) -> MemberName {
        let is_word =
            name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
        let mut word = MemberName::default();
        if is_word && let Some(place) = word.bytes.get_mut(..name.len()) {
            place.copy_from_slice(name.as_bytes());
            word.length = name.len() as u8;
        }
        word
    }
}

impl fmt::Display for MemberName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match str::from_utf8(&self.bytes[..usize::from(self.length)]) {
            Ok(name) if !name.is_empty() => write!(f, " `{name}`"),
            _ => Ok(()),
        }
    }
}

impl Grants {
    /// The grants of a claim, which is JSON.
    ///
    /// # Errors
    ///
    /// See [`GrantsError`].
    pub fn from_claim(json: &str) -> Result<Grants, GrantsError> {
        let claim: Claim<'_> = serde_json::from_str(json).map_err(|_| GrantsError::Form)?;
        if let Some(error) = claim.bad_member {
            return Err(error);
        }
        if claim.count > PATTERNS_MAX {
            return Err(GrantsError::TooMany);
        }
        let mut list: Vec<Grant> = Vec::with_capacity(claim.entries.len());
        for Entry { permission, kind, text } in claim.entries {
            Grants::push(&mut list, Pattern::new(kind, &text)?, permission);
        }
        Ok(Grants { list: list.into(), max_channels: claim.max_channels, ..Grants::default() })
    }
}

impl Grants {
    /// The text that [`Grants::from_frozen`] reads as these grants, for a process that takes over
    /// connections: a claim, or a list of it and the one to which it is narrowed, and before that a
    /// line with the prefix to which they are confined. [`Grants::for_server_key`] makes the grants
    /// of a server key.
    pub fn to_frozen(&self) -> String {
        let claims = match &self.narrowed_to {
            None => self.to_claim(),
            Some(limit) => format!("[{},{}]", self.to_claim(), limit.to_claim()),
        };
        match self.within() {
            None => claims,
            Some(prefix) => format!("{prefix}\n{claims}"),
        }
    }

    /// The inverse of [`Grants::to_frozen`].
    ///
    /// # Errors
    ///
    /// See [`GrantsError`].
    pub fn from_frozen(text: &str) -> Result<Grants, GrantsError> {
        // JSON of the server is one line.
        if let Some((prefix, claims)) = text.split_once('\n') {
            return Ok(Grants::from_frozen(claims)?.confined_to(prefix));
        }
        if !text.starts_with('[') {
            return Grants::from_claim(text);
        }
        let [claim, limit]: [&RawValue; 2] =
            serde_json::from_str(text).map_err(|_| GrantsError::Form)?;
        let limit = Arc::new(Grants::from_claim(limit.get())?);
        Ok(Grants::from_claim(claim.get())?.narrowed_to(&limit))
    }

    /// The claim that grants the same, but for what they are narrowed to.
    fn to_claim(&self) -> String {
        let lists = Permission::ALL.into_iter().map(|permission| {
            let patterns = self.patterns(permission).map(|pattern| match pattern.kind() {
                Kind::User => serde_json::json!({ "users": pattern.text() }),
                _ => pattern.text().into(),
            });
            (permission.word().to_owned(), patterns.collect())
        });
        let number = Some(self.max_channels).filter(|&number| number > 0);
        let number = number.map(|number| (MAX_CHANNELS.to_owned(), number.into()));
        serde_json::Value::Object(lists.chain(number).collect()).to_string()
    }

    /// The same, as what a server key allows.
    #[must_use]
    pub fn for_server_key(self) -> Grants {
        Grants { is_of_key: true, ..self }
    }
}

/// The claim as it is written. Entries beyond the limit are counted and not kept.
#[derive(Default)]
struct Claim<'a> {
    entries: Vec<Entry<'a>>,
    count: usize,
    max_channels: u16,
    bad_member: Option<GrantsError>,
}

struct Entry<'a> {
    permission: Permission,
    kind: Kind,
    text: Cow<'a, str>,
}

impl<'de> Deserialize<'de> for Claim<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Claim<'de>, D::Error> {
        deserializer.deserialize_map(ClaimVisitor)
    }
}

struct ClaimVisitor;

impl<'de> Visitor<'de> for ClaimVisitor {
    type Value = Claim<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Claim<'de>, M::Error> {
        let mut claim = Claim::default();
        let mut is_there = [false; Permission::ALL.len()];
        while let Some(Text(name)) = map.next_key()? {
            let permission = Permission::ALL.into_iter().find(|one| one.word() == name);
            match permission {
                Some(permission) if !is_there[permission as usize] => {
                    is_there[permission as usize] = true;
                    map.next_value_seed(ListSeed { claim: &mut claim, permission })?;
                }
                None if name == MAX_CHANNELS && claim.max_channels == 0 => {
                    let number: &RawValue = map.next_value()?;
                    match serde_json::from_str(number.get()) {
                        Ok(number @ 1..=CHANNELS_MAX) => claim.max_channels = number,
                        _ => {
                            claim.bad_member.get_or_insert(GrantsError::MaxChannels);
                        }
                    }
                }
                None if name == MAX_CHANNELS => {
                    claim.bad_member.get_or_insert(GrantsError::Twice(MAX_CHANNELS));
                    map.next_value::<IgnoredAny>()?;
                }
                bad => {
                    let error = match bad {
                        Some(twice) => GrantsError::Twice(twice.word()),
                        None => GrantsError::Unknown(MemberName::new(&name)),
                    };
                    claim.bad_member.get_or_insert(error);
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(claim)
    }
}

/// The list of patterns of one permission, which goes into the claim.
struct ListSeed<'c, 'de> {
    claim: &'c mut Claim<'de>,
    permission: Permission,
}

impl<'de> de::DeserializeSeed<'de> for ListSeed<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for ListSeed<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of patterns")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        loop {
            self.claim.count += 1;
            if self.claim.count > PATTERNS_MAX {
                if list.next_element::<IgnoredAny>()?.is_none() {
                    break;
                }
            } else if let Some(Item { kind, text }) = list.next_element()? {
                self.claim.entries.push(Entry { permission: self.permission, kind, text });
            } else {
                break;
            }
        }
        self.claim.count -= 1;
        Ok(())
    }
}

/// One pattern: a string, `{"match": …}` or `{"users": …}`.
struct Item<'a> {
    kind: Kind,
    text: Cow<'a, str>,
}

impl<'de> Deserialize<'de> for Item<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Item<'de>, D::Error> {
        deserializer.deserialize_any(ItemVisitor)
    }
}

struct ItemVisitor;

impl<'de> Visitor<'de> for ItemVisitor {
    type Value = Item<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a pattern")
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Item<'de>, E> {
        Ok(Item { kind: Kind::Channel, text: text.into() })
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Item<'de>, E> {
        Ok(Item { kind: Kind::Channel, text: text.to_owned().into() })
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Item<'de>, M::Error> {
        let wrong = || de::Error::custom("a pattern has one member, `match` or `users`");
        let (Text(name), Text(text)) = map.next_entry()?.ok_or_else(wrong)?;
        let kind = match &*name {
            "match" => Kind::Channel,
            "users" => Kind::User,
            _ => return Err(wrong()),
        };
        if map.next_key::<IgnoredAny>()?.is_some() {
            return Err(wrong());
        }
        Ok(Item { kind, text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use throng_core::name::ChannelName;

    #[test]
    fn only_a_short_word_is_quoted() {
        let said = |claim: &str| Grants::from_claim(claim).expect_err("unknown").to_string();
        let sentence = "the claim `throng` has an unknown member";
        assert_eq!(said(r#"{"subscirbe": []}"#), format!("{sentence} `subscirbe`"));
        let long = format!(r#"{{"{}": []}}"#, "a".repeat(32));
        for claim in [r#"{"a b": []}"#, r#"{"\u0007": []}"#, r#"{"": []}"#, &long] {
            assert_eq!(said(claim), sentence);
        }
    }

    #[test]
    fn a_claim_may_raise_the_number_of_channels() {
        let max_channels = |claim: &str| Grants::from_claim(claim).map(|it| it.max_channels());
        assert_eq!(max_channels(r#"{"subscribe": ["a"]}"#), Ok(0));
        for number in [1, 2000, 10_000] {
            let claim = format!(r#"{{"max_channels": {number}, "subscribe": ["a"]}}"#);
            assert_eq!(max_channels(&claim), Ok(number));
            let frozen = Grants::from_claim(&claim).unwrap().to_frozen();
            assert_eq!(Grants::from_frozen(&frozen).unwrap().max_channels(), number);
        }
        for bad in ["0", "-1", "10001", "1.5", "\"9\"", "null", "[]"] {
            let claim = format!(r#"{{"max_channels": {bad}}}"#);
            assert_eq!(max_channels(&claim), Err(GrantsError::MaxChannels), "{bad}");
        }
        let twice = max_channels(r#"{"max_channels": 1, "max_channels": 2}"#);
        assert_eq!(twice, Err(GrantsError::Twice("max_channels")));
        // The application's answer about a token can only narrow it.
        let [many, few, none] = [r#"{"max_channels": 9}"#, r#"{"max_channels": 5}"#, "{}"]
            .map(|claim| Arc::new(Grants::from_claim(claim).unwrap()));
        for (token, limit, number) in [(&many, &few, 5), (&few, &many, 5), (&many, &none, 0)] {
            assert_eq!(token.narrowed_to(limit).max_channels(), number);
        }
    }

    #[test]
    fn users_and_channels_are_told_apart() {
        let claim = r#"{"publish": ["a", {"match": "b"}, {"users": "c*"}, "\u0064"]}"#;
        let grants = Grants::from_claim(claim).unwrap();
        let may = |name| grants.allow(Permission::Publish, &name, None);
        assert!(may(ChannelName::channel("a")));
        assert!(may(ChannelName::channel("b")));
        assert!(may(ChannelName::channel("d")));
        assert!(may(ChannelName::user("cleo")));
        assert!(!may(ChannelName::user("a")));
        assert!(!may(ChannelName::channel("cleo")));
    }

    #[test]
    fn a_claim_is_written_as_it_is_read() {
        let claim = r#"{"publish": ["a", "b\"c", {"users": "{user}"}], "presence": ["a"]}"#;
        let grants = Grants::from_claim(claim).unwrap();
        let written = Grants::from_frozen(&grants.to_frozen()).unwrap();
        for permission in Permission::ALL {
            assert!(grants.patterns(permission).eq(written.patterns(permission)));
        }
        assert!(Grants::from_frozen(&Grants::default().to_frozen()).unwrap().is_empty());
        let confined = grants.confined_to("shop/");
        assert_eq!(Grants::from_frozen(&confined.to_frozen()), Ok(confined));
    }

    #[test]
    fn an_empty_claim_grants_nothing() {
        for claim in ["{}", r#"{"subscribe": []}"#] {
            assert!(Grants::from_claim(claim).unwrap().is_empty(), "{claim}");
        }
    }

    #[test]
    fn other_forms_are_refused() {
        for (claim, error) in [
            ("[]", GrantsError::Form),
            ("\"*\"", GrantsError::Form),
            ("null", GrantsError::Form),
            (r#"{"subscribe": "*"}"#, GrantsError::Form),
            (r#"{"subscribe": [1]}"#, GrantsError::Form),
            (r#"{"subscribe": [["a"]]}"#, GrantsError::Form),
            (r#"{"subscribe": [{}]}"#, GrantsError::Form),
            (r#"{"subscribe": [{"channel": "a"}]}"#, GrantsError::Form),
            (r#"{"subscribe": [{"match": "a", "users": "b"}]}"#, GrantsError::Form),
            (r#"{"subscribe": [null]}"#, GrantsError::Form),
            (r#"{"subscirbe": []}"#, GrantsError::Unknown(MemberName::new("subscirbe"))),
            (r#"{"subscribe": [], "subscribe": ["*"]}"#, GrantsError::Twice("subscribe")),
            (r#"{"subscribe": [], "subscrib\u0065": ["*"]}"#, GrantsError::Twice("subscribe")),
            (r#"{"subscribe": [""]}"#, GrantsError::Pattern(PatternError::Empty)),
            (r#"{"publish": ["{user}*"]}"#, GrantsError::Pattern(PatternError::NoSeparator)),
        ] {
            assert_eq!(Grants::from_claim(claim), Err(error), "{claim}");
        }
    }

    #[test]
    fn the_number_of_patterns_is_limited() {
        let list = |count: usize| {
            let patterns: Vec<_> = (0..count).map(|number| format!("\"c{number}\"")).collect();
            patterns.join(",")
        };
        let half = PATTERNS_MAX / 2;
        let claim = |one, other| {
            format!(r#"{{"subscribe": [{}], "publish": [{}]}}"#, list(one), list(other))
        };
        assert!(Grants::from_claim(&claim(half, half)).is_ok());
        assert!(Grants::from_claim(&claim(PATTERNS_MAX, 0)).is_ok());
        assert_eq!(Grants::from_claim(&claim(half, half + 1)), Err(GrantsError::TooMany));
        assert_eq!(Grants::from_claim(&claim(10_000, 0)), Err(GrantsError::TooMany));
    }
}
