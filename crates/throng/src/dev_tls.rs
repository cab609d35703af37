//! `throng serve --dev-tls`: a certificate for this machine, which nobody has signed.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, SanType, date_time_ymd};
use throng_certificates::ServerTls;

use crate::settings::{Settings, SettingsError};
use crate::tls::{self, tls_settings};

/// Where `--dev-tls` listens if the settings do not say.
const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8443);

/// A certificate that expires sooner is replaced.
const LEFT_MIN: Duration = Duration::from_secs(30 * 86_400);

/// Adds a certificate to the settings, which must have none: an earlier run's, or a new one. It
/// stands in a directory of the user, so that clients that trust it still do. Returns its path.
pub(crate) fn add_to(settings: &mut Settings) -> Result<PathBuf, SettingsError> {
    if settings.has_certificate() || settings.tls_key.0.is_some() {
        let message = "--dev-tls creates a certificate, but the settings already have one; remove \
                       one of them";
        return Err(SettingsError(message.into()));
    }
    let directory = directory()?;
    let (certificate, key) = (directory.join("cert.pem"), directory.join("key.pem"));
    settings.tls_listen.0.get_or_insert(LISTEN);
    settings.tls_cert.0 = Some(certificate.clone());
    settings.tls_key.0 = Some(key.clone());
    if !is_usable(settings) {
        write(&directory, &certificate, &key).map_err(|error| {
            let directory = directory.display();
            SettingsError(format!("--dev-tls: cannot write to {directory}: {error}"))
        })?;
    }
    Ok(certificate)
}

/// The directory for the certificate (the XDG base directory specification).
fn directory() -> Result<PathBuf, SettingsError> {
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/state"));
    let state = state.filter(|path| path.is_absolute()).or_else(home);
    let state = state.ok_or_else(|| {
        SettingsError("--dev-tls: set HOME, the directory that the certificate is kept in".into())
    })?;
    Ok(state.join("throng/dev-tls"))
}

fn is_usable(settings: &Settings) -> bool {
    let loaded = tls_settings(settings).and_then(|settings| tls::check(settings).ok());
    let now = SystemTime::now();
    let lasts = |tls: ServerTls| tls.certificates().iter().all(|one| one.left(now) > LEFT_MIN);
    loaded.is_some_and(lasts)
}

fn write(directory: &Path, certificate: &Path, key: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let pair = KeyPair::generate().map_err(io::Error::other)?;
    let signed = params().and_then(|params| params.self_signed(&pair)).map_err(io::Error::other)?;
    write_file(key, 0o600, &pair.serialize_pem())?;
    write_file(certificate, 0o644, &signed.pem())
}

fn params() -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()])?;
    let addresses = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    params.subject_alt_names.extend(addresses.map(SanType::IpAddress));
    params.distinguished_name.push(DnType::CommonName, "throng serve --dev-tls");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let now_s = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    // Browsers refuse certificates for more than 825 days: this one is for two years at most.
    let year = 1970 + (now_s.as_secs() / 31_556_952) as i32;
    params.not_before = date_time_ymd(year, 1, 1);
    params.not_after = date_time_ymd(year + 2, 1, 1);
    Ok(params)
}

/// Replaces a file at once, so that no other process reads a half.
fn write_file(path: &Path, mode: u32, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(mode).open(&new)?;
    file.write_all(text.as_bytes())?;
    fs::rename(&new, path)
}
