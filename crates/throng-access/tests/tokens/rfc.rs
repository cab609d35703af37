//! The examples of RFC 7515, RFC 7519 and RFC 8037. Their claims do not fit this server, which says
//! so only after the signature held: that it did is what these tests look for.

use super::support::*;
use throng_access::TokenError;
use throng_access::algorithm::Algorithm;
use throng_access::keys::{JwksSource, Key, KeySet};

/// The payload of RFC 7515 appendix A: `exp` is 1300819380, in 2011.
const PAYLOAD: &str = "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNv\
    bS9pc19yb290Ijp0cnVlfQ";

fn keys(jwk: &str) -> KeySet {
    set(vec![Key::from_jwk(jwk, JwksSource::File).unwrap()])
}

/// What is said of a token whose signature holds and whose `iss` is `joe`.
fn assert_signed_by(jwk: &str, token: &str) {
    let before = 1_300_819_380 - 60;
    assert_eq!(verify_at(token, &keys(jwk), before), Err(TokenError::Audience));
    assert_eq!(verify_at(token, &keys(jwk), ISSUED_S), Err(TokenError::Expired));
    let last = token.len() - 5;
    let forged = format!(
        "{}{}{}",
        &token[..last],
        if token.as_bytes()[last] == b'A' { 'B' } else { 'A' },
        &token[last + 1..]
    );
    assert_eq!(verify_at(&forged, &keys(jwk), before), Err(TokenError::Signature));
}

/// RFC 7515 appendix A.1, which is also the example of RFC 7519 section 3.1. Its header has line
/// breaks.
#[test]
fn hs256() {
    let jwk = "{\"kty\":\"oct\",\"k\":\"\
        AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow\"}";
    let signature = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
    let token = format!("eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.{PAYLOAD}.{signature}");
    assert_signed_by(jwk, &token);
}

/// RFC 7515 appendix A.2.
#[test]
fn rs256() {
    let jwk = "{\"kty\":\"RSA\",\"n\":\"\
        ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmf\
        HQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZ\
        o9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVM\
        TBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk\
        2PAcDTW9gb54h4FRWyuXpoQ\",\"e\":\"AQAB\"}";
    let signature = "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0\
        Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xB\
        ArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPq\
        vhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";
    assert_signed_by(jwk, &format!("eyJhbGciOiJSUzI1NiJ9.{PAYLOAD}.{signature}"));
}

/// RFC 7515 appendix A.3.
#[test]
fn es256() {
    let jwk = r#"{"kty":"EC","crv":"P-256",
        "x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
        "y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}"#;
    let signature =
        "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q";
    assert_signed_by(jwk, &format!("eyJhbGciOiJFUzI1NiJ9.{PAYLOAD}.{signature}"));
}

/// RFC 7515 appendix A.5 and RFC 7519 section 6.1: an unsecured token.
#[test]
fn none() {
    let token = format!("eyJhbGciOiJub25lIn0.{PAYLOAD}.");
    let keys = set(Algorithm::ALL.into_iter().map(key).collect());
    assert_eq!(verify(&token, &keys), Err(TokenError::Malformed));
}

/// RFC 8037 appendix A.4: its payload is no JSON.
#[test]
fn eddsa() {
    let keys =
        keys(r#"{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}"#);
    let signed = "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc";
    let signature =
        "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg";
    assert_eq!(verify(&format!("{signed}.{signature}"), &keys), Err(TokenError::Malformed));
    let forged = signature.replace("hgyY", "hgyZ");
    assert_eq!(verify(&format!("{signed}.{forged}"), &keys), Err(TokenError::Signature));
}
