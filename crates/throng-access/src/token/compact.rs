//! The three parts of a token, and its header (RFC 7515 sections 4.1 and 7.1).

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::error::TokenError;
use super::limits::{HEADER_BYTES_MAX, SIGNATURE_BYTES_MAX, TOKEN_BYTES_MAX};
use crate::algorithm::Algorithm;
use crate::json::is_object;

/// A token in its parts, which are still in base64url.
pub(super) struct Compact<'a> {
    /// Header and payload with the dot between them: what is signed.
    pub(super) signed: &'a str,
    header: &'a str,
    payload: &'a str,
    signature: &'a str,
}

/// The relevant members of a header.
#[derive(Debug, PartialEq)]
pub(super) struct TokenHeader {
    pub(super) algorithm: Algorithm,
    pub(super) key_id: Option<String>,
}

#[derive(Deserialize)]
struct RawHeader<'a> {
    #[serde(borrow)]
    alg: Cow<'a, str>,
    kid: Option<String>,
    typ: Option<String>,
    crit: Option<IgnoredAny>,
}

impl<'a> Compact<'a> {
    /// Splits a token. The parts are not decoded yet.
    pub(super) fn split(token: &'a str) -> Result<Compact<'a>, TokenError> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(TokenError::TooLong);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(TokenError::Malformed)?;
        let (header, payload) = signed.split_once('.').ok_or(TokenError::Malformed)?;
        let is_form = !payload.contains('.')
            && header.len() <= HEADER_BYTES_MAX
            && signature.len() <= SIGNATURE_BYTES_MAX.div_ceil(3) * 4;
        if !is_form || [header, payload, signature].iter().any(|part| part.is_empty()) {
            return Err(TokenError::Malformed);
        }
        Ok(Compact { signed, header, payload, signature })
    }

    /// The header, if the server can do what it demands.
    pub(super) fn header(&self) -> Result<TokenHeader, TokenError> {
        let json = self.header_text()?;
        if !is_object(&json) {
            return Err(TokenError::Malformed);
        }
        let RawHeader { alg, kid, typ, crit } =
            serde_json::from_str(&json).map_err(|_| TokenError::Malformed)?;
        if crit.is_some() {
            return Err(TokenError::Critical);
        }
        if typ.is_some_and(|typ| !is_access_token(&typ)) {
            return Err(TokenError::Type);
        }
        let algorithm = Algorithm::from_name(&alg).ok_or(TokenError::Algorithm)?;
        Ok(TokenHeader { algorithm, key_id: kid })
    }

    /// The header as it is written.
    pub(super) fn header_text(&self) -> Result<String, TokenError> {
        text(self.header)
    }

    /// The payload, which should be a JSON object.
    pub(super) fn payload(&self) -> Result<String, TokenError> {
        text(self.payload)
    }

    pub(super) fn signature(&self) -> Result<Vec<u8>, TokenError> {
        URL_SAFE_NO_PAD.decode(self.signature).map_err(|_| TokenError::Malformed)
    }
}

fn text(part: &str) -> Result<String, TokenError> {
    let bytes = URL_SAFE_NO_PAD.decode(part).map_err(|_| TokenError::Malformed)?;
    String::from_utf8(bytes).map_err(|_| TokenError::Malformed)
}

/// True if a `typ` is one of a plain JWT or of an access token (RFC 9068 section 2.1). Other types,
/// such as `logout+jwt`, are for other purposes, although the same issuer signs them (RFC 8725
/// section 3.11).
fn is_access_token(typ: &str) -> bool {
    let prefix = "application/";
    let short = match typ.get(..prefix.len()) {
        Some(start) if start.eq_ignore_ascii_case(prefix) => &typ[prefix.len()..],
        _ => typ,
    };
    ["JWT", "at+jwt"].iter().any(|allowed| allowed.eq_ignore_ascii_case(short))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(json: &str) -> Result<TokenHeader, TokenError> {
        let token = format!("{}.e30.AA", URL_SAFE_NO_PAD.encode(json));
        Compact::split(&token)?.header()
    }

    #[test]
    fn a_token_has_three_parts() {
        assert!(Compact::split("a.b.c").is_ok());
        for token in ["", "a", "a.b", "a.b.c.d", "..", "a..c", ".b.c", "a.b.", "a.b.c.d.e"] {
            assert!(Compact::split(token).is_err(), "{token}");
        }
        let long = format!("a.{}.c", "b".repeat(TOKEN_BYTES_MAX));
        assert_eq!(Compact::split(&long).err(), Some(TokenError::TooLong));
        for token in [
            format!("{}.b.c", "a".repeat(HEADER_BYTES_MAX + 1)),
            format!("a.b.{}", "c".repeat(1400)),
        ] {
            assert_eq!(Compact::split(&token).err(), Some(TokenError::Malformed));
        }
    }

    #[test]
    fn a_header_names_a_known_algorithm() {
        let [plain, named] =
            [r#"{"alg":"HS256"}"#, r#" {"typ":"at+JWT","kid":"k\u0031","alg":"ES256","x5u":"y"}"#];
        assert_eq!(header(plain), Ok(TokenHeader { algorithm: Algorithm::Hs256, key_id: None }));
        let key_id = Some("k1".to_owned());
        assert_eq!(header(named), Ok(TokenHeader { algorithm: Algorithm::Es256, key_id }));
        for (json, error) in [
            (r#"{"alg":"none"}"#, TokenError::Algorithm),
            (r#"{"alg":"nOnE"}"#, TokenError::Algorithm),
            (r#"{"alg":""}"#, TokenError::Algorithm),
            (r#"{}"#, TokenError::Malformed),
            (r#"["HS256",null,null,null]"#, TokenError::Malformed),
            (r#"{"alg":null}"#, TokenError::Malformed),
            (r#"{"alg":["HS256"]}"#, TokenError::Malformed),
            (r#"{"alg":"HS256","alg":"HS256"}"#, TokenError::Malformed),
            (r#"{"alg":"HS256","\u0061lg":"none"}"#, TokenError::Malformed),
            (r#"{"alg":"HS256","kid":1}"#, TokenError::Malformed),
            (r#"{"alg":"HS256"}{}"#, TokenError::Malformed),
            (r#"{"alg":"HS256","crit":["b64"],"b64":false}"#, TokenError::Critical),
            (r#"{"alg":"HS256","crit":[]}"#, TokenError::Critical),
            (r#"{"alg":"HS256","typ":"logout+jwt"}"#, TokenError::Type),
        ] {
            assert_eq!(header(json), Err(error), "{json}");
        }
    }

    #[test]
    fn types_may_have_the_long_form() {
        for typ in ["JWT", "jwt", "at+jwt", "application/at+jwt", "Application/JWT"] {
            assert!(is_access_token(typ), "{typ}");
        }
        for typ in
            ["", "JOSE", "secevent+jwt", "application/", "application/x", "é".repeat(12).as_str()]
        {
            assert!(!is_access_token(typ), "{typ}");
        }
    }

    #[test]
    fn base64url_is_strict() {
        let decode = |part: &str| {
            let token = format!("{part}.e30.AA");
            Compact::split(&token).and_then(|compact| compact.header()).map(|_| ())
        };
        let good = URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256"}?"#.trim_end_matches('?'));
        assert_eq!(decode(&good), Ok(()));
        for bad in
            [format!("{good}="), format!("{good} "), format!(" {good}"), good.replace('e', "+")]
        {
            assert_eq!(decode(&bad), Err(TokenError::Malformed), "{bad}");
        }
        // The last character has bits that no byte takes; two tokens must not be one.
        let part = URL_SAFE_NO_PAD.encode("x");
        assert_eq!(part, "eA");
        let compact = Compact { signed: "", header: "", payload: "", signature: "eB" };
        assert_eq!(compact.signature(), Err(TokenError::Malformed));
    }
}
