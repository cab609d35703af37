//! The account, the certificates and the failures, in a directory.
//!
//! Everything of one authority is in a directory named after its host and a hash of its URL, so
//! that a test authority leaves nothing behind that another would take for its own:
//!
//! | file | what it has |
//! |---|---|
//! | `account.json` | the account: its URL and its key |
//! | `NAME.pem` | the key of a certificate, the certificate, its chain |
//! | `NAME.failed` | how many attempts have failed since a success, and when the next begins |
//!
//! That moment is in seconds since 1970.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use instant_acme::{AccountCredentials, CertificateIdentifier};
use ring::digest::{SHA256, digest};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, Der};
use x509_cert::Certificate;
use x509_cert::der::Decode as _;
use x509_cert::ext::pkix::AuthorityKeyIdentifier;

use crate::error::StoreError;
use crate::settings::AcmeSettings;

/// The most bytes of a file that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The account, certificates and failures of one authority, as files of a directory.
#[derive(Debug, Clone)]
pub struct Store {
    directory: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Failures {
    pub(crate) count: u32,
    /// When the next attempt may begin.
    pub(crate) next: Option<SystemTime>,
}

impl Store {
    /// The directory for these settings. Reads and writes nothing.
    pub fn new(settings: &AcmeSettings) -> Store {
        let url = &settings.directory;
        let host = url.split('/').nth(2).unwrap_or_default();
        let is_plain = |c: &char| c.is_ascii_alphanumeric() || ['.', '-'].contains(c);
        let host: String = host.chars().filter(is_plain).collect();
        let hash = digest(&SHA256, url.as_bytes());
        let hash: String = hash.as_ref()[..4].iter().map(|byte| format!("{byte:02x}")).collect();
        Store { directory: settings.state.join("acme").join(format!("{host}-{hash}")) }
    }

    /// The file with the certificate for a name, and its key.
    pub fn certificate(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.pem"))
    }

    /// Makes the directory if it is not there, takes it from others if they may enter it, and
    /// checks that it can be written.
    ///
    /// # Errors
    ///
    /// It cannot be used.
    pub fn prepare(&self) -> Result<(), StoreError> {
        let fault =
            |action| move |source| StoreError { action, path: self.directory.clone(), source };
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&self.directory).map_err(fault("make"))?;
        let mode = fs::metadata(&self.directory).map_err(fault("read"))?.permissions().mode();
        if mode & 0o077 != 0 {
            let own = fs::Permissions::from_mode(0o700);
            fs::set_permissions(&self.directory, own).map_err(fault("protect"))?;
        }
        let probe = self.directory.join("probe");
        self.write(&probe, b"")?;
        fs::remove_file(&probe).map_err(fault("write to"))
    }

    pub(crate) fn account(&self) -> Result<Option<AccountCredentials>, StoreError> {
        let path = self.directory.join("account.json");
        let Some(bytes) = self.read(&path)? else { return Ok(None) };
        serde_json::from_slice(&bytes).map(Some).map_err(|_| StoreError {
            action: "use the account in",
            path,
            source: io::Error::other("it is damaged; restore it, or remove it for a new one"),
        })
    }

    pub(crate) fn keep_account(&self, account: &AccountCredentials) -> Result<(), StoreError> {
        let bytes = serde_json::to_vec(account).expect("credentials are texts");
        self.write(&self.directory.join("account.json"), &bytes)
    }

    /// From when until when the certificate for `name` is valid; `None` if there is no complete
    /// one.
    pub(crate) fn validity(
        &self,
        name: &str,
    ) -> Result<Option<(SystemTime, SystemTime)>, StoreError> {
        let bytes = self.read(&self.certificate(name))?;
        Ok(bytes.and_then(|bytes| validity(&bytes)))
    }

    /// When the certificate for `name` was stored; `None` if there is none. Its own dates do not
    /// say so: authorities let certificates begin to be valid up to an hour before they sign them.
    pub(crate) fn obtained(&self, name: &str) -> Option<SystemTime> {
        fs::metadata(self.certificate(name)).and_then(|file| file.modified()).ok()
    }

    /// The authority's identifier of the certificate for `name` (RFC 9773 section 4.1); `None`
    /// without a certificate, or if the certificate does not name its issuer's key.
    pub(crate) fn identifier(
        &self,
        name: &str,
    ) -> Result<Option<CertificateIdentifier<'static>>, StoreError> {
        let bytes = self.read(&self.certificate(name))?;
        Ok(bytes.and_then(|bytes| identifier(&bytes)))
    }

    pub(crate) fn keep_certificate(
        &self,
        name: &str,
        chain: &str,
        key: &str,
    ) -> Result<(), StoreError> {
        self.write(&self.certificate(name), format!("{key}{chain}").as_bytes())
    }

    /// The failures that are remembered; none if they cannot be read.
    pub(crate) fn failures(&self, name: &str) -> Failures {
        let bytes = self.read(&self.failed(name)).ok().flatten().unwrap_or_default();
        let text = String::from_utf8(bytes).unwrap_or_default();
        let mut numbers = text.split_ascii_whitespace().map(str::parse::<u64>);
        let (Some(Ok(count)), Some(Ok(next_s))) = (numbers.next(), numbers.next()) else {
            return Failures::default();
        };
        let next = UNIX_EPOCH.checked_add(Duration::from_secs(next_s));
        Failures { count: u32::try_from(count).unwrap_or(u32::MAX), next }
    }

    pub(crate) fn keep_failures(&self, name: &str, failures: Failures) -> Result<(), StoreError> {
        let path = self.failed(name);
        if failures.count == 0 {
            return match fs::remove_file(&path) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    Err(StoreError { action: "remove", path, source })
                }
                _ => Ok(()),
            };
        }
        let next = failures.next.unwrap_or(UNIX_EPOCH);
        let next_s = next.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.write(&path, format!("{} {next_s}\n", failures.count).as_bytes())
    }

    fn failed(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.failed"))
    }

    fn read(&self, path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
        let read = || {
            let mut bytes = Vec::new();
            File::open(path)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        match read() {
            Ok(bytes) => Ok(Some(bytes)),
            Err(source) if io::Error::kind(&source) == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(StoreError { action: "read", path: path.to_owned(), source }),
        }
    }

    /// Replaces a file in one step, and on the disk before this returns.
    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        let new = path.with_extension("new");
        let write = || {
            // With the mode of a new file, whatever an earlier attempt has left.
            match fs::remove_file(&new) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut file =
                OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&new, path)?;
            File::open(&self.directory)?.sync_all()
        };
        write().map_err(|source| StoreError { action: "write", path: path.to_owned(), source })
    }
}

/// When the first certificate of a file in PEM begins and ends to be valid.
pub(crate) fn validity(pem: &[u8]) -> Option<(SystemTime, SystemTime)> {
    let validity = first(pem)?.tbs_certificate.validity;
    let at = |time: x509_cert::time::Time| UNIX_EPOCH + time.to_unix_duration();
    Some((at(validity.not_before), at(validity.not_after)))
}

/// The identifier of the first certificate of a file in PEM, for the authority (RFC 9773, section
/// 4.1).
fn identifier(pem: &[u8]) -> Option<CertificateIdentifier<'static>> {
    let certificate = first(pem)?.tbs_certificate;
    let (_, signer) = certificate.get::<AuthorityKeyIdentifier>().ok()??;
    let serial = certificate.serial_number.as_bytes();
    let key = signer.key_identifier?;
    Some(CertificateIdentifier::new(Der::from_slice(key.as_bytes()), Der::from_slice(serial)))
}

fn first(pem: &[u8]) -> Option<Certificate> {
    let first = CertificateDer::pem_slice_iter(pem).next()?.ok()?;
    Certificate::from_der(&first).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(directory: &str) -> (tempfile::TempDir, Store) {
        let state = tempfile::tempdir().unwrap();
        let store = Store::new(&AcmeSettings {
            names: vec!["a.example".into()],
            email: None,
            directory: directory.into(),
            state: state.path().to_owned(),
        });
        (state, store)
    }

    #[test]
    fn nobody_else_can_read_the_files() {
        let (state, store) = store("https://ca.example:14000/dir");
        fs::create_dir_all(&store.directory).unwrap();
        fs::set_permissions(&store.directory, fs::Permissions::from_mode(0o755)).unwrap();
        store.prepare().unwrap();
        store.keep_certificate("a.example", "chain", "key").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&store.directory), mode(&store.certificate("a.example"))), (0o700, 0o600));
        assert_eq!(fs::read(store.certificate("a.example")).unwrap(), b"keychain");
        assert_eq!(fs::read_dir(&store.directory).unwrap().count(), 1, "nothing is left over");
        assert!(store.directory.starts_with(state.path().join("acme")));
    }

    #[test]
    fn each_authority_has_a_directory_of_its_own() {
        let [one, other] = ["https://ca.example/a", "https://ca.example/b"].map(|url| store(url).1);
        assert_ne!(one.directory.file_name(), other.directory.file_name());
        let name = one.directory.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("ca.example-"), "{name}");
        let odd = store("https://../..%2f/x").1;
        assert!(!odd.directory.file_name().unwrap().to_str().unwrap().contains('/'));
    }

    #[test]
    fn failures_are_remembered_until_a_success() {
        let (_state, store) = store("https://ca.example/a");
        store.prepare().unwrap();
        assert_eq!(store.failures("a"), Failures::default());
        let failures = Failures { count: 3, next: Some(UNIX_EPOCH + Duration::from_secs(77)) };
        store.keep_failures("a", failures).unwrap();
        assert_eq!(store.failures("a"), failures);
        for _ in 0..2 {
            store.keep_failures("a", Failures::default()).unwrap();
            assert_eq!(store.failures("a"), Failures::default());
        }
        fs::write(store.failed("a"), "1 18446744073709551615").unwrap();
        assert_eq!(store.failures("a").next, None);
    }

    #[test]
    fn a_certificate_is_known_by_who_signed_it_and_its_number() {
        use rcgen::{CertificateParams, Issuer, KeyIdMethod, KeyPair, SerialNumber};
        let mut authority = CertificateParams::new(vec![]).unwrap();
        authority.key_identifier_method = KeyIdMethod::PreSpecified(vec![0x69, 0x88, 0x5b]);
        let issuer = Issuer::new(authority, KeyPair::generate().unwrap());
        let mut own = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        // The example of RFC 9773: the number has a zero before it, or it would be negative.
        own.serial_number = Some(SerialNumber::from_slice(&[0x87, 0x65, 0x43, 0x21]));
        own.use_authority_key_identifier_extension = true;
        let pem = own.signed_by(&KeyPair::generate().unwrap(), &issuer).unwrap().pem();
        assert_eq!(identifier(pem.as_bytes()).unwrap().to_string(), "aYhb.AIdlQyE");
        own.use_authority_key_identifier_extension = false;
        let pem = own.signed_by(&KeyPair::generate().unwrap(), &issuer).unwrap().pem();
        assert_eq!(identifier(pem.as_bytes()), None);
    }

    #[test]
    fn damaged_files_are_errors_or_absent() {
        let (_state, store) = store("https://ca.example/a");
        assert_eq!(store.validity("a").unwrap(), None);
        store.prepare().unwrap();
        assert!(store.account().unwrap().is_none());
        fs::write(store.directory.join("account.json"), "{").unwrap();
        let error = store.account().err().unwrap().to_string();
        assert!(error.contains("account.json") && error.contains("damaged"), "{error}");
        fs::write(store.certificate("a"), "-----BEGIN CERTIFICATE-----\nAA").unwrap();
        assert_eq!(store.validity("a").unwrap(), None);
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_told_at_once() {
        let (state, store) = store("https://ca.example/a");
        fs::write(state.path().join("acme"), "a file in its place").unwrap();
        let error = store.prepare().unwrap_err().to_string();
        assert!(error.starts_with("cannot make "), "{error}");
    }
}
