//! TLS from the settings: the certificates, and what happens when their files change.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use throng_certificates::{CertificateFiles, ClientSettings, Reload, ServerTls, TlsSettings};
use throng_control::{Ailment, MetricSource, OtherMetric, OtherValue};
use throng_tls::{provider, self_test};

use crate::acme;
use crate::settings::{Settings, SettingsError};

/// How often the files are looked at. It reads some kilobytes.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// A certificate with less time than this is overdue: those of ACME are renewed 30 days before.
const OVERDUE: Duration = Duration::from_secs(14 * 86_400);

/// The permission of others to read a file (`o+r`).
const OTHERS_READ: u32 = 0o004;

/// Reads the certificates, if TLS is configured, and checks that this build can offer it.
pub(crate) fn load(settings: &Settings) -> Result<Option<Arc<ServerTls>>> {
    let Some(tls) = tls_settings(settings) else { return Ok(None) };
    self_test(&provider()).context("refusing to offer TLS")?;
    Ok(Some(Arc::new(check(tls)?)))
}

/// The certificates, without a test of the build.
pub(crate) fn check(tls: TlsSettings) -> Result<ServerTls, SettingsError> {
    ServerTls::load(tls).map_err(|error| SettingsError(error.to_string()))
}

/// The settings of TLS, if there is a listener for it.
pub(crate) fn tls_settings(settings: &Settings) -> Option<TlsSettings> {
    if settings.tls_listen.0.is_none() && !settings.admin_tls.0 {
        return None;
    }
    let named = |path: &Path, key: &Path, settings: [String; 2]| {
        let [certificate_setting, key_setting] = settings;
        CertificateFiles {
            certificate: path.to_owned(),
            key: key.to_owned(),
            certificate_setting,
            key_setting,
            is_of_acme: false,
        }
    };
    let own = settings.tls_cert.0.as_ref().zip(settings.tls_key.0.as_ref());
    let own = own.map(|(path, key)| named(path, key, ["tls-cert".into(), "tls-key".into()]));
    let tables = settings.certificates.iter().filter_map(|table| {
        let names = ["cert", "key"].map(|key| format!("{}, {key}", table.at));
        Some(named(table.cert.as_ref()?, table.key.as_ref()?, names))
    });
    let clients = settings.tls_client_ca.0.as_ref().map(|authorities| ClientSettings {
        authorities: authorities.clone(),
        revocations: settings.tls_client_crl.0.clone(),
        is_required: settings.tls_client_auth.0,
        user: settings.tls_client_user.0,
    });
    Some(TlsSettings {
        certificates: own.into_iter().chain(tables).chain(acme::files(settings)).collect(),
        least_version: settings.tls_min_version.0,
        ticket_lifetime: settings.tls_ticket_lifetime.0,
        ticket_keys: settings.tls_ticket_keys.0.clone(),
        clients,
    })
}

/// What should be changed, although it works.
pub(crate) fn warnings(settings: &Settings, tls: &ServerTls) -> Vec<String> {
    let mut warnings = Vec::new();
    let now = SystemTime::now();
    for certificate in tls.certificates() {
        let name = &certificate.name;
        if certificate.is_rsa {
            warnings.push(format!(
                "the certificate for {name} has a key of RSA, with which a handshake takes seven \
                 times the processor time; get one with a key on P-256 (ECDSA)"
            ));
        }
        let left = certificate.left(now);
        if left.is_zero() && !certificate.is_of_acme {
            warnings.push(format!(
                "the certificate for {name} has expired: clients refuse it; get a new one"
            ));
        } else if left < OVERDUE && !certificate.is_of_acme {
            let hours = left.as_secs() / 3600;
            warnings.push(format!("the certificate for {name} expires in {hours} hours; renew it"));
        }
    }
    let secrets = [&settings.tls_key.0, &settings.tls_ticket_keys.0].into_iter().flatten();
    let secrets =
        secrets.chain(settings.certificates.iter().filter_map(|table| table.key.as_ref()));
    for path in secrets {
        let mode = std::fs::metadata(path).map_or(0, |metadata| metadata.permissions().mode());
        if mode & OTHERS_READ != 0 {
            let path = path.display();
            warnings.push(format!(
                "every user of this machine can read the key in {path}; run: chmod o-r {path}"
            ));
        }
    }
    warnings
}

/// The certificates on `/metrics` and in what the probes say; nothing without TLS.
#[derive(Debug)]
pub(crate) struct TlsMetrics(pub(crate) Option<Arc<ServerTls>>);

impl MetricSource for TlsMetrics {
    fn metrics(&self) -> Vec<OtherMetric> {
        let Some(tls) = &self.0 else { return Vec::new() };
        // Of several for the same name, the one that expires first.
        let mut expiries = BTreeMap::new();
        for certificate in tls.certificates() {
            let at = certificate.not_after.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            let first = expiries.entry(certificate.name).or_insert(at);
            *first = at.min(*first);
        }
        let reloads = tls.reloads();
        let counts = vec![("replaced", reloads.replaced), ("refused", reloads.refused)];
        vec![
            OtherMetric {
                name: "tls_certificate_not_after_timestamp_seconds",
                help: "When the certificates that are shown expire, by their first name.",
                value: OtherValue::GaugesBy("certificate", expiries.into_iter().collect()),
            },
            OtherMetric {
                name: "tls_reloads_total",
                help: "Changes of the files for TLS, by what came of them.",
                value: OtherValue::CountersBy("outcome", counts),
            },
        ]
    }

    fn ailments(&self) -> Vec<Ailment> {
        let Some(tls) = &self.0 else { return Vec::new() };
        let now = SystemTime::now();
        let has_expired = tls.certificates().iter().any(|one| one.left(now).is_zero());
        let expired = has_expired.then(|| {
            let message = "a certificate for TLS has expired: clients refuse it";
            Ailment::new("certificate_expired", message)
        });
        let refused = tls.reloads().is_refused.then(|| {
            let message = "the files for TLS have changed and cannot be used: the log says why";
            Ailment::new("certificate_refused", message)
        });
        expired.into_iter().chain(refused).collect()
    }
}

/// Looks at the files now and then, forever. Requires the runtime.
pub(crate) async fn watch(tls: Arc<ServerTls>) {
    let mut looks = tokio::time::interval(LOOK_INTERVAL);
    loop {
        looks.tick().await;
        let tls = Arc::clone(&tls);
        // It reads files.
        let _ = tokio::task::spawn_blocking(move || look(&tls)).await;
    }
}

/// Looks at the files, and logs what that changed.
pub(crate) fn look(tls: &ServerTls) {
    log(tls.reload(), tls);
}

fn log(reload: Reload, tls: &ServerTls) {
    match reload {
        Reload::Unchanged => {}
        Reload::Replaced => {
            let names: Vec<String> =
                tls.certificates().into_iter().map(|certificate| certificate.name).collect();
            tracing::info!(
                "new certificates for TLS hold from now on: {}; connections stay open",
                names.join(", ")
            );
        }
        Reload::Kept(error) => {
            tracing::error!("the certificates for TLS stay as they were: {error}");
        }
    }
}
