//! Access control and TLS, and everything that keeps them up to date.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;

use anyhow::Result;
use throng_acme::{Renewal, Renewer};
use throng_certificates::ServerTls;
use throng_control::MetricSource;
use throng_core::events::EventSink;
use throng_core::{ChannelLimits, Tallies, Watchlists};
use throng_outbound::{KeySetTask, RunningCallouts};
use tokio::runtime::Runtime;

use super::base::LogUntilEnd;
use crate::access::{AccessSettings, ServerAccess};
use crate::acme::{self, AcmeMetrics};
use crate::journals::{self, Events};
use crate::outbound::{self, OutboundMetrics};
use crate::redirect::RedirectListener;
use crate::settings::{self, Settings, SettingsError};
use crate::subscription_counts::SubscriptionCounts;
use crate::tls::{self, TlsMetrics};
use crate::upgrade::{self, Arrival};

/// See the module.
pub(super) struct Security {
    pub(super) access: ServerAccess,
    pub(super) tls: Option<Arc<ServerTls>>,
    pub(super) renewal: Option<Renewal>,
    pub(super) callouts: RunningCallouts,
    /// Where the application is notified.
    pub(super) events: Events,
    /// What the clients of applications are told of channels.
    pub(super) counts: Option<Arc<SubscriptionCounts>>,
    outbound: Arc<OutboundMetrics>,
}

impl Security {
    /// Reads all files of keys and certificates, and begins to fetch and to ask.
    pub(super) fn new(
        runtime: &Runtime,
        settings: &Settings,
        arrival: Option<&Arrival>,
    ) -> Result<Security> {
        let access = AccessSettings::load(settings)?;
        let tls = tls::load(settings)?;
        for warning in warnings(settings, &access, tls.as_deref())? {
            tracing::warn!("{warning}");
        }
        let trust = outbound::trust(settings)?;
        let tagger = upgrade::start::tagger(runtime, settings, arrival)?;
        let clients = Arc::new(settings::clients(settings, &tagger));
        let mut callouts = outbound::callouts(settings, &trust, &clients)?;
        let notified = callouts.events();
        let mut access =
            ServerAccess::new(access, settings, clients, &mut callouts, (&trust, tagger))?;
        let mut webhooks = outbound::webhooks(settings, &trust, &access.control)?;
        let (events, counts) = events(settings, notified, |next| webhooks.events(next))?;
        access.channel_limits = events.channel_limits.clone();
        let key_sets = access.key_sets.take();
        let outbound = Arc::new(OutboundMetrics {
            callouts: (!settings.callouts.is_empty()).then(|| callouts.metrics()),
            webhooks: webhooks.metrics(),
            key_sets: key_sets.as_ref().map(KeySetTask::metrics),
        });
        if let (Some(task), Some(keys)) = (key_sets, &access.token_keys) {
            runtime.spawn(task.run(keys.authenticator()));
        }
        if let Some(tls) = &tls {
            runtime.spawn(tls::watch(Arc::clone(tls)));
        }
        let renewal = acme::prepare(settings, tls.as_ref(), tls::look)?;
        let mut callouts = callouts.start();
        webhooks.start(&mut callouts);
        Ok(Security { access, tls, renewal, callouts, events, counts, outbound })
    }

    /// Tries to obtain certificates again.
    pub(super) fn renewer(&self) -> Option<Renewer> {
        self.renewal.as_ref().map(Renewal::renewer)
    }

    /// The metrics of these parts, of the redirect to https and of the log.
    pub(super) fn metrics(
        &self,
        redirect: Option<&RedirectListener>,
        log: &LogUntilEnd,
    ) -> Vec<Arc<dyn MetricSource>> {
        let renewer = self.renewer();
        let tls = TlsMetrics { tls: self.tls.clone(), renewer: renewer.clone() };
        vec![
            redirect.map(RedirectListener::counts).unwrap_or_default(),
            Arc::clone(&self.outbound) as _,
            Arc::new(log.writer.clone()),
            Arc::new(tls),
            Arc::new(AcmeMetrics(renewer)),
        ]
    }
}

type Sink = Option<Arc<dyn EventSink>>;

/// Who is told what happens: `notified` by callouts, and those that mean all nodes, with what
/// `webhooks` makes of the next one.
fn events(
    settings: &Settings,
    notified: Sink,
    webhooks: impl FnOnce(Sink) -> Sink,
) -> Result<(Events, Option<Arc<SubscriptionCounts>>), SettingsError> {
    let wants = outbound::tallied(settings)?;
    // Callouts are about this node alone.
    let (here, next) = if wants.is_empty() { (None, notified) } else { (notified, None) };
    let told = webhooks(next);
    let counts = SubscriptionCounts::new(settings, told.clone());
    let told = counts.clone().map(|counts| counts as Arc<dyn EventSink>).or(told);
    let watching = settings.apps.iter().filter(|app| app.watchlists == Some(true));
    let prefixes: Vec<_> = watching.map(|app| app.prefix()).collect();
    let watchlists = (!prefixes.is_empty()).then(|| Watchlists::new(prefixes, told.clone()));
    let watchlists = watchlists.map(Arc::new);
    let told = watchlists.clone().map(|watchlists| watchlists as Arc<dyn EventSink>).or(told);
    let limits: Vec<_> = settings::channel_limits(settings).collect();
    let channel_limits = (!limits.is_empty()).then(|| ChannelLimits::new(limits, told.clone()));
    let channel_limits = channel_limits.map(Arc::new);
    let told = channel_limits.clone().map(|limits| limits as Arc<dyn EventSink>).or(told);
    let is_tallied = !wants.is_empty();
    let tally = |everywhere: &Arc<dyn EventSink>| {
        let seed = RandomState::new().build_hasher().finish();
        Arc::new(Tallies::new(wants, seed, here, Arc::clone(everywhere)))
    };
    let tallies = told.as_ref().filter(|_| is_tallied).map(tally);
    let sink = tallies.clone().map(|tallies| tallies as Arc<dyn EventSink>).or(told);
    Ok((Events { sink, tallies, watchlists, channel_limits }, counts))
}

/// Faults of a server that starts nevertheless.
///
/// # Errors
///
/// A file that the journal needs cannot be used.
fn warnings(
    settings: &Settings,
    access: &AccessSettings,
    tls: Option<&ServerTls>,
) -> Result<Vec<String>, SettingsError> {
    let of_tls = tls.map(|tls| tls::warnings(settings, tls)).unwrap_or_default();
    let (of_access, of_journal) = (access.warnings.clone(), journals::check(settings)?);
    let (of_variables, of_callouts) = (settings::variable_warnings(), outbound::warnings(settings));
    let all = [of_variables, of_access, of_callouts, of_tls, of_journal].concat();
    let of_listeners = [settings::admin_warning(settings), settings::origin_warning(settings)];
    Ok(all.into_iter().chain(of_listeners.into_iter().flatten()).collect())
}
