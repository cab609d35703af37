//! State that all connections of the control plane share.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use throng_access::revocation::PassedFile;
use throng_access::{AccessControl, Clients, KeptSubscriptions, RefusalLog, RefusedClient};
use throng_core::records::Records;
use throng_core::{Channels, MemoryPressure, MemoryStep, Receipts, RefusedForMemory, clock};
use throng_tls::CertificateFlaw;
use throng_wire::ErrorResponse;

use crate::api::newest_page::NewestPages;
use crate::api::share::Shares;
use crate::authentication::Authentication;
use crate::canary_report::CanaryReport;
use crate::carried::CarriedCounts;
use crate::charts::Charts;
use crate::drain::Drain;
use crate::edge::Edge;
use crate::health::{Ailment, Health};
use crate::hold::Hold;
use crate::http::answer::Refusals;
use crate::http::body::BodyReader;
use crate::http::cursor::Cursors;
use crate::http::request_id::RequestIds;
use crate::kept_changes::KeptChanges;
use crate::memory_quota::MemoryQuota;
use crate::metrics::{HttpMetrics, MetricSource};
use crate::revocations::{self, RevocationTask, Revoker};
use crate::settings::Settings;
use crate::site::Site;
use crate::user_erasures::UserErasures;

/// The state of the control plane. Each connection's task holds a reference.
pub struct Control {
    /// The logs: publishing, history and presence go through it.
    pub(crate) engine: Arc<Channels>,
    /// The channels that users follow without asking for them.
    pub(crate) kept: Arc<KeptSubscriptions>,
    /// Changes what users follow, of all requests in one order.
    pub(crate) kept_changes: KeptChanges,
    pub(crate) authentication: Authentication,
    /// The erasures of users.
    pub(crate) user_erasures: UserErasures,
    /// Revokes tokens, if the server keeps revocations.
    pub(crate) revoker: Revoker,
    /// The owner of the file of revocations, until the control plane is served.
    revocation_task: Mutex<Option<RevocationTask>>,
    /// Where the addresses of clients come from, and their limits.
    pub(crate) clients: Arc<Clients>,
    /// The workers, which take subscriptions back and whose counters are shown.
    pub(crate) edge: Arc<dyn Edge>,
    /// Limits and timeouts. They do not change while the server runs.
    pub(crate) settings: Settings,
    pub(crate) metrics: HttpMetrics,
    /// Metrics of other parts of the server, for `/metrics`.
    pub(crate) other_metrics: Vec<Arc<dyn MetricSource>>,
    pub(crate) receipts: Arc<Receipts>,
    /// Shares of publications that wait for a journal of several nodes.
    pub(crate) shares: Arc<Shares>,
    pub(crate) canary: CanaryReport,
    pub(crate) health: Arc<Health>,
    /// Shutdown: refuses publications, and knows those in progress.
    pub(crate) drain: Drain,
    /// At rest, while another process may take over.
    pub(crate) hold: Arc<Hold>,
    /// Tells the operator about refused clients.
    refusal_log: Arc<RefusalLog>,
    /// Counts error responses, and says when a refused client may come back.
    pub(crate) refusals: Refusals,
    /// Reads request bodies within the limits and quotas of the settings.
    pub(crate) bodies: BodyReader,
    /// Where the pages of lists begin.
    pub(crate) cursors: Cursors,
    pub(crate) request_ids: RequestIds,
    /// Memory of responses to readers (history, presence, status) that are not written yet.
    pub(crate) read_answers: Arc<MemoryQuota>,
    /// The newest pages of channels, as they were sent last.
    pub(crate) newest_pages: NewestPages,
    /// Memory of responses to batches that are not written yet. It is separate, so that slow
    /// readers cannot block publishers.
    pub(crate) publish_answers: Arc<MemoryQuota>,
    /// Counts of work refused for want of memory.
    pub(crate) pressure: Arc<MemoryPressure>,
    /// The site of the documentation, if it is served.
    pub(crate) site: Option<Site>,
    /// When the server started, for its uptime.
    pub(crate) started: Instant,
    /// The charts of the status page.
    pub(crate) charts: Arc<Charts>,
    pub(crate) carried: CarriedCounts,
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Control {
    /// A control plane in front of `engine`. It does nothing until [`serve`](fn@crate::serve) is
    /// called.
    pub fn new(
        engine: Arc<Channels>,
        access: Arc<AccessControl>,
        edge: Arc<dyn Edge>,
        settings: Settings,
    ) -> Control {
        let hold = Arc::<Hold>::default();
        let (revoker, revocation_task) = revocations::new(&access, Arc::clone(&edge), &hold);
        let (kept, of_kept) = (Arc::clone(&access.kept), Arc::clone(&engine));
        let mut kept_changes = KeptChanges::new(kept, of_kept, Arc::clone(&hold));
        if let Some(shared) = access.shared_kept.get() {
            kept_changes.share(Arc::clone(shared));
        }
        Control {
            engine,
            kept: Arc::clone(&access.kept),
            kept_changes,
            user_erasures: UserErasures::default(),
            clients: Arc::clone(&access.clients),
            refusal_log: Arc::clone(&access.refusals),
            authentication: Authentication::new(access),
            revoker,
            revocation_task: Mutex::new(revocation_task),
            edge,
            metrics: HttpMetrics::default(),
            other_metrics: Vec::new(),
            receipts: Arc::default(),
            shares: Arc::default(),
            canary: CanaryReport::default(),
            health: Arc::default(),
            drain: Drain::default(),
            hold,
            refusals: Refusals::new(settings.drain_window),
            bodies: BodyReader::new(&settings),
            cursors: Cursors::random(),
            request_ids: RequestIds::random(),
            newest_pages: NewestPages::new(settings.limits.max_answer_bytes),
            read_answers: Arc::new(MemoryQuota::new(settings.limits.max_answer_bytes)),
            publish_answers: Arc::new(MemoryQuota::new(settings.limits.max_answer_bytes)),
            pressure: Arc::default(),
            site: None,
            started: Instant::now(),
            charts: Arc::default(),
            carried: CarriedCounts::default(),
            settings,
        }
    }

    /// The owner of the file of revocations, which is to run. `None` if there is none, or if it was
    /// taken before.
    pub(crate) fn take_revocation_task(&self) -> Option<RevocationTask> {
        self.revocation_task.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The same control plane, which shows the metrics of another part, too.
    #[must_use]
    pub fn with_metrics(mut self, source: Arc<dyn MetricSource>) -> Control {
        self.other_metrics.push(source);
        self
    }

    /// The same control plane, which stores in `records` what it keeps for users.
    #[must_use]
    pub fn with_records(mut self, records: Option<Arc<dyn Records>>) -> Control {
        if let Some(records) = records {
            self.user_erasures.store_in(Arc::clone(&records));
            self.kept_changes.store_in(records);
        }
        self
    }

    /// The same control plane, which gives up what `pressure` says.
    #[must_use]
    pub fn with_pressure(mut self, pressure: Arc<MemoryPressure>) -> Control {
        self.pressure = pressure;
        self
    }

    /// The same control plane, which serves the documentation, too.
    #[must_use]
    pub fn with_site(mut self, site: Option<Site>) -> Control {
        self.site = site;
        self
    }

    /// Fails if this is refused for want of memory.
    pub(crate) fn check_memory(&self, what: RefusedForMemory) -> Result<(), ErrorResponse> {
        if self.pressure.refuses(what) {
            return Err(ErrorResponse::short_of_memory());
        }
        Ok(())
    }

    /// Tells the operator that a client was refused with `error`; see [`RefusalLog::note`].
    pub(crate) fn tell_refusal(
        &self,
        error: &ErrorResponse,
        client: impl FnOnce() -> RefusedClient,
    ) {
        self.refusal_log.note(error, client, clock::now_ms());
    }

    /// Tells the operator why a client has no TLS.
    pub(crate) fn tell_flaw(
        &self,
        flaw: CertificateFlaw,
        address: impl FnOnce() -> Option<IpAddr>,
    ) {
        self.refusal_log.note_handshake(flaw.sentence(), address, clock::now_ms());
    }

    /// Where the binary reports what the probes show.
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// Brings the control plane to rest, while another process may take over.
    pub fn hold(&self) -> &Hold {
        &self.hold
    }

    /// Calls `act` while nothing is written to the file of revocations.
    pub fn with_revocations_at_rest<T>(&self, act: impl FnOnce() -> T) -> T {
        self.revoker.at_rest(act)
    }

    /// Copies of the open file of revocations for another process, if there is one. Call it while
    /// the control plane is held and at rest.
    ///
    /// # Errors
    ///
    /// The process is short of descriptors.
    pub fn pass_revocations(&self) -> io::Result<Option<PassedFile>> {
        self.revoker.pass()
    }

    /// The number of connections that the control plane has.
    pub fn connections(&self) -> u64 {
        self.metrics.connections()
    }

    /// Ends what takes long: bodies that are still arriving are refused, and receipts say what is
    /// known. Until it is called with `false`.
    pub fn rush(&self, is_rushed: bool) {
        self.drain.rush(is_rushed);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.drain.has_begun()
    }

    /// True if the server shuts down or is about to.
    pub(crate) fn is_leaving(&self) -> bool {
        self.health.is_leaving() || self.is_draining()
    }

    pub(crate) fn is_ready(&self) -> bool {
        !self.is_leaving() && self.health.stuck().is_empty()
    }

    /// Problems of a server that is ready nevertheless.
    pub(crate) fn ailments(&self) -> Vec<Ailment> {
        let mut ailments = Vec::new();
        if self.edge.subscribers() >= self.settings.max_connections as u64 {
            let message = "the server is full: it refuses subscribers";
            ailments.push(Ailment::new("full", message));
        }
        if self.edge.is_busy() {
            let message = "the queue of a worker is full: messages to its channels are refused";
            ailments.push(Ailment::new("busy", message));
        }
        let step = self.pressure.step();
        if step != MemoryStep::None {
            ailments.push(Ailment::new("memory", step.message()));
        }
        ailments.extend(self.canary.ailment());
        ailments.extend(self.other_metrics.iter().flat_map(|source| source.ailments()));
        ailments
    }
}
