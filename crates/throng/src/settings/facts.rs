//! What the settings mean together.

use std::path::PathBuf;

use throng_core::JournalId;
use throng_data::directory::REVOCATIONS;

use super::app_tables::AppTable;
use super::callout_tables::CalloutTable;
use super::channels::ChannelTable;
use super::table::Settings;
use super::values::LogPlace;

impl Settings {
    /// Whether there is a key that verifies tokens, or a URL of such keys.
    pub(crate) fn has_token_keys(&self) -> bool {
        let has_of_apps = || self.apps.iter().any(AppTable::signs_tokens);
        !self.token_keys.is_empty() || !self.token_key_urls.0.is_empty() || has_of_apps()
    }

    /// Whether the application says who clients are that show no credential.
    pub(crate) fn has_connect_callout(&self) -> bool {
        self.callouts.iter().any(CalloutTable::decides_connect)
    }

    /// Whether access is controlled: there are keys of any kind, those of `[[apps]]` included, or
    /// the application or their certificates say who clients are. Without, every client may do
    /// everything.
    pub(crate) fn has_keys(&self) -> bool {
        self.has_clients_keys() || !self.server_keys.is_empty() || !self.apps.is_empty()
    }

    /// Whether something shows who a client of the native interface is.
    pub(crate) fn has_clients_keys(&self) -> bool {
        let is_certified = self.tls_client_user.0.is_some();
        self.has_token_keys() || self.has_connect_callout() || is_certified
    }

    /// The directory of what the server keeps for itself, if there is one.
    pub(crate) fn state_directory(&self) -> Option<PathBuf> {
        // Of several directories of a unit, the first.
        let of_systemd = || {
            let paths = std::env::var_os("STATE_DIRECTORY")?;
            std::env::split_paths(&paths).find(|path| path.is_absolute())
        };
        self.state.0.clone().or_else(of_systemd)
    }

    /// The journals of the server, in the order of their ids.
    pub(crate) fn journals(&self) -> impl Iterator<Item = LogPlace> {
        let disk = self.data.0.is_some().then_some(LogPlace::Disk);
        disk.into_iter().chain(self.engine.0.then_some(LogPlace::Nats))
    }

    /// The name of a journal in rules; `None` for the memory.
    pub(crate) fn journal_id(&self, journal: LogPlace) -> Option<JournalId> {
        let place = self.journals().position(|own| own == journal);
        place.map(|place| JournalId(place as u8))
    }

    /// Where the logs of channels are whose rule does not say so.
    pub(crate) fn default_journal(&self) -> LogPlace {
        if self.engine.0 { LogPlace::Nats } else { LogPlace::Memory }
    }

    /// Where the logs of a table's channels are.
    pub(crate) fn journal_of(&self, table: &ChannelTable) -> LogPlace {
        let on_disk = table.durable.filter(|durable| durable.0).map(|_| LogPlace::Disk);
        let named = table.journal.map(|journal| journal.0).or(on_disk);
        named.unwrap_or_else(|| self.default_journal())
    }

    /// Where the server keeps the subscriptions of users, and revocations.
    pub(crate) fn records_journal(&self) -> LogPlace {
        self.records.0.or_else(|| self.journals().last()).unwrap_or(LogPlace::Memory)
    }

    /// The file of revocations: that of the settings, or one in the data directory.
    pub(crate) fn revocations_path(&self) -> Option<PathBuf> {
        let in_data = || {
            let directory = self.data.0.as_ref();
            let directory = directory.filter(|_| self.records_journal() == LogPlace::Disk);
            directory.map(|directory| directory.join(REVOCATIONS))
        };
        self.revocations_file.0.clone().or_else(in_data)
    }

    /// Whether there is a certificate to show, or one will be obtained.
    pub(crate) fn has_certificate(&self) -> bool {
        self.tls_cert.0.is_some() || !self.certificates.is_empty() || !self.acme.0.is_empty()
    }

    /// Whether nobody gets through TLS without a certificate that is trusted here.
    pub(crate) fn demands_client_certificates(&self) -> bool {
        self.tls_client_ca.0.is_some() && self.tls_client_auth.0
    }

    /// Whether the public listener is open to the programs of this machine, and to no others.
    pub(crate) fn refuses_proxies(&self) -> bool {
        !self.has_keys() && !self.allow_anyone.0
    }

    /// The same of the admin listener: without server keys, only its address protects it.
    pub(crate) fn admin_refuses_proxies(&self) -> bool {
        self.server_keys.is_empty() && !self.admin_allow_anyone.0
    }
}
