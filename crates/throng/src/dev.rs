//! `throng serve --dev`: keys for one run, and commands that use them.

use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;

use throng_access::Scope;
use throng_access::algorithm::Algorithm;
use throng_access::server_key::{KeyHash, generate};
use throng_access::token::Signer;
use throng_units::Time;

use crate::access::now_s;
use crate::settings::{Secret, ServerKeyTable, Settings, SettingsError, TokenKeyTable};

/// The user of the token.
const USER: &str = "ann";

/// The longest life of the token. The setting `max-token-age` may make it shorter.
const LIFE_S: u64 = 24 * 60 * 60;

/// The grants of the token: all that a token can have.
const GRANTS: &str = r#"{
    "subscribe": ["*", {"users": "*"}], "publish": ["*", {"users": "*"}],
    "history": ["*", {"users": "*"}], "presence": ["*", {"users": "*"}],
    "erase": ["*", {"users": "*"}], "edit": ["*", {"users": "*"}],
    "state": ["*", {"users": "*"}], "end": ["*"], "update": ["*"],
    "create": ["*"]
}"#;

/// The most bytes of the secrets that another process passes on.
const SECRETS_BYTES_MAX: u64 = 4096;

/// A token and a server key that work until the server ends.
pub(crate) struct DevKeys {
    token: String,
    secrets: DevSecrets,
    life: Time,
}

/// The secrets of the keys: the same secrets make the same keys.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct DevSecrets {
    /// Signs the token and verifies it.
    secret: String,
    key: String,
}

impl DevSecrets {
    fn generate() -> Result<DevSecrets, SettingsError> {
        // The random characters of a server key are as good a secret as any.
        let new = || generate().map_err(|error| SettingsError(format!("--dev: {error}")));
        Ok(DevSecrets { secret: new()?, key: new()? })
    }

    /// A pipe with them, for a process that takes over.
    pub(crate) fn pass(&self) -> io::Result<OwnedFd> {
        let (near, far) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        // So few bytes have room in it.
        File::from(far).write_all(format!("{}\n{}", self.secret, self.key).as_bytes())?;
        Ok(near)
    }

    /// Reads what [`DevSecrets::pass`] has written.
    pub(crate) fn receive(pipe: OwnedFd) -> io::Result<DevSecrets> {
        let mut text = String::new();
        File::from(pipe).take(SECRETS_BYTES_MAX).read_to_string(&mut text)?;
        let (secret, key) = text.split_once('\n').ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(DevSecrets { secret: secret.into(), key: key.into() })
    }
}

impl DevKeys {
    /// Makes keys, or reuses `before`, and adds them to the settings, which must have none.
    pub(crate) fn add_to(
        settings: &mut Settings,
        before: Option<DevSecrets>,
    ) -> Result<DevKeys, SettingsError> {
        if settings.has_keys() {
            return Err(SettingsError(
                "--dev creates keys, but the settings already have keys; remove one of them".into(),
            ));
        }
        let failed = |error: &dyn fmt::Display| SettingsError(format!("--dev: {error}"));
        let secrets = before.map_or_else(DevSecrets::generate, Ok)?;
        let DevSecrets { secret, key } = secrets.clone();
        let hash = KeyHash::of(&key).map_err(|error| failed(&error))?;
        let signer = Signer::new(None, Algorithm::Hs256, secret.as_bytes());
        let signer = signer.map_err(|error| failed(&error))?;
        let life_s = LIFE_S.min(settings.max_token_age.0.as_secs());
        let token = signer.sign(&claims(settings, life_s));
        settings.token_keys.push(TokenKeyTable {
            secret: Some(Secret(secret)),
            at: "--dev".into(),
            ..TokenKeyTable::default()
        });
        settings.server_keys.push(ServerKeyTable {
            name: Some("dev".into()),
            hash: Some(hash.to_string()),
            scopes: Some(Scope::ALL.map(|scope| scope.word().to_owned()).into()),
            at: "--dev".into(),
            ..ServerKeyTable::default()
        });
        Ok(DevKeys { token, secrets, life: Time(std::time::Duration::from_secs(life_s)) })
    }

    /// The secrets, from which another process makes the same keys.
    pub(crate) fn secrets(&self) -> DevSecrets {
        self.secrets.clone()
    }

    /// The fragment of a URL from which the chat takes the token.
    pub(crate) fn fragment(&self) -> String {
        format!("#token={}", self.token)
    }

    /// Writes commands that can be pasted into a shell. `url` is the public listener's.
    ///
    /// Tokens and keys consist of letters, digits, `-`, `_` and `.`, so that no shell changes them.
    pub(crate) fn write(&self, text: &mut String, url: &str) -> fmt::Result {
        let DevKeys { token, secrets: DevSecrets { key, .. }, life } = self;
        writeln!(text, "  --dev: keys for this run only. The token is of user {USER}, who may do")?;
        writeln!(text, "  everything for {life}; the key is for your application. For a shell:")?;
        writeln!(text)?;
        writeln!(text, "  export THRONG_TOKEN={token}")?;
        writeln!(text, "  DEV_KEY={key}")?;
        writeln!(text, "  curl -N -H \"Authorization: Bearer $THRONG_TOKEN\" {url}/channels/news")?;
        writeln!(
            text,
            "  curl -d hello -H \"Authorization: Bearer $DEV_KEY\" {url}/channels/news"
        )?;
        writeln!(text, "  throng tail --url {url} news")
    }
}

/// Shows neither the token nor the key.
impl fmt::Debug for DevKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DevKeys")
    }
}

/// Claims that a server with these settings accepts.
fn claims(settings: &Settings, life_s: u64) -> String {
    let now_s = now_s();
    let mut claims = String::new();
    let quoted = |text: &String| serde_json::Value::from(text.as_str()).to_string();
    let _ = write!(claims, "{{\"sub\":\"{USER}\",\"iat\":{now_s},\"exp\":{}", now_s + life_s);
    for (name, values) in [("aud", &settings.token_audience.0), ("iss", &settings.token_issuer.0)] {
        if let Some(value) = values.first() {
            let _ = write!(claims, ",\"{name}\":{}", quoted(value));
        }
    }
    let _ = write!(claims, ",\"throng\":{GRANTS}}}");
    claims
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{AccessSettings, OfflineVerifier};
    use crate::settings::read_text;

    #[test]
    fn the_server_accepts_what_it_prints() {
        for text in
            ["", "token-audience = ['push', 'b']\ntoken-issuer = 'a\"b'\nmax-token-age = 60"]
        {
            let mut settings = read_text(text).unwrap();
            let keys = DevKeys::add_to(&mut settings, None).unwrap();
            let access = AccessSettings::load(&settings).unwrap();
            let verifier = OfflineVerifier::new(&access, &settings, now_s()).unwrap();
            let identity = verifier.verify(&keys.token, now_s()).unwrap();
            assert_eq!(identity.user(), Some("ann"));
            let key = access.server_keys.find(&keys.secrets.key).unwrap();
            assert!(Scope::ALL.iter().all(|scope| key.has(*scope)));
            assert!(DevKeys::add_to(&mut settings, None).is_err(), "there are keys now");
        }
    }

    #[test]
    fn a_process_that_takes_over_accepts_what_the_first_has_printed() {
        let mut settings = read_text("").unwrap();
        let first = DevKeys::add_to(&mut settings, None).unwrap();
        let passed = DevSecrets::receive(first.secrets().pass().unwrap()).unwrap();
        assert!(passed == first.secrets());
        let mut settings = read_text("").unwrap();
        DevKeys::add_to(&mut settings, Some(passed)).unwrap();
        let access = AccessSettings::load(&settings).unwrap();
        let verifier = OfflineVerifier::new(&access, &settings, now_s()).unwrap();
        assert!(verifier.verify(&first.token, now_s()).is_ok());
        assert!(access.server_keys.find(&first.secrets.key).is_ok());
    }
}
