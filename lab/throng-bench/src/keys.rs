//! Files with keys, for servers that check tokens: made for one run, in a directory that is removed
//! at its end.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::{Map, json};
use throng_flood::hs256_token;
use throng_flood::plan::TokenOptions;

/// What precedes the point of a public key of P-256 in a `SubjectPublicKeyInfo` (RFC 5480).
const P256_HEAD: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// How long single tokens are valid.
const LIFETIME: Duration = Duration::from_secs(3_600);

/// Scopes of the server key.
const SCOPES: &str = "publish,administration";

/// How tokens are signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Algorithm {
    /// With a secret that the server has as well.
    Hs256,
    /// With a private key, whose public key the server has.
    Es256,
}

/// The keys of one run, and their files.
pub(crate) struct Keys {
    directory: PathBuf,
    /// The secret of HS256, which is in a file as well.
    secret: String,
    /// A server key that may do everything.
    pub(crate) server_key: String,
    /// Its table for the settings.
    server_key_table: String,
}

impl Keys {
    /// Makes all keys. `program` makes the server key.
    pub(crate) fn make(program: &Path) -> Result<Keys, String> {
        let fault = |error: io::Error| format!("the keys cannot be made: {error}");
        let (server_key, server_key_table) = server_key(program)?;
        let directory = std::env::temp_dir().join(format!("throng-bench-{}", std::process::id()));
        // For this user only: the files are secrets while the run lasts.
        DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(fault)?;
        let random = SystemRandom::new();
        let mut secret = [0; 24];
        let no_random = |_| "the keys cannot be made: no random numbers".to_owned();
        random.fill(&mut secret).map_err(no_random)?;
        let secret = STANDARD.encode(secret);
        let keys = Keys { directory, secret, server_key, server_key_table };
        fs::write(keys.path("secret"), &keys.secret).map_err(fault)?;
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random)
            .map_err(no_random)?;
        let pair =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &random)
                .map_err(|error| format!("the keys cannot be made: {error}"))?;
        let public = [&P256_HEAD, pair.public_key().as_ref()].concat();
        fs::write(keys.path("private.pem"), pem("PRIVATE KEY", pkcs8.as_ref())).map_err(fault)?;
        fs::write(keys.path("public.pem"), pem("PUBLIC KEY", &public)).map_err(fault)?;
        Ok(keys)
    }

    /// Writes the settings of a server that checks tokens of `algorithm`, with `more` before all
    /// tables.
    pub(crate) fn settings(&self, algorithm: Algorithm, more: &str) -> Result<PathBuf, String> {
        let key = match algorithm {
            Algorithm::Hs256 => "algorithm = 'HS256'\nsecret-file = 'secret'",
            Algorithm::Es256 => "algorithm = 'ES256'\npublic-key-file = 'public.pem'",
        };
        let text = format!(
            "revocations-file = 'revocations'\n{more}\n[[token-keys]]\n{key}\n\n{}",
            self.server_key_table
        );
        let path = self.path("throng.toml");
        fs::write(&path, text).map_err(|error| format!("no settings can be written: {error}"))?;
        // A server starts without the revocations of the one before.
        match fs::remove_file(self.path("revocations")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(format!("the revocations cannot be removed: {error}"))
            }
            _ => Ok(path),
        }
    }

    /// Tokens of `algorithm` for clients, each of its own user `user-{i}`.
    pub(crate) fn tokens(&self, algorithm: Algorithm) -> Result<TokenOptions, String> {
        let load = |name: &str| self.path(name).to_string_lossy().parse();
        let (secret_file, key_file) = match algorithm {
            Algorithm::Hs256 => (Some(load("secret")), None),
            Algorithm::Es256 => (None, Some(load("private.pem"))),
        };
        let fault = |error: throng_units::Invalid| error.to_string();
        Ok(TokenOptions {
            secret_file: secret_file.transpose().map_err(fault)?,
            key_file: key_file.transpose().map_err(fault)?,
            ..TokenOptions::default()
        })
    }

    /// An HS256 token of `user` that may subscribe to everything.
    pub(crate) fn token(&self, user: &str) -> String {
        signed(&self.secret, user)
    }

    /// The same, signed with another secret.
    pub(crate) fn forged_token(&self, user: &str) -> String {
        signed(&self.secret.to_lowercase(), user)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that prints its arguments in place of a key.
    #[test]
    fn files_are_made_and_removed() {
        let keys = Keys::make(Path::new("/bin/echo")).expect("keys");
        assert!(keys.server_key.contains("--scopes publish,administration"));
        let path = keys.settings(Algorithm::Es256, "max-cached-tokens = 1").expect("settings");
        let settings = fs::read_to_string(&path).expect("written");
        assert!(settings.contains("public.pem") && settings.contains("max-cached-tokens"));
        let public = fs::read_to_string(keys.path("public.pem")).expect("written");
        assert!(public.starts_with("-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYI"), "{public}");
        for algorithm in [Algorithm::Hs256, Algorithm::Es256] {
            keys.tokens(algorithm).expect("tokens");
        }
        assert_ne!(keys.token("ann"), keys.forged_token("ann"));
        let directory = keys.directory.clone();
        drop(keys);
        assert!(!directory.exists());
        assert!(Keys::make(Path::new("/bin/false")).is_err());
        assert!(!directory.exists());
    }
}
