//! What a connection keeps of its token.

use ring::digest::{Context, SHA256};
use ring::rand::{SecureRandom, SystemRandom};

use crate::grants::GrantsId;
use crate::revocation::Revocation;
use crate::token::{Identity, TokenId};

/// Bits of a user's tag. Of a million connections without the user, one has the tag with a
/// probability of one in a million.
const USER_BITS: u32 = 40;

/// Bits of a token's tag: one in 17 million. A revocation that closes a connection with another
/// token costs that client a reconnect, where the whole id is compared.
const TOKEN_BITS: u32 = 64 - USER_BITS;

/// What a connection keeps of its token: 16 bytes. The user's name is not among it: a connection
/// that follows its user's inbox has the name there, and any other is found by the tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    /// The tags of user and token; 0 where the token names none.
    tags: u64,
    /// What the token grants, held in the worker's table.
    pub grants: GrantsId,
    /// When the connection is closed, in seconds since 1970.
    pub expires_s: u32,
}

const _: () = assert!(size_of::<Session>() == 16);

impl Session {
    /// The session of a connection with a token. `grants` must be released when it ends.
    pub fn new(identity: &Identity, grants: GrantsId, tagger: &Tagger) -> Session {
        let user = identity.user().map_or(0, |user| tagger.user(user));
        let token = identity.token_id().map_or(0, |id| tagger.token(id));
        Session { tags: user << TOKEN_BITS | token, grants, expires_s: identity.expires_s() }
    }

    /// The tags, for a process that takes over the connection and has the same [`Tagger`].
    pub fn tags(&self) -> u64 {
        self.tags
    }

    /// A session of a connection that was taken over.
    pub fn from_parts(tags: u64, grants: GrantsId, expires_s: u32) -> Session {
        Session { tags, grants, expires_s }
    }

    /// Whether a revocation may be about its token, or a query about its user. `true` may be wrong,
    /// with the probabilities of the tags, and for a user whose token is newer than the revocation:
    /// such a client may come back at once. `false` is always right.
    pub fn may_match(&self, wanted: &Wanted) -> bool {
        self.tags & wanted.mask == wanted.tags
    }

    /// Seconds until `expires_s`; 0 if it is over.
    pub fn remaining_s(&self, now_s: u64) -> u64 {
        u64::from(self.expires_s).saturating_sub(now_s)
    }
}

/// Sessions that are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    mask: u64,
    tags: u64,
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

    /// The sessions of a user.
    pub fn of_user(&self, user: &str) -> Wanted {
        Wanted { mask: u64::MAX << TOKEN_BITS, tags: self.user(user) << TOKEN_BITS }
    }

    /// The sessions that a revocation is about.
    pub fn of_revocation(&self, revocation: &Revocation) -> Wanted {
        match revocation {
            Revocation::Token { id, .. } => {
                Wanted { mask: (1 << TOKEN_BITS) - 1, tags: self.token(*id) }
            }
            Revocation::User { user, .. } => self.of_user(user),
        }
    }

    fn user(&self, user: &str) -> u64 {
        self.tag(b"user", user.as_bytes(), USER_BITS)
    }

    fn token(&self, id: TokenId) -> u64 {
        self.tag(b"token", &id.0, TOKEN_BITS)
    }

    /// A number from 1, because 0 stands for none.
    fn tag(&self, domain: &[u8], name: &[u8], bits: u32) -> u64 {
        let mut context = Context::new(&SHA256);
        for part in [&self.seed, domain, name] {
            context.update(part);
        }
        let hash = context.finish();
        let word = hash.as_ref()[..8].try_into().expect("a hash has 32 bytes");
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
        let key = Key::from_secret(None, Algorithm::Hs256, &[7; 32]).unwrap();
        let identity = Identity {
            user: user.map(Box::from),
            token_id: token.map(TokenId::of),
            grants: Arc::default(),
            key: key.fingerprint(),
            expires_s: 100,
            valid_from_s: 0,
            issued_s: 0,
        };
        let id = GrantsTable::default().hold(identity.grants());
        Session::new(&identity, id, &tagger())
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
        let session = session(None, None);
        assert_eq!((session.remaining_s(40), session.remaining_s(101)), (60, 0));
        let again = Session::from_parts(session.tags(), session.grants, session.expires_s);
        assert_eq!(again, session);
    }

    #[test]
    fn a_random_tagger_can_be_handed_over() {
        let tagger = Tagger::random().unwrap();
        assert_eq!(Tagger::from_seed(tagger.seed()).of_user("ann"), tagger.of_user("ann"));
        assert_eq!(format!("{tagger:?}"), "Tagger");
    }
}
