//! Certificates by ACME, from the settings.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use anyhow::{Context as _, Result};
use throng_acme::{
    AcmeSettings, ChallengeCertificate, ChallengeResponder, NameState, Renewal, Renewer, Store,
};
use throng_certificates::{CertificateFiles, ServerTls, Validation};
use throng_control::{Ailment, MetricSource, OtherMetric, OtherValue};
use throng_outbound::Trust;

use crate::settings::Settings;

/// The names to obtain certificates for; `None` if there are none.
fn acme_settings(settings: &Settings) -> Option<AcmeSettings> {
    let state: PathBuf = settings.state_directory().filter(|_| !settings.acme.0.is_empty())?;
    let mut names = settings.acme.0.clone();
    names.sort();
    names.dedup();
    Some(AcmeSettings {
        names,
        email: settings.acme_email.0.clone(),
        directory: settings.acme_directory.url().to_owned(),
        state,
    })
}

/// The files of the certificates, which may not be there yet.
pub(crate) fn files(settings: &Settings) -> Vec<CertificateFiles> {
    let Some(acme) = acme_settings(settings) else { return Vec::new() };
    let store = Store::new(&acme);
    let files = |name: &String| CertificateFiles {
        certificate: store.certificate(name),
        key: store.certificate(name),
        certificate_setting: "acme".into(),
        key_setting: "acme".into(),
        is_of_acme: true,
    };
    // In the order of the settings: the first is shown to clients that ask for no name.
    settings.acme.0.iter().map(files).collect()
}

/// The task that obtains and renews certificates, if the settings have names. `look` makes the
/// server look at its files.
///
/// # Errors
///
/// The directory cannot be used, or no authority is trusted to sign the connection.
pub(crate) fn prepare(
    settings: &Settings,
    tls: Option<&Arc<ServerTls>>,
    look: fn(&ServerTls),
) -> Result<Option<Renewal>> {
    let Some((acme, tls)) = acme_settings(settings).zip(tls) else { return Ok(None) };
    Store::new(&acme).prepare().context("acme cannot keep certificates")?;
    let trust = Trust::load(settings.acme_ca.0.as_deref()).context("acme-ca")?;
    let shown = Arc::new(OfServer { tls: Arc::clone(tls), look });
    Ok(Some(Renewal::new(acme, trust, shown)))
}

/// The server's TLS, as the renewal needs it.
struct OfServer {
    tls: Arc<ServerTls>,
    look: fn(&ServerTls),
}

impl ChallengeResponder for OfServer {
    fn answer(&self, answers: Vec<ChallengeCertificate>) -> Result<(), String> {
        let validation =
            |ChallengeCertificate { name, certificate, key }| Validation { name, certificate, key };
        let answers = answers.into_iter().map(validation).collect();
        self.tls.answer_validations(answers).map_err(|error| error.to_string())
    }

    fn has_changed(&self) {
        (self.look)(&self.tls);
    }
}

/// How each name stands, on `/metrics` and in what the probes say; nothing without ACME.
#[derive(Debug)]
pub(crate) struct AcmeMetrics(pub(crate) Option<Renewer>);

impl MetricSource for AcmeMetrics {
    fn metrics(&self) -> Vec<OtherMetric> {
        let Some(Renewer { progress, .. }) = &self.0 else { return Vec::new() };
        let (obtained, failed) = progress.counts();
        let names = progress.names();
        let by_name = |value: fn(&NameState) -> u64| {
            let values = names.iter().map(|name| (name.name.clone(), value(name)));
            OtherValue::GaugesBy("name", values.collect())
        };
        vec![
            OtherMetric {
                name: "acme_attempts_total",
                help: "Attempts to obtain a certificate by ACME, by outcome.",
                value: OtherValue::CountersBy(
                    "outcome",
                    vec![("obtained", obtained), ("failed", failed)],
                ),
            },
            OtherMetric {
                name: "acme_failures",
                help: "Failed attempts for this name since the last success.",
                value: by_name(|name| u64::from(name.failures)),
            },
            OtherMetric {
                name: "acme_next_attempt_timestamp_seconds",
                help: "Time of the next attempt for this name, to renew or after a failure.",
                value: by_name(|name| {
                    let next = name.next.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
                    next.unwrap_or_default().as_secs()
                }),
            },
        ]
    }

    fn ailments(&self) -> Vec<Ailment> {
        let names = self.0.iter().flat_map(|renewer| renewer.progress.names());
        let has_failed = names.into_iter().any(|name| name.failures > 0);
        let message = "a certificate cannot be obtained by ACME: see the log";
        has_failed.then(|| Ailment::new("acme_failed", message)).into_iter().collect()
    }
}
