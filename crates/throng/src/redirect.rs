//! The listener that sends clients from http to https, from the settings.

use std::convert::Infallible;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use throng_control::{Redirect as Answers, RedirectCounts};
use throng_edge::EdgePlan;
use throng_handover::message::DescriptorKind;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::settings::Settings;
use crate::upgrade::{self, Arrival};

/// The listener that sends clients from http to https, before its start.
pub(crate) struct RedirectListener {
    answers: Answers,
    listener: TcpListener,
    counts: Arc<RedirectCounts>,
}

/// The listener that sends clients from http to https, if there is one.
///
/// # Errors
///
/// The address cannot be used.
pub(crate) fn prepare(
    settings: &Settings,
    plan: &EdgePlan,
    arrival: Option<&mut Arrival>,
) -> Result<Option<RedirectListener>> {
    let Some((address, tls)) = settings.redirect_http.0.zip(plan.tls_address()) else {
        return Ok(None);
    };
    let failed = || format!("cannot listen on {address} (redirect-http)");
    let passed = arrival.and_then(|arrival| arrival.take(DescriptorKind::Redirect));
    let open = |address| throng_edge::listen_alone("redirect-http", address, settings.heartbeat.0);
    let listener = upgrade::start::listener(address, passed, open)?;
    listener.set_nonblocking(true).with_context(failed)?;
    let answers = Answers {
        // Checked to be a port.
        port: settings.redirect_port.0.map_or(tls.port(), |port| port as u16),
        max_head_bytes: settings.max_head_bytes.0,
        timeout: settings.head_timeout.0,
    };
    Ok(Some(RedirectListener { answers, listener, counts: Arc::default() }))
}

impl RedirectListener {
    pub(crate) fn counts(&self) -> Arc<RedirectCounts> {
        Arc::clone(&self.counts)
    }

    /// Accepts connections until the runtime ends, or until the value is stopped.
    pub(crate) fn start(self, runtime: &Runtime) -> RunningRedirect {
        if let Ok(address) = self.listener.local_addr() {
            tracing::info!("redirecting to https from http://{address}");
        }
        let (keeps, ends) = oneshot::channel::<Infallible>();
        let stop = async { drop(ends.await) };
        let serving = self.answers.serve(self.listener, self.counts, stop);
        RunningRedirect { keeps, task: runtime.spawn(serving) }
    }
}

/// The listener while it serves.
#[derive(Debug)]
pub(crate) struct RunningRedirect {
    /// Dropped, it makes the task accept no more.
    keeps: oneshot::Sender<Infallible>,
    task: JoinHandle<()>,
}

impl RunningRedirect {
    /// Accepts no more: another process has the listener, too. The task that is returned ends when
    /// the connections that were accepted have been answered.
    pub(crate) fn stop(self) -> JoinHandle<()> {
        drop(self.keeps);
        self.task
    }
}

impl AsFd for RedirectListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}
