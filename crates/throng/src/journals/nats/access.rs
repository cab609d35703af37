//! How this program comes in to NATS: logins and TLS, from the files that settings name.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustls::crypto::ring::default_provider;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, DEFAULT_VERSIONS};
use throng_certificates::{CertificateFiles, own_certificate};
use throng_nats::client::{Login, NatsTls, Source};
use throng_trust::Trust;

use crate::settings::{Settings, SettingsError};

/// The largest file of a login: JWTs have a kilobyte or two.
const LOGIN_BYTES_MAX: u64 = 64 << 10;

/// The permission of others to read a file (`o+r`).
const OTHERS_READ: u32 = 0o004;

/// The files that settings name. They are read for each connection, so that logins and
/// certificates can be replaced before they expire.
#[derive(Debug, Clone, Default)]
pub(crate) struct NatsAccess {
    /// The file of `nats-login`.
    pub(crate) login: Option<PathBuf>,
    /// The file of `nats-ca`.
    pub(crate) ca: Option<PathBuf>,
    /// The files of `nats-cert` and `nats-key`.
    pub(crate) certificate: Option<(PathBuf, PathBuf)>,
    /// True if `nats-tls-first` is set.
    pub(crate) is_tls_first: bool,
}

impl NatsAccess {
    pub(crate) fn of(settings: &Settings) -> NatsAccess {
        let path = |path: &Option<PathBuf>| path.clone();
        NatsAccess {
            login: path(&settings.nats_login.0),
            ca: path(&settings.nats_ca.0),
            certificate: path(&settings.nats_cert.0).zip(path(&settings.nats_key.0)),
            is_tls_first: settings.nats_tls_first.0,
        }
    }

    /// Reads all files once.
    ///
    /// # Errors
    ///
    /// One sentence about the file that cannot be used, without what is in it.
    pub(crate) fn check(&self) -> Result<(), SettingsError> {
        self.read_login().map_err(SettingsError)?;
        if self.ca.is_some() || self.certificate.is_some() {
            self.read_tls().map_err(SettingsError)?;
        }
        Ok(())
    }

    /// Which of the files with secrets others can read.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let key = self.certificate.as_ref().map(|(_, key)| ("nats-key", key));
        let files = self.login.as_ref().map(|login| ("nats-login", login)).into_iter().chain(key);
        let mode = |path: &Path| path.metadata().map_or(0, |found| found.permissions().mode());
        let exposed = files.filter(|(_, path)| mode(path) & OTHERS_READ != 0);
        exposed
            .map(|(setting, path)| {
                let path = path.display();
                format!(
                    "{setting}: every user of this machine can read the secret in {path}; run: \
                     chmod o-r {path}"
                )
            })
            .collect()
    }

    /// The login of each connection.
    pub(crate) fn login(&self) -> Source<Login> {
        let access = self.clone();
        Source::new(move || access.read_login())
    }

    /// How TLS is spoken on each connection.
    pub(crate) fn tls(&self) -> NatsTls {
        let access = self.clone();
        let of_system: OnceLock<Arc<ClientConfig>> = OnceLock::new();
        let config = Source::new(move || {
            if access.ca.is_some() || access.certificate.is_some() {
                return access.read_tls();
            }
            if let Some(config) = of_system.get() {
                return Ok(Arc::clone(config));
            }
            let config = access.read_tls()?;
            Ok(Arc::clone(of_system.get_or_init(|| config)))
        });
        let is_demanded = self.ca.is_some() || self.certificate.is_some();
        NatsTls { config, is_demanded, is_first: self.is_tls_first }
    }

    fn read_login(&self) -> Result<Login, String> {
        let Some(path) = &self.login else { return Ok(Login::Anonymous) };
        let shown = path.display();
        let mut text = String::new();
        let read = File::open(path)
            .and_then(|file| file.take(LOGIN_BYTES_MAX + 1).read_to_string(&mut text));
        match read {
            Err(error) => Err(format!("nats-login: cannot read {shown}: {}", words(&error))),
            Ok(count) if count as u64 > LOGIN_BYTES_MAX => {
                Err(format!("nats-login: {shown} is larger than {} KiB", LOGIN_BYTES_MAX >> 10))
            }
            Ok(_) => Login::parse(&text).map_err(|error| format!("nats-login: {shown} {error}")),
        }
    }

    fn read_tls(&self) -> Result<Arc<ClientConfig>, String> {
        let provider = Arc::new(default_provider());
        let trust = Trust::load(self.ca.as_deref())
            .and_then(|trust| trust.client_config(Arc::clone(&provider), DEFAULT_VERSIONS));
        let mut config = trust.map_err(|error| format!("nats-ca: {error}"))?;
        // NATS has none.
        config.alpn_protocols.clear();
        if let Some((certificate, key)) = &self.certificate {
            let files = CertificateFiles {
                certificate: certificate.clone(),
                key: key.clone(),
                certificate_setting: "nats-cert".into(),
                key_setting: "nats-key".into(),
                is_of_acme: false,
            };
            let own = own_certificate(&files, &provider).map_err(|error| error.to_string())?;
            config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(own));
        }
        Ok(Arc::new(config))
    }
}

/// The words of the system, without its number.
fn words(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use super::*;
    use crate::settings;

    fn access(text: &str) -> NatsAccess {
        NatsAccess::of(&settings::read_text(text).unwrap())
    }

    #[test]
    fn a_login_is_read_from_its_file_each_time() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let access = access(&format!("nats-login = {:?}", file.path()));
        let of = |text: &str| {
            fs::write(file.path(), text).unwrap();
            access.read_login()
        };
        let user = Login::User { user: "ann".into(), password: "a:b".into() };
        assert_eq!(of("ann:a:b\n"), Ok(user));
        assert_eq!(of(" s3cret\n"), Ok(Login::Token("s3cret".into())));
        assert!(of("\n").unwrap_err().contains(" is empty: it has USER:PASSWORD, a token"));
        let large = of(&"s3cret".repeat(20_000)).unwrap_err();
        assert!(large.ends_with("is larger than 64 KiB"), "{large}");
        let missing = super::tests::access("nats-login = '/nowhere'").check().unwrap_err();
        let expected = "nats-login: cannot read /nowhere: no such file or directory";
        assert_eq!(missing.to_string(), expected);
        assert_eq!(NatsAccess::default().read_login(), Ok(Login::Anonymous));
    }

    #[test]
    fn files_with_secrets_are_not_for_others() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["login", "cert", "key"].map(|name| folder.path().join(name));
        for (path, mode) in paths.iter().zip([0o644, 0o644, 0o640]) {
            fs::write(path, "x").unwrap();
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        let [login, certificate, key] = paths;
        let access = NatsAccess {
            login: Some(login.clone()),
            certificate: Some((certificate, key.clone())),
            ..NatsAccess::default()
        };
        let warnings = access.warnings();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].ends_with(&format!("chmod o-r {}", login.display())));
        fs::set_permissions(&key, Permissions::from_mode(0o604)).unwrap();
        assert_eq!(access.warnings().len(), 2);
    }

    #[test]
    fn faults_of_certificates_name_their_setting() {
        let fault = |text: &str| access(text).check().unwrap_err().to_string();
        let found = fault("nats-ca = '/nowhere'");
        assert!(found.starts_with("nats-ca: cannot read certificates in PEM from /nowhere"));
        let file = tempfile::NamedTempFile::new().unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let own = rcgen::CertificateParams::new(vec!["n1".into()]).unwrap();
        fs::write(file.path(), own.self_signed(&key).unwrap().pem()).unwrap();
        let path = file.path().display();
        let found =
            fault(&format!("nats-ca = '{path}'\nnats-cert = '{path}'\nnats-key = '{path}'"));
        assert!(found.contains("has no private key"), "{found}");
        assert!(access(&format!("nats-ca = '{path}'")).check().is_ok());
    }
}
