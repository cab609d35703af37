//! Lets the application say who a client is that shows no credential.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use throng_access::{
    Connect, ConnectVerdict, Details, Grants, GrantsPool, Identity, Passed, PassedHeaders,
    Revocations,
};
use throng_core::clock;
use throng_core::later::{Answer, Later};
use throng_wire::name::check_name;
use throng_wire::{ErrorCode, ErrorResponse};

use super::answer::{cache_ms, denial};
use super::decider::{Decider, Inquiry};
use super::question::{Asks, Data, body, listed};
use super::verdict::{AnswerError, Answered, Verdict};

/// The headers that a browser sends by itself, also with requests that a foreign page makes: it
/// remembers the password of HTTP authentication as it does cookies.
const AMBIENT: [&str; 2] = [COOKIE, "authorization"];
const COOKIE: &str = "cookie";

/// Asks one endpoint who clients are.
#[derive(Debug)]
pub(super) struct ConnectCallout {
    /// What it gets of requests.
    pub(super) passed: Passed,
    pub(super) decider: Decider<ConnectVerdict>,
    /// The users who are revoked: what the application said of them before does not hold.
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
struct Document<'a> {
    allow: bool,
    #[serde(borrow, default)]
    message: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    user: Option<Cow<'a, str>>,
    /// As the claim of a token.
    #[serde(borrow, default)]
    grants: Option<&'a RawValue>,
    /// In seconds since 1970.
    #[serde(default)]
    expires: Option<u64>,
    /// For how many seconds it holds.
    #[serde(default)]
    cache: Option<u64>,
}

impl Verdict for ConnectVerdict {
    type Reader = ConnectReader;

    fn read(
        reader: &ConnectReader,
        body: &[u8],
        asked_s: u64,
    ) -> Result<Answered<ConnectVerdict>, AnswerError> {
        let document: Document<'_> = serde_json::from_slice(body)?;
        let cache_ms = cache_ms(document.cache);
        if !document.allow {
            let verdict = Err(denial(ErrorCode::Unauthorized, document.message.as_deref()));
            return Ok(Answered { verdict, cache_ms });
        }
        let user = document.user;
        if let Some(user) = &user {
            check_name(user, "user").map_err(AnswerError::User)?;
        }
        let grants = match document.grants {
            Some(grants) => reader.pool.get(grants.get())?,
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
        Ok(Answered { verdict: Ok(Arc::new(identity)), cache_ms })
    }

    fn refused(error: ErrorResponse) -> ConnectVerdict {
        Err(error)
    }

    fn is_denial(&self) -> bool {
        self.is_err()
    }

    /// It is no decision of the rules that could end.
    fn limited(self, _: Option<u64>) -> ConnectVerdict {
        self
    }
}

impl ConnectCallout {
    /// Whether an answer still holds. A denial does as long as it is cached.
    fn holds(&self, verdict: &ConnectVerdict) -> bool {
        let now_s = clock::machine_ms() / 1000;
        verdict.as_ref().map_or(true, |identity| self.recheck(identity, now_s).is_ok())
    }
}

impl Connect for ConnectCallout {
    fn known(&self, details: Details<'_>, transport: &'static str) -> Option<Arc<Identity>> {
        let headers = listed(&self.passed, details);
        let data = Data::of_connect(transport).with(&self.passed, details.address, &headers);
        let is_let_in = |verdict: &ConnectVerdict| verdict.is_ok() && self.holds(verdict);
        self.decider.known(&data.key(Asks::Connect), is_let_in)?.ok()
    }

    fn who(
        &self,
        details: Details<'_>,
        transport: &'static str,
        later: Later<'_, ConnectVerdict>,
    ) -> Answer<ConnectVerdict> {
        let headers = listed(&self.passed, details);
        let data = Data::of_connect(transport).with(&self.passed, details.address, &headers);
        let key = data.key(Asks::Connect);
        let body = |time_ms| body(Asks::Connect, time_ms, data);
        let holds = |verdict: &ConnectVerdict| self.holds(verdict);
        self.decider.decide(Inquiry { key, body, until_ms: None }, holds, later)
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

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED_S: u64 = 1_800_000_000;

    fn read(json: &str) -> Result<Answered<ConnectVerdict>, AnswerError> {
        let reader = ConnectReader { pool: GrantsPool::default(), max_age_s: 3600 };
        ConnectVerdict::read(&reader, json.as_bytes(), ASKED_S)
    }

    fn identity(json: &str) -> Arc<Identity> {
        read(json).unwrap().verdict.unwrap()
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
    fn nobody_is_believed_for_longer_than_a_token() {
        for json in [r#"{"allow": true}"#, r#"{"allow": true, "expires": 18446744073709551615}"#] {
            assert_eq!(u64::from(identity(json).expires_s()), ASKED_S + 3600);
        }
    }

    #[test]
    fn a_denial_may_say_why() {
        let error = read(r#"{"allow": false, "message": "log in"}"#).unwrap().verdict.unwrap_err();
        assert_eq!((error.code, &*error.message), (ErrorCode::Unauthorized, "log in"));
    }

    #[test]
    fn what_is_not_as_agreed_is_an_error() {
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
