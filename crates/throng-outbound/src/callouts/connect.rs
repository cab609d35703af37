//! Lets the application say who a client is that shows no credential, and whether one with a token
//! is let in.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use throng_access::token::decode;
use throng_access::{
    Connect, ConnectVerdict, Grants, GrantsPool, Identity, Newcomer, Passed, PassedHeaders,
    Revocations, ShownToken,
};
use throng_core::clock;
use throng_core::later::{Answer, Later};
use throng_wire::member::member_info;
use throng_wire::name::check_name;
use throng_wire::{ErrorCode, ErrorResponse};

use super::answer::{cache_ms, denial};
use super::decider::{Decider, Inquiry};
use super::question::{Asks, Facts, body, listed};
use super::verdict::{AnswerError, Answered, Verdict};

/// The headers that a browser sends by itself, also with requests that a foreign page makes: it
/// remembers the password of HTTP authentication as it does cookies.
const AMBIENT: [&str; 2] = [COOKIE, "authorization"];
const COOKIE: &str = "cookie";

/// Asks one endpoint who clients are.
#[derive(Debug)]
pub(super) struct ConnectCallout {
    pub(super) passed: Passed,
    pub(super) decider: Decider<ConnectAnswer>,
    /// True if clients with a token are asked about, too.
    pub(super) decides_tokens: bool,
    /// The revoked users: an earlier answer about one of them no longer holds.
    pub(super) revocations: Arc<Revocations>,
}

/// Makes identities of the application's answers.
#[derive(Debug)]
pub(super) struct ConnectReader {
    /// Shares grants among clients with the same ones.
    pub(super) pool: GrantsPool,
    /// The longest time for which an answer is believed, in seconds, as for tokens: a revocation is
    /// remembered for that long.
    pub(super) max_age_s: u32,
}

/// As in answers about channels, unknown members are errors.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConnectDocument<'a> {
    allow: bool,
    #[serde(borrow, default)]
    message: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    user: Option<Cow<'a, str>>,
    /// The user's `info`, which other members of channels see.
    #[serde(borrow, default)]
    info: Option<&'a RawValue>,
    /// As the claim of a token.
    #[serde(borrow, default)]
    grants: Option<&'a RawValue>,
    #[serde(default)]
    expires: Option<u64>,
    /// For how many seconds it holds.
    #[serde(default)]
    cache: Option<u64>,
}

/// The application's answer about a client.
#[derive(Debug, Clone)]
pub(super) struct ConnectAnswer(Result<Recognized, ErrorResponse>);

#[derive(Debug, Clone)]
struct Recognized {
    identity: Arc<Identity>,
    /// True if the answer has grants. Without them, a client with a token keeps the grants of its
    /// token.
    has_grants: bool,
}

impl Verdict for ConnectAnswer {
    type Reader = ConnectReader;
    /// The token that the client shows.
    type Bounds = Option<Arc<Identity>>;
    type Given = ConnectVerdict;

    fn read(
        reader: &ConnectReader,
        body: &[u8],
        asked_s: u64,
    ) -> Result<Answered<ConnectAnswer>, AnswerError> {
        let document: ConnectDocument<'_> = serde_json::from_slice(body)?;
        let cache_ms = cache_ms(document.cache);
        if !document.allow {
            let denial = denial(ErrorCode::Unauthorized, document.message.as_deref());
            return Ok(Answered { verdict: ConnectAnswer(Err(denial)), cache_ms });
        }
        let user = document.user;
        if let Some(user) = &user {
            check_name(user, "user").map_err(AnswerError::User)?;
        }
        let has_grants = document.grants.is_some();
        let grants = match document.grants {
            Some(grants) => reader.pool.get(grants.get(), None)?,
            None => Arc::new(Grants::default()),
        };
        if document.expires.is_some_and(|expires_s| expires_s <= asked_s) {
            return Err(AnswerError::Past);
        }
        let most_s = asked_s + u64::from(reader.max_age_s);
        let expires_s = document.expires.map_or(most_s, |expires_s| expires_s.min(most_s));
        let user = user.map(|user| user.into_owned().into_boxed_str());
        let seconds = |time_s| u32::try_from(time_s).unwrap_or(u32::MAX);
        // An answer to a question from before a revocation does not count after it.
        let identity = Identity::of_application(user, grants, seconds(asked_s), seconds(expires_s));
        let info = document.info.map(member_info).transpose().map_err(AnswerError::Info)?;
        let identity = identity.with_info(info.as_deref());
        let told = Recognized { identity: Arc::new(identity), has_grants };
        Ok(Answered { verdict: ConnectAnswer(Ok(told)), cache_ms })
    }

    fn refused(error: ErrorResponse) -> ConnectAnswer {
        ConnectAnswer(Err(error))
    }

    fn is_denial(&self) -> bool {
        self.0.is_err()
    }

    fn within(self, token: &Option<Arc<Identity>>) -> ConnectVerdict {
        let ConnectAnswer(answer) = self;
        let Some(token) = token else { return answer.map(|told| told.identity) };
        let Recognized { identity, has_grants } = answer.map_err(|error| match error.code {
            // Another token would not help, nor is this one bad.
            ErrorCode::Unauthorized => ErrorResponse::new(ErrorCode::Forbidden, error.message),
            _ => error,
        })?;
        if identity.user().is_some_and(|user| Some(user) != token.user()) {
            let message = "the application names another user than the token";
            return Err(ErrorResponse::new(ErrorCode::Forbidden, message));
        }
        let grants = has_grants.then(|| identity.grants());
        let narrowed = token.narrowed(grants, identity.expires_s());
        Ok(Arc::new(narrowed.with_info(identity.info())))
    }
}

impl ConnectCallout {
    /// True if the answer still holds. A denial holds as long as it is cached.
    fn holds(&self, answer: &ConnectAnswer) -> bool {
        let now_s = clock::machine_ms() / 1000;
        answer.0.as_ref().map_or(true, |told| self.recheck(&told.identity, now_s).is_ok())
    }

    /// Calls `then` with the question about a client, as JSON.
    fn question<R>(&self, newcomer: Newcomer<'_>, then: impl FnOnce(Facts<'_>) -> R) -> R {
        let Newcomer { transport, details, token } = newcomer;
        let headers = listed(&self.passed, details);
        let data = Facts::of_connect(transport).with(&self.passed, details.address, &headers);
        let Some(ShownToken { identity, text }) = token else { return then(data) };
        // It was verified, so that its claims are a JSON object.
        let claims = decode(text).ok().and_then(|token| RawValue::from_string(token.claims).ok());
        debug_assert!(claims.is_some(), "a token that was verified");
        then(data.of_token(identity, &claims.unwrap_or_default()))
    }
}

impl Connect for ConnectCallout {
    fn known(&self, newcomer: Newcomer<'_>) -> Option<Arc<Identity>> {
        let key = self.question(newcomer, |data| data.key(Asks::Connect));
        let is_let_in = |answer: &ConnectAnswer| answer.0.is_ok() && self.holds(answer);
        self.decider.known(&key, is_let_in)?.within(&bounds(newcomer)).ok()
    }

    fn who(
        &self,
        newcomer: Newcomer<'_>,
        later: Later<'_, ConnectVerdict>,
    ) -> Answer<ConnectVerdict> {
        let holds = |answer: &ConnectAnswer| self.holds(answer);
        self.question(newcomer, |data| {
            let (key, bounds) = (data.key(Asks::Connect), bounds(newcomer));
            let body = |time_ms| body(Asks::Connect, time_ms, data);
            let address = newcomer.details.address;
            self.decider.decide(Inquiry { key, body, bounds, address }, holds, later)
        })
    }

    fn decides_tokens(&self) -> bool {
        self.decides_tokens
    }

    fn recheck(&self, identity: &Identity, now_s: u64) -> Result<(), ErrorResponse> {
        if self.revocations.is_revoked(identity) {
            return Err(ErrorCode::TokenRevoked.into());
        }
        if !identity.is_current(now_s) {
            return Err(ErrorCode::TokenExpired.into());
        }
        Ok(())
    }

    fn passes_ambient(&self, headers: &PassedHeaders) -> bool {
        let passes = |name: &str| self.passed.headers.iter().any(|listed| **listed == *name);
        AMBIENT.into_iter().any(|name| passes(name) && headers.has(name))
    }

    fn passes_cookies(&self) -> bool {
        self.passed.headers.iter().any(|listed| **listed == *COOKIE)
    }
}

/// The token of a client, which an answer cannot extend.
fn bounds(newcomer: Newcomer<'_>) -> Option<Arc<Identity>> {
    newcomer.token.map(|token| Arc::clone(token.identity))
}

#[cfg(test)]
mod tests {
    use throng_access::Permission;
    use throng_core::ChannelName;

    use super::*;

    const ASKED_S: u64 = 1_800_000_000;

    fn read(json: &str) -> Result<Answered<ConnectAnswer>, AnswerError> {
        let reader = ConnectReader { pool: GrantsPool::default(), max_age_s: 3600 };
        ConnectAnswer::read(&reader, json.as_bytes(), ASKED_S)
    }

    /// The verdict on a client with this token.
    fn given(json: &str, token: Option<&Arc<Identity>>) -> ConnectVerdict {
        read(json).unwrap().verdict.within(&token.cloned())
    }

    fn identity(json: &str) -> Arc<Identity> {
        given(json, None).unwrap()
    }

    #[test]
    fn an_answer_says_who_a_client_is() {
        let grants = r#"{"subscribe": ["rooms/*"]}"#;
        let known = identity(&format!(
            r#"{{"allow": true, "user": "ann", "grants": {grants}, "expires": {}}}"#,
            ASKED_S + 60
        ));
        assert_eq!((known.user(), known.is_of_application()), (Some("ann"), true));
        assert_eq!(*known.grants().as_ref(), Grants::from_claim(grants).unwrap());
        assert_eq!(u64::from(known.expires_s()), ASKED_S + 60);
        assert_eq!(u64::from(known.issued_s()), ASKED_S);
        let nobody = identity(r#"{"allow": true}"#);
        assert_eq!((nobody.user(), nobody.token_id()), (None, None));
        assert_eq!(read(r#"{"allow": true, "cache": 5}"#).unwrap().cache_ms, 5_000);
    }

    #[test]
    fn an_answer_says_what_a_user_shows_to_other_members() {
        let ann = identity(r#"{"allow": true, "user": "ann", "info": {"name": "Ann"}}"#);
        assert_eq!((ann.user(), ann.info()), (Some("ann"), Some(r#"{"name":"Ann"}"#)));
        assert_eq!(identity(r#"{"allow": true, "info": {}}"#).info(), None, "without a user");
        let large = format!(r#"{{"x": "{}"}}"#, "x".repeat(1 << 20));
        for info in ["[]", "7", &large] {
            let answer = read(&format!(r#"{{"allow": true, "user": "ann", "info": {info}}}"#));
            assert!(matches!(answer, Err(AnswerError::Info(_))), "{}", info.len());
        }
        let token = Arc::new(Identity::clone(&ann).with_info(Some(r#"{"of":"token"}"#)));
        let given = |json: &str| given(json, Some(&token)).unwrap();
        assert_eq!(given(r#"{"allow": true}"#).info(), Some(r#"{"of":"token"}"#));
        assert_eq!(given(r#"{"allow": true, "user": "ann", "info": {}}"#).info(), Some("{}"));
    }

    #[test]
    fn nobody_is_believed_for_longer_than_a_token() {
        for json in [r#"{"allow": true}"#, r#"{"allow": true, "expires": 18446744073709551615}"#] {
            assert_eq!(u64::from(identity(json).expires_s()), ASKED_S + 3600);
        }
    }

    #[test]
    fn a_denial_may_say_why() {
        let denied = r#"{"allow": false, "message": "log in"}"#;
        let error = given(denied, None).unwrap_err();
        assert_eq!((error.code, &*error.message), (ErrorCode::Unauthorized, "log in"));
        let error = given(denied, Some(&token(60))).unwrap_err();
        assert_eq!((error.code, &*error.message), (ErrorCode::Forbidden, "log in"));
    }

    /// A token of ann that expires after some seconds.
    fn token(left_s: u32) -> Arc<Identity> {
        let claim = r#"{"subscribe": ["rooms/*"], "publish": ["rooms/*"]}"#;
        let (user, grants) = (Some("ann".into()), Arc::new(Grants::from_claim(claim).unwrap()));
        let now_s = ASKED_S as u32;
        Arc::new(Identity::of_application(user, grants, now_s, now_s + left_s))
    }

    #[test]
    fn an_answer_narrows_a_token_and_does_not_change_its_user() {
        let plain = given(r#"{"allow": true}"#, Some(&token(60))).unwrap();
        assert_eq!((plain.user(), plain.is_narrowed()), (Some("ann"), true));
        assert_eq!(plain.grants(), token(60).grants());
        assert_eq!(u64::from(plain.expires_s()), ASKED_S + 60);
        let (end_s, grants) = (ASKED_S + 30, r#"{"subscribe": ["*/a", "b"]}"#);
        let json =
            format!(r#"{{"allow": true, "user": "ann", "expires": {end_s}, "grants": {grants}}}"#);
        let less = given(&json, Some(&token(60))).unwrap();
        assert_eq!(u64::from(less.expires_s()), ASKED_S + 30);
        let allows = |permission, name| {
            less.grants().allow(permission, &ChannelName::channel(name), less.user())
        };
        assert!(allows(Permission::Subscribe, "rooms/a"));
        assert!(!allows(Permission::Subscribe, "rooms/b") && !allows(Permission::Subscribe, "b"));
        assert!(!allows(Permission::Publish, "rooms/a"));
        let shorter = given(&json, Some(&token(10))).unwrap();
        assert_eq!(u64::from(shorter.expires_s()), ASKED_S + 10);
        let error = given(r#"{"allow": true, "user": "bob"}"#, Some(&token(60))).unwrap_err();
        assert_eq!(error.code, ErrorCode::Forbidden);
    }

    #[test]
    fn a_malformed_answer_is_an_error() {
        for json in [
            "",
            "{}",
            r#"{"allow": 1}"#,
            r#"{"allow": true, "user": ""}"#,
            r#"{"allow": true, "user": 7}"#,
            r#"{"allow": true, "users": "ann"}"#,
            r#"{"allow": true, "grants": ["rooms/*"]}"#,
            r#"{"allow": true, "grants": {"write": ["*"]}}"#,
            r#"{"allow": true, "expires": 1700000000}"#,
            r#"{"allow": true, "user": "a", "user": "b"}"#,
        ] {
            assert!(read(json).is_err(), "{json}");
        }
    }
}
