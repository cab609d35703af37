//! The session that a connection keeps of its token.

use std::num::NonZeroU32;

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use sha2::{Digest as _, Sha256};
use throng_core::WantedTags;

use crate::grants::{GRANTS_IDS_MAX, GrantsId};
use crate::revocation::Revocation;
use crate::token::{Identity, TokenId};

/// Bits of a user's tag. Of a million connections without the user, one has the tag with a
/// probability of one in a million.
const USER_BITS: u32 = 40;

/// Bits of a token's tag: one in 17 million. A revocation that closes a connection with another
/// token costs that client a reconnect, where the whole id is compared.
const TOKEN_BITS: u32 = 64 - USER_BITS;

/// Bits of the place of the grants, plus one, which is never 0: so an `Option` of a session is not
/// larger.
const GRANTS_BITS: u32 = 25;
const _: () = assert!(GRANTS_IDS_MAX < 1 << GRANTS_BITS);

/// The `expires_s` of a session that does not end, which distinguishes a server key's session from
/// a token's. A token's session ends before, whatever its `exp` says.
const NEVER_S: u32 = u32::MAX;

/// The session that a connection keeps of its token: 16 bytes. The user's name is not in it: a
/// connection that follows its user's inbox has the name there, and any other is found by the tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    /// The tags of user and token, the lower half first; 0 where the token names none. A server
    /// key's tag is in the place of the token's. In halves, so that a table of sessions has no
    /// padding.
    tags: [u32; 2],
    /// The place of the grants plus one, and above it the [`Lead`].
    grants_and_lead: NonZeroU32,
    /// When the connection is closed, in seconds since 1970.
    expires_s: u32,
}

const _: () = assert!(size_of::<Option<Session>>() == 16 && align_of::<Session>() == 4);

/// How long before its end the client of a session is told that it ends. Kept in seven bits, with
/// three digits of precision: up to 2.8 days.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lead(u8);

impl Lead {
    /// The client is not told, or was told already.
    pub const NONE: Lead = Lead(0);

    /// The lead of this many seconds, rounded down; at least one.
    pub fn from_s(seconds: u32) -> Lead {
        let seconds = seconds.max(1);
        let exponent = (u32::BITS - seconds.leading_zeros()).saturating_sub(4);
        if exponent > 14 {
            return Lead(0x7f);
        }
        let digits = seconds >> exponent;
        if exponent == 0 { Lead(digits as u8) } else { Lead((digits + 8 * exponent) as u8) }
    }

    /// In seconds; `None` if the client is not told.
    pub fn seconds(self) -> Option<u32> {
        match u32::from(self.0) {
            0 => None,
            digits @ 1..16 => Some(digits),
            code => Some((8 + code % 8) << (code / 8 - 1)),
        }
    }

    /// The code for frozen state.
    pub fn code(self) -> u8 {
        self.0
    }

    /// The inverse of [`Lead::code`]; `None` for what no lead has.
    pub fn from_code(code: u8) -> Option<Lead> {
        (code < 1 << 7).then_some(Lead(code))
    }
}

impl Session {
    /// The session of a connection with a token. `grants` must be released when it ends.
    pub fn new(identity: &Identity, grants: GrantsId, tagger: &Tagger, lead: Lead) -> Session {
        let user = identity.user().map_or(0, |user| tagger.user(user));
        let token = identity.token_id().map_or(0, |id| tagger.token(id));
        let expires_s = identity.expires_s().min(NEVER_S - 1);
        Session::from_parts(user << TOKEN_BITS | token, grants, expires_s, lead)
    }

    /// The session of a connection with a server key, by the [tag](Tagger::server_key) of that. It
    /// does not end. `grants` must be released when the connection does.
    pub fn of_key(grants: GrantsId, tag: u64) -> Session {
        Session::from_parts(tag, grants, NEVER_S, Lead::NONE)
    }

    /// The tags, for a process that takes over the connection and has the same [`Tagger`].
    pub fn tags(&self) -> u64 {
        let [low, high] = self.tags;
        u64::from(high) << 32 | u64::from(low)
    }

    /// A session of a connection that was taken over.
    pub fn from_parts(tags: u64, grants: GrantsId, expires_s: u32, lead: Lead) -> Session {
        let word = (grants.0 + 1) | (u32::from(lead.0) << GRANTS_BITS);
        let grants_and_lead = NonZeroU32::new(word).unwrap_or(NonZeroU32::MAX);
        Session { tags: [tags as u32, (tags >> 32) as u32], grants_and_lead, expires_s }
    }

    /// The token's grants, held in the worker's table.
    pub fn grants(&self) -> GrantsId {
        GrantsId((self.grants_and_lead.get() & ((1 << GRANTS_BITS) - 1)) - 1)
    }

    /// When the connection is closed, in seconds since 1970.
    pub fn expires_s(&self) -> u32 {
        self.expires_s
    }

    /// How long before its end the client is told.
    pub fn lead(&self) -> Lead {
        Lead((self.grants_and_lead.get() >> GRANTS_BITS) as u8)
    }

    /// The same session, once its client was told that it ends.
    #[must_use]
    pub fn told(self) -> Session {
        Session::from_parts(self.tags(), self.grants(), self.expires_s, Lead::NONE)
    }

    /// When the session needs attention, in seconds since 1970: the client is to be told that it
    /// ends, or it ends.
    pub fn next_s(&self) -> u32 {
        let lead_s = self.lead().seconds().unwrap_or(0);
        self.expires_s.saturating_sub(lead_s)
    }

    /// True if it is the session of a user.
    pub fn has_user(&self) -> bool {
        self.tags() >> TOKEN_BITS != 0
    }

    /// True if its user is `name`, but for the probability of two users with the same tag.
    pub fn is_of_user(&self, name: &str, tagger: &Tagger) -> bool {
        self.tags() >> TOKEN_BITS == tagger.user(name)
    }

    /// The tag of its user; `None` if its token names none.
    pub fn user_tag(&self) -> Option<u64> {
        Some(self.tags() >> TOKEN_BITS).filter(|&tag| tag != 0)
    }

    /// The tag of its server key; `None` if it has a token.
    pub fn key_tag(&self) -> Option<u64> {
        let tag = self.tags() & ((1 << TOKEN_BITS) - 1);
        (self.expires_s == NEVER_S && tag != 0).then_some(tag)
    }

    /// The tag of its application, if it is the session of an application's client.
    pub(crate) fn app_tag(&self) -> Option<u64> {
        let tag = self.tags() & ((1 << TOKEN_BITS) - 1);
        (self.expires_s == NEVER_S - 1 && tag != 0).then_some(tag)
    }

    /// True if a revocation may be about its token, or a query about its user. `true` may be wrong,
    /// with the probabilities of the tags, and for a user whose token is newer than the revocation:
    /// such a client may come back at once. `false` is always right.
    pub fn may_match(&self, wanted: &WantedTags) -> bool {
        self.tags() & wanted.mask == wanted.tags
    }

    /// Seconds until it ends; 0 if it is over.
    pub fn remaining_s(&self, now_s: u64) -> u64 {
        u64::from(self.expires_s).saturating_sub(now_s)
    }
}

/// Makes the tags of users and tokens. All threads of a server need the same one, and so does a
/// process that takes over its connections.
#[derive(Clone, PartialEq, Eq)]
pub struct Tagger {
    /// Random, so that a client cannot search for a user name with the tag of another user.
    seed: [u8; 16],
}

impl Tagger {
    /// A tagger of a new server. `None` if the system has no random bytes.
    pub fn random() -> Option<Tagger> {
        let mut seed = [0; 16];
        SystemRandom::new().fill(&mut seed).ok()?;
        Some(Tagger { seed })
    }

    /// A tagger with a known seed.
    pub fn from_seed(seed: [u8; 16]) -> Tagger {
        Tagger { seed }
    }

    /// The seed, for a process that takes over.
    pub fn seed(&self) -> [u8; 16] {
        self.seed
    }

    /// A secret for another purpose, the same in a process that takes over.
    pub fn secret(&self, purpose: &str) -> [u8; 32] {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.seed);
        let tag = hmac::sign(&key, purpose.as_bytes());
        tag.as_ref().try_into().expect("a tag of HMAC with SHA-256 has 32 bytes")
    }

    /// The sessions of a user.
    pub fn of_user(&self, user: &str) -> WantedTags {
        WantedTags { mask: u64::MAX << TOKEN_BITS, tags: self.user(user) << TOKEN_BITS }
    }

    /// The sessions of a server key, by its name. They have no user.
    pub fn of_server_key(&self, name: &str) -> WantedTags {
        WantedTags { mask: u64::MAX, tags: self.server_key(name) }
    }

    /// The sessions that a revocation is about.
    pub fn of_revocation(&self, revocation: &Revocation) -> WantedTags {
        match revocation {
            Revocation::Token { id, .. } => {
                WantedTags { mask: (1 << TOKEN_BITS) - 1, tags: self.token(*id) }
            }
            Revocation::User { user, .. } => self.of_user(user),
        }
    }

    /// The tag of a user, as in [`Session::user_tag`].
    pub fn user(&self, user: &str) -> u64 {
        self.tag(b"user", user.as_bytes(), USER_BITS)
    }

    /// The tag of a server key, by its name, as in [`Session::key_tag`].
    pub fn server_key(&self, name: &str) -> u64 {
        self.tag(b"server key", name.as_bytes(), TOKEN_BITS)
    }

    /// The tag in the sessions of an application's clients, by the application's id.
    pub fn app(&self, id: &str) -> u64 {
        self.token(TokenId::of_app(id))
    }

    pub(crate) fn token(&self, id: TokenId) -> u64 {
        self.tag(b"token", &id.0, TOKEN_BITS)
    }

    /// A number from 1, because 0 stands for none.
    fn tag(&self, domain: &[u8], name: &[u8], bits: u32) -> u64 {
        let hash = Sha256::new().chain_update(self.seed).chain_update(domain).chain_update(name);
        let word = hash.finalize()[..8].try_into().expect("a hash has 32 bytes");
        (u64::from_le_bytes(word) >> (64 - bits)).max(1)
    }
}

/// Does not show the seed.
impl std::fmt::Debug for Tagger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tagger")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Algorithm;
    use crate::grants::GrantsTable;
    use crate::keys::Key;
    use std::sync::Arc;

    fn session(user: Option<&str>, token: Option<&str>) -> Session {
        session_until(user, token, 100)
    }

    fn session_until(user: Option<&str>, token: Option<&str>, expires_s: u32) -> Session {
        let key = Key::from_secret(None, Algorithm::Hs256, &[7; 32]).unwrap();
        let identity = Identity {
            names: user.map(Box::from),
            name_bytes: 0,
            token_id: token.map(TokenId::of),
            grants: Arc::default(),
            key: key.fingerprint(),
            expires_s,
            valid_from_s: 0,
            issued_s: 0,
            is_narrowed: false,
        };
        let id = GrantsTable::default().hold(identity.grants());
        Session::new(&identity, id, &tagger(), Lead::from_s(9))
    }

    fn tagger() -> Tagger {
        Tagger::from_seed([1; 16])
    }

    #[test]
    fn sessions_are_found_by_user_and_by_token() {
        let of_ann = tagger().of_revocation(&Revocation::User { user: "ann".into(), before_s: 1 });
        let of_t1 = tagger().of_revocation(&Revocation::Token { id: TokenId::of("t1"), at_s: 1 });
        for (user, token, is_ann, is_t1) in [
            (Some("ann"), Some("t1"), true, true),
            (Some("ann"), Some("t2"), true, false),
            (Some("ann"), None, true, false),
            (Some("bob"), Some("t1"), false, true),
            (None, Some("t1"), false, true),
            (None, None, false, false),
            (Some("t1"), Some("ann"), false, false),
        ] {
            let session = session(user, token);
            assert_eq!(session.may_match(&of_ann), is_ann, "{user:?} {token:?}");
            assert_eq!(session.may_match(&of_t1), is_t1, "{user:?} {token:?}");
        }
        assert_eq!(tagger().of_user("ann"), of_ann);
        assert_ne!(Tagger::from_seed([2; 16]).of_user("ann"), of_ann);
    }

    #[test]
    fn a_session_ends_with_its_token() {
        assert_eq!(session(Some("ann"), None).user_tag(), Some(tagger().user("ann")));
        let session = session(None, None);
        assert_eq!(session.user_tag(), None);
        assert_eq!((session.remaining_s(40), session.remaining_s(101)), (60, 0));
        let (grants, lead) = (session.grants(), session.lead());
        let again = Session::from_parts(session.tags(), grants, session.expires_s(), lead);
        assert_eq!(again, session);
        assert_eq!((session.next_s(), session.told().next_s()), (91, 100));
        assert_eq!(session.told().grants(), grants);
    }

    #[test]
    fn a_lead_is_about_what_it_was_made_of() {
        assert_eq!(Lead::NONE.seconds(), None);
        for seconds in (1..20_000).chain([100_000, 245_760]) {
            let kept = Lead::from_s(seconds).seconds().unwrap();
            assert!(kept <= seconds && kept >= seconds - seconds / 8, "{kept} of {seconds}");
        }
        assert_eq!(Lead::from_s(u32::MAX).seconds(), Some(245_760));
        for code in 0..128 {
            let lead = Lead::from_code(code).unwrap();
            assert_eq!(lead.seconds().map_or(Lead::NONE, Lead::from_s), lead, "{code}");
        }
        assert_eq!(Lead::from_code(128), None);
    }

    #[test]
    fn a_session_keeps_any_place_of_grants_and_any_lead() {
        for place in [0, 1, GRANTS_IDS_MAX - 1] {
            for code in [0, 1, 127] {
                let lead = Lead::from_code(code).unwrap();
                let session = Session::from_parts(u64::MAX, GrantsId(place), 7, lead);
                assert_eq!((session.grants(), session.lead()), (GrantsId(place), lead));
                assert_eq!((session.tags(), session.expires_s()), (u64::MAX, 7));
            }
        }
    }

    #[test]
    fn a_user_is_recognised() {
        let session = session(Some("ann"), None);
        assert!(session.is_of_user("ann", &tagger()) && !session.is_of_user("bob", &tagger()));
        let of_key = Session::of_key(session.grants(), tagger().server_key("app"));
        assert!(session.has_user() && !of_key.has_user());
        assert_eq!((session.key_tag(), of_key.key_tag()), (None, Some(tagger().server_key("app"))));
    }

    #[test]
    fn no_token_has_the_session_of_a_server_key() {
        for expires_s in [u32::MAX - 1, u32::MAX] {
            let session = session_until(None, Some("t1"), expires_s);
            assert_eq!((session.key_tag(), session.expires_s()), (None, u32::MAX - 1));
        }
    }

    #[test]
    fn a_random_tagger_can_be_handed_over() {
        let tagger = Tagger::random().unwrap();
        assert_eq!(Tagger::from_seed(tagger.seed()).of_user("ann"), tagger.of_user("ann"));
        assert_eq!(format!("{tagger:?}"), "Tagger");
        let again = Tagger::from_seed(tagger.seed());
        assert_eq!(again.secret("logins"), tagger.secret("logins"));
        assert_ne!(tagger.secret("limits"), tagger.secret("logins"));
    }
}
