//! Logins of operators: what a browser keeps after it has shown a server key once.
//!
//! A browser cannot send a header with a page, so that an operator who opens the status page shows
//! the key in a form and gets a *login* for a cookie. It says which key was shown and until when it
//! counts, and carries an HMAC with a secret that only this server has. So it remembers no logins,
//! a restart ends all of them, an upgrade none, and the key itself stays out of the browser.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;

use super::{KeyHash, ServerKey, ServerKeys};

/// How long a login counts: a working day.
pub const LOGIN_S: u64 = 12 * 60 * 60;

/// The bytes of a login before the HMAC: the time, and the hash of the key.
const SIGNED_BYTES: usize = 8 + 32;

/// The bytes of the HMAC with SHA-256.
const TAG_BYTES: usize = 32;

/// Issues logins and recognises them.
#[derive(Debug)]
pub struct Logins {
    secret: hmac::Key,
}

impl Logins {
    /// With the secret of a server, which stays when a new process takes over.
    pub fn with_secret(secret: [u8; 32]) -> Logins {
        Logins { secret: hmac::Key::new(hmac::HMAC_SHA256, &secret) }
    }

    /// A login by `key`, which counts for [`LOGIN_S`]. Letters, digits, `-` and `_`.
    pub fn issue(&self, key: &ServerKey, now_s: u64) -> String {
        let mut bytes = Vec::with_capacity(SIGNED_BYTES + TAG_BYTES);
        bytes.extend_from_slice(&(now_s + LOGIN_S).to_be_bytes());
        bytes.extend_from_slice(key.hash.bytes());
        let tag = hmac::sign(&self.secret, &bytes);
        bytes.extend_from_slice(tag.as_ref());
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// The key that a login was issued for; `None` if it is not one of this process, if it is over,
    /// or if the server does not have the key any more.
    pub fn find(&self, login: &str, keys: &ServerKeys, now_s: u64) -> Option<Arc<ServerKey>> {
        // A longer text is not worth decoding.
        if login.len() != (SIGNED_BYTES + TAG_BYTES).div_ceil(3) * 4 {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(login).ok()?;
        let (signed, tag) = bytes.split_at_checked(SIGNED_BYTES)?;
        hmac::verify(&self.secret, signed, tag).ok()?;
        let (expires_s, hash) = signed.split_first_chunk::<8>()?;
        let is_current = now_s < u64::from_be_bytes(*expires_s);
        let hash = KeyHash::from_bytes(hash.try_into().ok()?);
        keys.find_hash(&hash).filter(|_| is_current)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_S: u64 = 1_800_000_000;

    fn keys(names: &[&str]) -> ServerKeys {
        let keys = names.iter().map(|name| ServerKey::for_tests(name, &["administration"]));
        ServerKeys::new(keys.collect()).unwrap()
    }

    #[test]
    fn a_login_counts_until_it_is_over() {
        let (logins, keys) = (Logins::with_secret([7; 32]), keys(&["a", "b"]));
        let login = logins.issue(keys.iter().nth(1).unwrap(), NOW_S);
        for (now_s, found) in [(NOW_S, true), (NOW_S + LOGIN_S - 1, true), (NOW_S + LOGIN_S, false)]
        {
            let key = logins.find(&login, &keys, now_s);
            assert_eq!(key.as_deref().map(ServerKey::name), found.then_some("b"));
        }
    }

    #[test]
    fn a_login_ends_with_its_key_and_with_the_process() {
        let (logins, both) = (Logins::with_secret([7; 32]), keys(&["a", "b"]));
        let login = logins.issue(both.iter().next().unwrap(), NOW_S);
        assert!(logins.find(&login, &keys(&["b"]), NOW_S).is_none());
        assert!(Logins::with_secret([8; 32]).find(&login, &both, NOW_S).is_none());
    }

    #[test]
    fn no_changed_login_counts() {
        let (logins, keys) = (Logins::with_secret([7; 32]), keys(&["a"]));
        let login = logins.issue(keys.iter().next().unwrap(), NOW_S);
        assert_eq!(login.len(), (SIGNED_BYTES + TAG_BYTES).div_ceil(3) * 4);
        for at in 0..login.len() {
            for letter in ["A", "B"] {
                let mut changed = login.clone();
                changed.replace_range(at..=at, letter);
                let is_same = changed == login;
                assert_eq!(logins.find(&changed, &keys, NOW_S).is_some(), is_same, "at {at}");
            }
        }
        for text in ["", "x", &login[1..], &format!("{login}A"), &"é".repeat(48)] {
            assert!(logins.find(text, &keys, NOW_S).is_none(), "{text}");
        }
    }
}
