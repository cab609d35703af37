//! TLS from the settings: the certificates, and what happens when their files change.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use throng_acme::{NameState, Renewer};
use throng_certificates::{
    CertificateFiles, CertificateState, ClientSettings, Reload, ServerTls, TlsSettings,
};
use throng_control::{
    Ailment, CertificateStatus, MetricSource, OtherMetric, OtherValue, RenewalStatus, TlsStatus,
};
use throng_tls::{provider, self_test};

use crate::acme;
use crate::settings::{Settings, SettingsError};

/// How often the files are looked at. It reads some kilobytes.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// A certificate with less time than this is overdue: 90-day certificates are renewed 30 days
/// before.
const OVERDUE: Duration = Duration::from_secs(14 * 86_400);

/// One that is valid for a short time is overdue when less than this part of it is left: it is
/// renewed when a third is.
const OVERDUE_PART: u32 = 4;

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

/// The files of all certificates.
pub(crate) fn certificate_files(settings: &Settings) -> Vec<CertificateFiles> {
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
    own.into_iter().chain(tables).chain(acme::files(settings)).collect()
}

/// The settings of TLS, if there is a listener for it.
pub(crate) fn tls_settings(settings: &Settings) -> Option<TlsSettings> {
    if settings.tls_listen.0.is_none() && !settings.admin_tls.0 {
        return None;
    }
    let clients = settings.tls_client_ca.0.as_ref().map(|authorities| ClientSettings {
        authorities: authorities.clone(),
        revocations: settings.tls_client_crl.0.clone(),
        is_required: settings.tls_client_auth.0,
        user: settings.tls_client_user.0,
    });
    Some(TlsSettings {
        certificates: certificate_files(settings),
        least_version: settings.tls_min_version.0,
        ticket_lifetime: settings.tls_ticket_lifetime.0,
        ticket_keys: settings.tls_ticket_keys.0.clone(),
        clients,
    })
}

/// With less time than this, a certificate should have been renewed.
fn overdue(certificate: &CertificateState) -> Duration {
    let life = certificate.not_after.duration_since(certificate.not_before).unwrap_or_default();
    OVERDUE.min(life / OVERDUE_PART)
}

/// Faults that stop nothing.
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
        } else if left < overdue(&certificate) && !certificate.is_of_acme {
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

/// The certificates on `/metrics`, on the status page and in what the probes say; nothing without
/// TLS.
#[derive(Debug)]
pub(crate) struct TlsMetrics {
    pub(crate) tls: Option<Arc<ServerTls>>,
    /// How the certificates by ACME stand.
    pub(crate) renewer: Option<Renewer>,
}

impl MetricSource for TlsMetrics {
    fn metrics(&self) -> Vec<OtherMetric> {
        let Some(tls) = &self.tls else { return Vec::new() };
        // Of several for the same name, the one that expires first.
        let mut validities = BTreeMap::new();
        for certificate in tls.certificates() {
            let [from, until] = [certificate.not_before, certificate.not_after];
            let validity = (since_1970(until).as_secs(), since_1970(from).as_secs());
            let first = validities.entry(certificate.name).or_insert(validity);
            *first = validity.min(*first);
        }
        let by_name = |value: fn(&(u64, u64)) -> u64| {
            let values = validities.iter().map(|(name, validity)| (name.clone(), value(validity)));
            OtherValue::GaugesBy("certificate", values.collect())
        };
        let reloads = tls.reloads();
        let counts = vec![("replaced", reloads.replaced), ("refused", reloads.refused)];
        vec![
            OtherMetric {
                name: "tls_certificate_not_after_timestamp_seconds",
                help: "Expiry of the certificates in use, by their first name.",
                value: by_name(|(until, _)| *until),
            },
            OtherMetric {
                name: "tls_certificate_not_before_timestamp_seconds",
                help: "Start of validity of the certificates in use, by their first name.",
                value: by_name(|(_, from)| *from),
            },
            OtherMetric {
                name: "tls_reloads_total",
                help: "Changes of the files for TLS, by outcome.",
                value: OtherValue::CountersBy("outcome", counts),
            },
        ]
    }

    fn tls(&self) -> Option<TlsStatus> {
        let tls = self.tls.as_ref()?;
        let awaited = self.renewer.iter().flat_map(|renewer| renewer.progress.names()).collect();
        let error = tls.last_error().map(|error| error.to_string());
        Some(status(tls.certificates(), awaited, error))
    }

    fn ailments(&self) -> Vec<Ailment> {
        let Some(tls) = &self.tls else { return Vec::new() };
        let now = SystemTime::now();
        let has_expired = tls.certificates().iter().any(|one| one.left(now).is_zero());
        let expired = has_expired.then(|| {
            let message = "a certificate for TLS has expired: clients refuse it";
            Ailment::new("certificate_expired", message)
        });
        let refused = tls.reloads().is_refused.then(|| {
            let message = "the changed files for TLS cannot be used: see the log";
            Ailment::new("certificate_refused", message)
        });
        expired.into_iter().chain(refused).collect()
    }
}

/// The certificates as the status page shows them: those that are shown, and those that are
/// obtained by ACME and not there yet.
fn status(
    shown: Vec<CertificateState>,
    mut obtained: Vec<NameState>,
    error: Option<String>,
) -> TlsStatus {
    let ms = |at: SystemTime| since_1970(at).as_millis() as u64;
    let renewal = |name: NameState| RenewalStatus {
        next_ms: name.next.map(ms),
        failures: name.failures,
        error: name.error,
    };
    let mut certificates = Vec::new();
    for certificate in shown {
        let is_this = |name: &NameState| {
            certificate.is_of_acme && certificate.names.contains(&name.name.to_lowercase())
        };
        let name = obtained.iter().position(is_this).map(|at| obtained.swap_remove(at));
        certificates.push(CertificateStatus {
            name: certificate.name,
            not_before_ms: Some(ms(certificate.not_before)),
            not_after_ms: Some(ms(certificate.not_after)),
            renewal: name.map(renewal),
        });
    }
    certificates.extend(obtained.into_iter().map(|name| CertificateStatus {
        name: name.name.clone(),
        not_before_ms: None,
        not_after_ms: None,
        renewal: Some(renewal(name)),
    }));
    TlsStatus { error, certificates, left_out: 0 }
}

fn since_1970(at: SystemTime) -> Duration {
    at.duration_since(UNIX_EPOCH).unwrap_or_default()
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
                "new certificates for TLS are in use from now on: {}; connections stay open",
                names.join(", ")
            );
        }
        Reload::Kept(error) => {
            tracing::error!("the certificates for TLS are unchanged: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn certificate(name: &str, days: u32, is_of_acme: bool) -> CertificateState {
        CertificateState {
            name: name.into(),
            names: vec![name.into()],
            not_before: UNIX_EPOCH,
            not_after: UNIX_EPOCH + DAY * days,
            path: name.into(),
            is_of_acme,
            is_rsa: false,
        }
    }

    #[test]
    fn certificates_of_a_short_life_are_overdue_later() {
        assert_eq!(overdue(&certificate("a", 90, false)), DAY * 14);
        assert_eq!(overdue(&certificate("a", 6, false)), DAY * 6 / 4);
    }

    #[test]
    fn the_status_has_what_is_shown_and_what_is_awaited() {
        let name = |name: &str, failures| NameState {
            name: name.into(),
            next: Some(UNIX_EPOCH + DAY),
            failures,
            error: (failures > 0).then(|| "refused".into()),
        };
        let shown = vec![certificate("own", 1, false), certificate("got", 2, true)];
        let names = vec![name("awaited", 3), name("got", 0), name("own", 1)];
        let found = status(shown, names, Some("broken".into()));
        assert_eq!(found.error.as_deref(), Some("broken"));
        let mut facts: Vec<_> = found
            .certificates
            .iter()
            .map(|one| {
                let renewal = one.renewal.as_ref();
                (one.name.as_str(), one.not_after_ms, renewal.map(|renewal| renewal.failures))
            })
            .collect();
        facts.sort_unstable();
        let day = DAY.as_millis() as u64;
        assert_eq!(
            facts,
            [
                ("awaited", None, Some(3)),
                ("got", Some(2 * day), Some(0)),
                // One by the files of the operator, although ACME obtains one for the name, too.
                ("own", None, Some(1)),
                ("own", Some(day), None),
            ]
        );
    }
}
