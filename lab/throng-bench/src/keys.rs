//! Keys for a server that checks tokens, in files of its directory.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::{Map, json};
use throng_flood::hs256_token;

use crate::file::Algorithm;

/// Head of the `SubjectPublicKeyInfo` (RFC 5480) of a public key of P-256; the point follows.
const P256_HEAD: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// How long single tokens are valid.
const LIFETIME: Duration = Duration::from_secs(3_600);

/// Scopes of the server key.
const SCOPES: &str = "publish,administration";

/// The files of keys.
const SECRET: &str = "secret";
const PRIVATE: &str = "private.pem";
const PUBLIC: &str = "public.pem";

/// The keys of one server.
pub(crate) struct Keys {
    /// The secret of HS256, which is in a file as well.
    secret: String,
    /// A server key that may do everything.
    pub(crate) server_key: String,
    /// Its table for the settings.
    server_key_table: String,
}

impl Keys {
    /// Makes all keys in a directory. `program` makes the server key.
    pub(crate) fn make(directory: &Path, program: &Path) -> Result<Keys, String> {
        let fault = |error: io::Error| format!("the keys cannot be made: {error}");
        let no_random = |_| "the keys cannot be made: no random numbers".to_owned();
        let (server_key, server_key_table) = server_key(program)?;
        let random = SystemRandom::new();
        let mut secret = [0; 24];
        random.fill(&mut secret).map_err(no_random)?;
        let secret = STANDARD.encode(secret);
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random)
            .map_err(no_random)?;
        let pair =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &random)
                .map_err(|error| format!("the keys cannot be made: {error}"))?;
        let public = [&P256_HEAD, pair.public_key().as_ref()].concat();
        for (name, text) in [
            (SECRET, secret.clone()),
            (PRIVATE, pem("PRIVATE KEY", pkcs8.as_ref())),
            (PUBLIC, pem("PUBLIC KEY", &public)),
        ] {
            fs::write(directory.join(name), text).map_err(fault)?;
        }
        Ok(Keys { secret, server_key, server_key_table })
    }

    /// The tables of settings of a server that checks tokens of `algorithm`.
    pub(crate) fn settings(&self, algorithm: Algorithm) -> String {
        let key = match algorithm {
            Algorithm::Hs256 => format!("algorithm = 'HS256'\nsecret-file = '{SECRET}'"),
            Algorithm::Es256 => format!("algorithm = 'ES256'\npublic-key-file = '{PUBLIC}'"),
        };
        format!("\n[[token-keys]]\n{key}\n\n{}", self.server_key_table)
    }

    /// An HS256 token of `user` that may subscribe to everything.
    pub(crate) fn token(&self, user: &str) -> String {
        signed(&self.secret, user)
    }

    /// The same, signed with another secret.
    pub(crate) fn forged_token(&self, user: &str) -> String {
        signed(&self.secret.to_lowercase(), user)
    }
}

impl Algorithm {
    /// The option of a plan for tokens of each client's own user, and the file that it names.
    pub(crate) fn option(self) -> (&'static str, &'static str) {
        match self {
            Algorithm::Hs256 => ("secret-file", SECRET),
            Algorithm::Es256 => ("key-file", PRIVATE),
        }
    }
}

fn signed(secret: &str, user: &str) -> String {
    let grants = json!({ "subscribe": ["*"] });
    let claims = Map::from_iter([("throng".to_owned(), grants)]);
    hs256_token(secret.as_bytes(), user, &claims, LIFETIME)
}

/// A new server key, and its table for the settings.
fn server_key(program: &Path) -> Result<(String, String), String> {
    let made = Command::new(program)
        .args(["key", "--name", "bench", "--scopes", SCOPES])
        .env_remove("THRONG_KEY")
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("no server key can be made: {error}"))?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).trim().to_owned();
    let (key, table) = (text(made.stdout), text(made.stderr));
    if made.status.success() && !key.is_empty() {
        Ok((key, table))
    } else {
        Err(format!("no server key can be made: {table}"))
    }
}

fn pem(label: &str, der: &[u8]) -> String {
    let body = STANDARD.encode(der);
    let lines = body.as_bytes().chunks(64).map(String::from_utf8_lossy);
    let lines = lines.collect::<Vec<_>>().join("\n");
    format!("-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n")
}
