//! The settings that a reload replaces while the server runs, and its report about the rest.
//!
//! The settings are read and checked as at the start. If anything in them or in the files that they
//! name is wrong, nothing changes. Settings that only an upgrade or a restart can change keep their
//! values, and the report names them.

mod changes;

use std::sync::{Arc, Mutex, PoisonError};

use throng_access::SharedPages;
use throng_certificates::{Prepared, ServerTls};
use throng_core::{ChannelName, ScanAction, ScanClose, ScanTarget, Ticket};
use throng_edge::EdgePlan;
use throng_wire::websocket::close_code;

use crate::access::{AccessSettings, ServerAccess};
use crate::log_level::LogLevelHandle;
use crate::plane_settings::{allowed_pages, edge_settings, memory_plan};
use crate::planes::Workers;
use crate::settings::{self, Change, Settings, SettingsError};
use crate::tls;
use changes::Changes;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Report {
    /// The replaced settings, in words for the log.
    pub(crate) replaced: Vec<&'static str>,
    /// The settings that have changed and need an upgrade.
    pub(crate) for_upgrade: Vec<String>,
    /// The settings that have changed and need a restart.
    pub(crate) for_restart: Vec<String>,
    /// Faults that stop nothing.
    pub(crate) warnings: Vec<String>,
}

impl Report {
    pub(crate) fn sentence(&self) -> String {
        let replaced = match self.replaced.as_slice() {
            [] => "nothing that a reload can replace has changed".to_owned(),
            parts => format!("replaced: {}", parts.join(", ")),
        };
        let waiting = [
            (&self.for_upgrade, "`throng upgrade` or a restart"),
            (&self.for_restart, "a restart"),
        ];
        let clauses = waiting.into_iter().filter(|(settings, _)| !settings.is_empty());
        clauses.fold(replaced, |sentence, (settings, what)| {
            let verb = if settings.len() == 1 { "waits" } else { "wait" };
            format!("{sentence}; {verb} for {what}: {}", settings.join(", "))
        })
    }
}

/// The replaceable parts.
pub(crate) struct Replaceable {
    pub(crate) access: ServerAccess,
    pub(crate) pages: SharedPages,
    pub(crate) tls: Option<Arc<ServerTls>>,
    pub(crate) log_level: LogLevelHandle,
}

/// Reads the settings from where they came from when the server started.
pub(crate) type Read = Box<dyn Fn() -> Result<Settings, SettingsError> + Send + Sync>;

/// Reloads the settings, one reload at a time.
pub(crate) struct Reloader {
    read: Read,
    parts: Replaceable,
    workers: Arc<Workers>,
    started: Settings,
    /// True if a new process can take over from this one.
    is_upgradable: bool,
    /// The effective settings: the start's, with the replacements of reloads.
    current: Mutex<Settings>,
}

impl Reloader {
    /// A server that was started with `started`, and that may be upgraded.
    pub(crate) fn new(
        read: Read,
        started: Settings,
        is_upgradable: bool,
        parts: Replaceable,
        workers: Arc<Workers>,
    ) -> Reloader {
        let current = Mutex::new(started.clone());
        Reloader { read, parts, workers, current, started, is_upgradable }
    }

    /// Reads the settings and the files that they name, and replaces what can be. Takes some
    /// milliseconds: it reads files.
    ///
    /// # Errors
    ///
    /// One sentence: what is wrong, and where. Then everything stays as it was.
    fn reload(&self) -> Result<Report, SettingsError> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let read = (self.read)()?;
        // Pending settings have to be right, too: they would keep the server from starting.
        AccessSettings::load(&read)?;
        let Changes { effective: new, pending } = Changes::new(&self.started, &current, &read);
        let access = AccessSettings::load(&new)?;
        let keeps_workers = || {
            let settings = edge_settings(&read, memory_plan(&read).1);
            EdgePlan::keeps_workers(&settings, self.workers.queues.len())
        };
        let is_for_upgrade = |setting: &String| {
            let can_follow = || match changes::change_of(setting) {
                Change::Restart => false,
                Change::UpgradeOfWorkers => keeps_workers(),
                Change::UpgradeOfListener => read.tls_listen.0.is_some(),
                _ => true,
            };
            self.is_upgradable && can_follow()
        };
        let (for_upgrade, for_restart) = pending.into_iter().partition(is_for_upgrade);
        let mut report = Report { for_upgrade, for_restart, ..Report::default() };
        // The certificates are in files of their own, which may be broken.
        let tls = self.parts.tls.as_deref();
        let prepared = tls.map(|tls| tls.prepare_for(tls::certificate_files(&new))).transpose();
        let prepared = prepared.map_err(|error| SettingsError(error.to_string()))?;
        // The last step that can fail: a key set at a URL may have a key of the same name.
        if let Some(keys) = &self.parts.access.token_keys
            && keys.replace(access.token_keys.clone())?
        {
            report.replaced.push("token keys");
        }
        if self.parts.access.token_keys.as_ref().is_some_and(|keys| keys.demand(&access.policy)) {
            report.replaced.push("audience and issuer of tokens");
        }
        if prepared.is_some_and(Prepared::commit) {
            report.replaced.push("certificates");
            report.warnings = tls.map(|tls| tls::warnings(&new, tls)).unwrap_or_default();
        }
        self.replace(&current, &new, access, &mut report);
        *current = new;
        Ok(report)
    }

    /// Replaces what is different in `new`.
    fn replace(
        &self,
        current: &Settings,
        new: &Settings,
        access: AccessSettings,
        report: &mut Report,
    ) {
        let Replaceable { access: own, pages, log_level, .. } = &self.parts;
        report.warnings.extend(access.warnings);
        let mut ended = Vec::new();
        if new.server_keys != current.server_keys {
            ended = changes::ended_keys(current, new);
            own.control.server_keys.store(Arc::new(access.server_keys));
            report.replaced.push("server keys");
        }
        let are_rules_new = changes::are_access_rules_new(current, new);
        if are_rules_new {
            own.rules.store(Arc::new(access.rules));
            report.replaced.push("rules of access");
        }
        let mut has_lost_apps = false;
        if new.apps != current.apps {
            has_lost_apps = changes::has_lost_apps(current, new);
            let control = &own.control;
            control.apps.store(Arc::new(access.apps.named_by(&control.tagger)));
            let limits = settings::app_limits(new, &control.tagger);
            control.clients.limiter.change_apps(limits);
            if let Some(limits) = &own.channel_limits {
                limits.change(settings::channel_limits(new));
            }
            report.replaced.push("applications");
        }
        if changes::are_pages_new(current, new) {
            pages.store(Arc::new(allowed_pages(new)));
            report.replaced.push("origins and hosts");
        }
        let limits = settings::limits(new);
        if limits != settings::limits(current) && own.control.clients.limiter.change(limits).is_ok()
        {
            report.replaced.push("limits");
        }
        if new.log != current.log {
            log_level.set(new.log.0);
            report.replaced.push("log level");
        }
        self.end_what_is_over(&ended, are_rules_new || has_lost_apps);
    }

    /// Closes the connections of server keys that are gone. If `is_less_allowed`, ends what the
    /// rules do not allow any more, and closes the connections of applications that are gone.
    fn end_what_is_over(&self, ended_keys: &[String], is_less_allowed: bool) {
        let (access, workers) = (&self.parts.access.control, &self.workers);
        if !ended_keys.is_empty() {
            let tags = ended_keys.iter().map(|name| access.tagger.of_server_key(name)).collect();
            workers.post_scan(ScanTarget::Sessions(tags), ScanAction::Revoke, Ticket::new(drop));
            // Viewers of the status have no session: the control plane has checked their keys.
            let viewers = ScanTarget::Channel(ChannelName::status());
            workers.post_scan(viewers, come_back(), Ticket::new(drop));
        }
        if is_less_allowed {
            workers.post_scan(ScanTarget::All, ScanAction::Recheck, Ticket::new(drop));
        }
    }

    /// Reloads because of `cause`, and logs what comes of it.
    pub(crate) fn reload_for(&self, cause: &str) -> Result<Report, SettingsError> {
        let outcome = self.reload();
        match &outcome {
            Ok(report) => {
                tracing::info!("{cause}: the settings were read again; {}", report.sentence());
                for warning in &report.warnings {
                    tracing::warn!("{warning}");
                }
            }
            Err(error) => tracing::error!("{cause}: everything stays as it was: {error}"),
        }
        outcome
    }
}

/// Closes connections so that those come back whose keys still count.
fn come_back() -> ScanAction {
    let reason = "this server key was removed; connect with a valid one".into();
    ScanAction::Close(ScanClose { code: close_code::DISCONNECTED, reason, may_return: true })
}
