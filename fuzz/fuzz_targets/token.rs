//! Tokens: no header and no payload panics, and a token is accepted only with a good signature.
//!
//! Input: one byte for the number of bytes that are a header, then header and payload. Both become
//! a token with a wrong signature, and the payload one with a good signature.

#![no_main]

use std::sync::{Arc, LazyLock};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use libfuzzer_sys::fuzz_target;
use throng_access::algorithm::Algorithm;
use throng_access::keys::{Jwks, JwksSource, Key, KeySet};
use throng_access::token::{Signer, verify};
use throng_access::{Grants, GrantsPool, Permission, Policy};
use throng_core::ChannelName;

const SECRET: &[u8] = &[7; 32];
const NOW_S: u64 = 1_800_000_000;

static KEYS: LazyLock<KeySet> = LazyLock::new(|| {
    let key = Key::from_secret(None, Algorithm::Hs256, SECRET).expect("a long secret");
    KeySet::new(vec![Arc::new(key)]).expect("one key is a set")
});

static SIGNER: LazyLock<Signer> =
    LazyLock::new(|| Signer::new(None, Algorithm::Hs256, SECRET).expect("a long secret"));

fuzz_target!(|data: &[u8]| {
    let [header_bytes, bytes @ ..] = data else { return };
    let (header, payload) = bytes.split_at(usize::from(*header_bytes).min(bytes.len()));
    let (policy, pool) = (Policy::default(), GrantsPool::default());
    let check = |token: &str| verify(token, &KEYS, &policy, &pool, NOW_S);

    let forged = [header, payload, b"no signature of 32 bytes at all!"];
    let forged = forged.map(|part| URL_SAFE_NO_PAD.encode(part)).join(".");
    assert!(check(&forged).is_err());

    if let Ok(payload) = str::from_utf8(payload) {
        if let Ok(identity) = check(&SIGNER.sign(payload)) {
            assert!(u64::from(identity.expires_s()) > NOW_S);
            let is_name = |user| throng_wire::check_name(user, "user").is_ok();
            assert!(identity.user().is_none_or(is_name));
            let own = ChannelName::channel("private/*");
            identity.grants().allow(Permission::Subscribe, &own, identity.user());
        }
        let _ = Grants::from_claim(payload);
        let _ = Key::from_pem(None, None, payload);
    }
    let _ = Jwks::parse(payload, JwksSource::File);
});
