//! The claims of a token (RFC 7519 section 4.1), and whether they hold now.

use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use throng_wire::member::member_info;
use throng_wire::name::check_name;

use super::error::TokenError;
use super::identity::{Identity, TokenId, joined};
use super::limits::{AUDIENCES_MAX, CLAIMS_MAX, SHOWN_NAME_BYTES_MAX, TOKEN_ID_BYTES_MAX};
use crate::grants::{Grants, GrantsPool};
use crate::json::Text;
use crate::keys::Key;

/// The server's demands on tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// A token's `aud` must contain one of these. If there are none, a token must not have an `aud`
    /// (RFC 7519 section 4.1.3).
    pub audiences: Vec<Box<str>>,
    /// A token's `iss` must be one of these. If there are none, `iss` does not matter.
    pub issuers: Vec<Box<str>>,
    /// How far the clocks of issuer and server may be apart.
    pub leeway_s: u32,
    /// The longest time from `iat` to `exp`; without `iat`, from now to `exp`.
    pub max_age_s: u32,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy { audiences: Vec::new(), issuers: Vec::new(), leeway_s: 10, max_age_s: 24 * 60 * 60 }
    }
}

/// The claims that count, by their place in [`RawClaims`].
const NAMES: [&str; 10] =
    ["sub", "aud", "iss", "exp", "nbf", "iat", "jti", "throng", "name", "info"];

/// The values of the claims that count, not parsed yet.
#[derive(Default)]
struct RawClaims<'a> {
    values: [Option<&'a RawValue>; NAMES.len()],
    has_duplicate: bool,
    count: usize,
}

/// Checks the payload of a token whose signature holds, made with the key `signer`.
pub(super) fn check(
    payload: &str,
    policy: &Policy,
    pool: &GrantsPool,
    signer: &Key,
    now_s: u64,
) -> Result<Identity, TokenError> {
    let claims: RawClaims<'_> = serde_json::from_str(payload).map_err(|_| TokenError::Malformed)?;
    if claims.count > CLAIMS_MAX {
        return Err(TokenError::TooManyClaims);
    }
    // Parsers differ in which one they take, if they do not refuse it (RFC 7519 section 4).
    if claims.has_duplicate {
        return Err(TokenError::DuplicateClaim);
    }
    let [sub, aud, iss, exp, nbf, iat, jti, throng, name, info] = claims.values;
    let times = Times {
        exp: date("exp", exp)?.ok_or(TokenError::NoExpiry)?,
        nbf: date("nbf", nbf)?,
        iat: date("iat", iat)?,
    };
    times.check(policy, now_s)?;
    check_audience(aud, policy)?;
    check_issuer(iss, policy)?;
    let user = text("sub", sub)?;
    if let Some(user) = &user {
        check_name(user, "user").map_err(TokenError::User)?;
        if !user.starts_with(signer.app().unwrap_or_default()) {
            return Err(TokenError::App);
        }
    }
    let token_id = text("jti", jti)?;
    if token_id.as_ref().is_some_and(|id| id.len() > TOKEN_ID_BYTES_MAX) {
        return Err(TokenError::ClaimForm("jti"));
    }
    let grants = match (throng, signer.app()) {
        (None, None) => Arc::new(Grants::default()),
        (throng, app) => pool.get(throng.map_or("{}", RawValue::get), app)?,
    };
    let leeway_s = u64::from(policy.leeway_s);
    let name = name.and_then(shown_name);
    // Nor does a token fail for what others mean by this claim.
    let info = info.and_then(|info| member_info(info).ok());
    let names = user.map(|user| joined(&user, name.as_deref(), info.as_deref()));
    let (names, name_bytes) = names.map_or((None, 0), |(names, bytes)| (Some(names), bytes));
    Ok(Identity {
        names,
        name_bytes,
        token_id: token_id.map(|id| TokenId::of(&id)),
        grants,
        key: signer.fingerprint(),
        expires_s: seconds(times.exp.saturating_add(leeway_s)),
        valid_from_s: seconds(times.nbf.unwrap_or(0).saturating_sub(leeway_s)),
        issued_s: seconds(times.iat.unwrap_or(0)),
        is_narrowed: false,
    })
}

/// The times of a token, in seconds since 1970.
struct Times {
    exp: u64,
    nbf: Option<u64>,
    iat: Option<u64>,
}

impl Times {
    fn check(&self, policy: &Policy, now_s: u64) -> Result<(), TokenError> {
        let leeway_s = u64::from(policy.leeway_s);
        if self.exp.saturating_add(leeway_s) <= now_s {
            return Err(TokenError::Expired);
        }
        let is_early = |time: Option<u64>| time.is_some_and(|time| time > now_s + leeway_s);
        // A time of issue in the future would let a token escape a revocation of all older ones.
        if is_early(self.nbf) || is_early(self.iat) {
            return Err(TokenError::NotYetValid);
        }
        let since_s = self.iat.unwrap_or(now_s);
        if self.exp.saturating_sub(since_s) > u64::from(policy.max_age_s) {
            return Err(TokenError::LivesTooLong);
        }
        Ok(())
    }
}

/// Seconds since 1970 in 32 bits, which are enough until 2106.
fn seconds(time_s: u64) -> u32 {
    u32::try_from(time_s).unwrap_or(u32::MAX)
}

/// A date: a number of seconds, perhaps with a fraction, which is cut off.
fn date(name: &'static str, value: Option<&RawValue>) -> Result<Option<u64>, TokenError> {
    let Some(value) = value else { return Ok(None) };
    if let Ok(seconds) = value.get().parse() {
        return Ok(Some(seconds));
    }
    let number: f64 = serde_json::from_str(value.get()).map_err(|_| TokenError::ClaimForm(name))?;
    if number.is_sign_negative() {
        return Err(TokenError::ClaimForm(name));
    }
    // Saturates; a date beyond 2^64 is as far away as one at it.
    Ok(Some(number as u64))
}

fn text(name: &'static str, value: Option<&RawValue>) -> Result<Option<String>, TokenError> {
    let parse = |value: &RawValue| serde_json::from_str(value.get());
    value.map(parse).transpose().map_err(|_| TokenError::ClaimForm(name))
}

/// The name for people, if it is one line of text. A token does not fail for the lack of it: other
/// programs may use the claim in their own way.
fn shown_name(value: &RawValue) -> Option<String> {
    let name: String = serde_json::from_str(value.get()).ok()?;
    let is_short = (1..=SHOWN_NAME_BYTES_MAX).contains(&name.len());
    (is_short && !name.chars().any(char::is_control)).then_some(name)
}

/// `aud` is a string or a list of them.
fn check_audience(value: Option<&RawValue>, policy: &Policy) -> Result<(), TokenError> {
    let Some(value) = value else {
        return if policy.audiences.is_empty() { Ok(()) } else { Err(TokenError::Audience) };
    };
    let json = value.get();
    let audiences: Vec<String> = if json.starts_with('[') {
        serde_json::from_str(json).map_err(|_| TokenError::ClaimForm("aud"))?
    } else {
        text("aud", Some(value))?.into_iter().collect()
    };
    if audiences.len() > AUDIENCES_MAX {
        return Err(TokenError::ClaimForm("aud"));
    }
    let is_ours = |audience: &String| policy.audiences.iter().any(|ours| **ours == **audience);
    if audiences.iter().any(is_ours) { Ok(()) } else { Err(TokenError::Audience) }
}

fn check_issuer(value: Option<&RawValue>, policy: &Policy) -> Result<(), TokenError> {
    let issuer = text("iss", value)?;
    let is_accepted = policy.issuers.is_empty()
        || policy.issuers.iter().any(|accepted| Some(&**accepted) == issuer.as_deref());
    if is_accepted { Ok(()) } else { Err(TokenError::Issuer) }
}

impl<'de> Deserialize<'de> for RawClaims<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RawClaims<'de>, D::Error> {
        deserializer.deserialize_map(ClaimsVisitor)
    }
}

struct ClaimsVisitor;

impl<'de> Visitor<'de> for ClaimsVisitor {
    type Value = RawClaims<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<RawClaims<'de>, M::Error> {
        let mut claims = RawClaims::default();
        let mut others = Vec::new();
        while let Some(Text(name)) = map.next_key()? {
            claims.count += 1;
            if let Some(at) = NAMES.iter().position(|known| *known == name) {
                claims.has_duplicate |= claims.values[at].is_some();
                claims.values[at] = Some(map.next_value()?);
                continue;
            }
            map.next_value::<IgnoredAny>()?;
            // Beyond the limit the token is refused in any case.
            if claims.count <= CLAIMS_MAX {
                claims.has_duplicate |= others.contains(&name);
                others.push(name);
            }
        }
        Ok(claims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Algorithm;
    use crate::grants::GrantsError;
    use crate::keys::Key;
    use crate::permission::Permission;
    use throng_core::name::ChannelName;
    use throng_wire::name::NameError;

    const NOW_S: u64 = 1_800_000_000;

    fn check_with(policy: &Policy, payload: &str) -> Result<Identity, TokenError> {
        let key = Key::from_secret(None, Algorithm::Hs256, &[7; 32]).unwrap();
        check(payload, policy, &GrantsPool::default(), &key, NOW_S)
    }

    fn check_default(payload: &str) -> Result<Identity, TokenError> {
        check_with(&Policy::default(), payload)
    }

    #[test]
    fn a_token_of_an_application_is_good_for_its_names_only() {
        let key = Key::from_secret(None, Algorithm::Hs256, &[7; 32]).unwrap().of_app("shop/");
        let pool = GrantsPool::default();
        let claim = r#", "throng": {"subscribe": ["*", {"users": "*"}], "publish": ["news"]}"#;
        let check = |claims: &str| check(&lasting(claims), &Policy::default(), &pool, &key, NOW_S);
        assert_eq!(check(r#", "sub": "ann""#), Err(TokenError::App));
        assert_eq!(check(r#", "sub": "shops/ann""#), Err(TokenError::App));
        let identity = check(&format!(r#", "sub": "shop/ann"{claim}"#)).unwrap();
        let grants = identity.grants();
        assert_eq!(grants.within(), Some("shop/"));
        let other = pool.get(r#"{"subscribe": ["*", {"users": "*"}], "publish": ["news"]}"#, None);
        assert_ne!(grants, &other.unwrap(), "others share nothing with it");
        let may = |name: &ChannelName| {
            let permission = Permission::Subscribe;
            grants.allow(permission, name, identity.user()) && grants.includes(name)
        };
        for (name, is_allowed) in [("shop/news", true), ("news", false), ("shops/news", false)] {
            assert_eq!(may(&ChannelName::channel(name)), is_allowed, "{name}");
            assert_eq!(may(&ChannelName::user(name)), is_allowed, "{name}");
        }
        let news = ChannelName::channel("news");
        assert!(!grants.allow(Permission::Publish, &news, None));
        assert_eq!(check("").unwrap().grants().within(), Some("shop/"));
    }

    /// A payload with these claims besides an `exp` of the next minute.
    fn lasting(claims: &str) -> String {
        format!(r#"{{"exp": {}{claims}}}"#, NOW_S + 60)
    }

    #[test]
    fn what_a_token_says_is_kept() {
        let claims = r#", "sub": "ann", "jti": "t1", "iat": 1799999999.9, "nbf": 1799999000,
            "throng": {"subscribe": ["private/{user}"]}, "email": "ann@example.org""#;
        let identity = check_default(&lasting(claims)).unwrap();
        assert_eq!(identity.user(), Some("ann"));
        assert_eq!(identity.token_id(), Some(TokenId::of("t1")));
        assert_eq!(identity.issued_s(), 1_799_999_999);
        assert_eq!(u64::from(identity.expires_s()), NOW_S + 60 + 10);
        assert_eq!(identity.valid_from_s, 1_799_998_990);
        let own = ChannelName::channel("private/ann");
        assert!(identity.grants().allow(Permission::Subscribe, &own, identity.user()));
    }

    #[test]
    fn a_user_may_have_a_name_for_people() {
        let name = |claims: &str| {
            let identity = check_default(&lasting(claims)).unwrap();
            (identity.user().map(String::from), identity.name().map(String::from))
        };
        let ann = |name: Option<&str>| (Some("ann".to_owned()), name.map(String::from));
        let with = |value: &str| name(&format!(r#", "sub": "ann", "name": {value}"#));
        assert_eq!(with(r#""Ann \u00c4. E""#), ann(Some("Ann Ä. E")));
        assert_eq!(name(r#", "sub": "ann""#), ann(None));
        // It belongs to a user.
        assert_eq!(name(r#", "name": "Ann""#), (None, None));
        let long = format!(r#""{}""#, "n".repeat(SHOWN_NAME_BYTES_MAX));
        assert!(with(&long).1.is_some());
        let longer = long.replacen('n', "nn", 1);
        for value in ["\"\"", "7", "null", r#"["Ann"]"#, r#""a\nb""#, &longer] {
            assert_eq!(with(value), ann(None), "{value}");
        }
        let claims = r#", "sub": "ann", "name": "Ann""#;
        let identity = check_default(&lasting(claims)).unwrap();
        let certified = identity.certified("bob", 1);
        assert_eq!((certified.user(), certified.name()), (Some("bob"), Some("Ann")));
        assert_eq!(identity.narrowed(None, 1).name(), Some("Ann"));
        let twice = check_default(&lasting(r#", "name": "a", "name": "b""#));
        assert_eq!(twice, Err(TokenError::DuplicateClaim));
    }

    #[test]
    fn only_the_expiry_is_needed() {
        let identity = check_default(&lasting("")).unwrap();
        assert_eq!((identity.user(), identity.token_id(), identity.issued_s()), (None, None, 0));
        assert!(identity.grants().is_empty());
    }

    #[test]
    fn times_have_a_leeway() {
        let times = |exp: u64, nbf: u64, iat: u64| {
            check_default(&format!(r#"{{"exp": {exp}, "nbf": {nbf}, "iat": {iat}}}"#)).map(|_| ())
        };
        assert_eq!(times(NOW_S + 60, NOW_S, NOW_S), Ok(()));
        assert_eq!(times(NOW_S - 9, NOW_S - 60, NOW_S - 60), Ok(()));
        assert_eq!(times(NOW_S - 10, NOW_S - 60, NOW_S - 60), Err(TokenError::Expired));
        assert_eq!(times(0, 0, 0), Err(TokenError::Expired));
        assert_eq!(times(NOW_S + 60, NOW_S + 10, NOW_S), Ok(()));
        assert_eq!(times(NOW_S + 60, NOW_S + 11, NOW_S), Err(TokenError::NotYetValid));
        assert_eq!(times(NOW_S + 60, NOW_S, NOW_S + 10), Ok(()));
        assert_eq!(times(NOW_S + 60, NOW_S, NOW_S + 11), Err(TokenError::NotYetValid));
    }

    #[test]
    fn tokens_have_a_longest_life() {
        let day = 24 * 60 * 60;
        let life =
            |exp: u64, iat: &str| check_default(&format!(r#"{{"exp": {exp}{iat}}}"#)).map(|_| ());
        let issued = format!(r#", "iat": {}"#, NOW_S - 100);
        assert_eq!(life(NOW_S - 100 + day, &issued), Ok(()));
        assert_eq!(life(NOW_S - 99 + day, &issued), Err(TokenError::LivesTooLong));
        assert_eq!(life(NOW_S + day, ""), Ok(()));
        assert_eq!(life(NOW_S + day + 1, ""), Err(TokenError::LivesTooLong));
        assert_eq!(life(u64::MAX, ""), Err(TokenError::LivesTooLong));
    }

    #[test]
    fn dates_are_numbers() {
        for exp in ["\"1800000060\"", "null", "true", "[1800000060]", "-1", "-1.5", "{}"] {
            let payload = format!(r#"{{"exp": {exp}}}"#);
            assert_eq!(check_default(&payload), Err(TokenError::ClaimForm("exp")), "{exp}");
        }
        assert!(check_default(r#"{"exp": 1.80000006e9}"#).is_ok());
        assert_eq!(check_default(r#"{"exp": 1e30}"#), Err(TokenError::LivesTooLong));
        assert_eq!(check_default("{}"), Err(TokenError::NoExpiry));
    }

    #[test]
    fn audiences_must_fit() {
        let ours = Policy { audiences: vec!["throng".into(), "push".into()], ..Policy::default() };
        let check = |policy: &Policy, aud: &str| check_with(policy, &lasting(aud)).map(|_| ());
        for aud in [r#", "aud": "push""#, r#", "aud": ["x", "throng"]"#] {
            assert_eq!(check(&ours, aud), Ok(()), "{aud}");
            assert_eq!(check(&Policy::default(), aud), Err(TokenError::Audience), "{aud}");
        }
        for aud in ["", r#", "aud": []"#, r#", "aud": "x""#, r#", "aud": ["Throng"]"#] {
            assert_eq!(check(&ours, aud), Err(TokenError::Audience), "{aud}");
        }
        assert_eq!(check(&Policy::default(), ""), Ok(()));
        let many = format!(r#", "aud": [{}]"#, vec![r#""throng""#; AUDIENCES_MAX + 1].join(","));
        for aud in [r#", "aud": 1"#, r#", "aud": [1]"#, r#", "aud": {}"#, &many] {
            assert_eq!(check(&ours, aud), Err(TokenError::ClaimForm("aud")), "{aud}");
        }
    }

    #[test]
    fn issuers_must_fit() {
        let ours = Policy { issuers: vec!["https://a".into()], ..Policy::default() };
        assert!(check_with(&ours, &lasting(r#", "iss": "https://a""#)).is_ok());
        assert!(check_default(&lasting(r#", "iss": "https://b""#)).is_ok());
        for iss in ["", r#", "iss": "https://b""#, r#", "iss": "https://a/""#] {
            assert_eq!(check_with(&ours, &lasting(iss)), Err(TokenError::Issuer), "{iss}");
        }
        let list = check_with(&ours, &lasting(r#", "iss": ["https://a"]"#));
        assert_eq!(list, Err(TokenError::ClaimForm("iss")));
    }

    #[test]
    fn users_have_valid_names() {
        for user in ["*", "ann/x", "ann@example.org", "auth0|1", "…"] {
            let identity = check_default(&lasting(&format!(r#", "sub": "{user}""#))).unwrap();
            assert_eq!(identity.user(), Some(user));
        }
        let long = "x".repeat(10 << 10);
        for (user, error) in [
            ("", NameError::Empty("user")),
            ("a\\u0000", NameError::Control("user")),
            ("a/../b", NameError::DotSegment("user")),
            (&long, NameError::TooLong("user")),
        ] {
            let identity = check_default(&lasting(&format!(r#", "sub": "{user}""#)));
            assert_eq!(identity, Err(TokenError::User(error)));
        }
        let number = check_default(&lasting(r#", "sub": 17"#));
        assert_eq!(number, Err(TokenError::ClaimForm("sub")));
    }

    #[test]
    fn duplicate_claims_are_refused() {
        for claims in [
            r#", "exp": 1900000000"#,
            r#", "sub": "ann", "sub": "bob""#,
            r#", "sub": "ann", "s\u0075b": "bob""#,
            r#", "email": "a", "email": "b""#,
        ] {
            assert_eq!(
                check_default(&lasting(claims)),
                Err(TokenError::DuplicateClaim),
                "{claims}"
            );
        }
        let twice = check_default(&lasting(r#", "throng": {"publish": [], "publish": ["*"]}"#));
        assert_eq!(twice, Err(TokenError::Grants(GrantsError::Twice("publish"))));
    }

    #[test]
    fn the_number_of_claims_is_limited() {
        let claims = |count: usize| {
            let claims: Vec<_> = (0..count).map(|number| format!(r#", "c{number}": 1"#)).collect();
            check_default(&lasting(&claims.concat())).map(|_| ())
        };
        assert_eq!(claims(CLAIMS_MAX - 1), Ok(()));
        assert_eq!(claims(CLAIMS_MAX), Err(TokenError::TooManyClaims));
    }

    #[test]
    fn other_payloads_are_malformed() {
        for payload in ["", "[]", "null", "\"x\"", "{", "{}}", "{\"exp\" 1}"] {
            assert_eq!(check_default(payload), Err(TokenError::Malformed), "{payload}");
        }
    }
}
