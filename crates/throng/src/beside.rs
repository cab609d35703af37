//! Tasks beside the two planes, and the ones that only one process may run at a time.

use std::time::Duration;

use throng_acme::Renewal;
use throng_outbound::RunningCallouts;
use tokio::runtime::Runtime;
use tokio::task::{AbortHandle, JoinHandle};

use crate::redirect::{RedirectListener, RunningRedirect};

/// Time for the last events to reach the application.
const EVENTS_GRACE: Duration = Duration::from_secs(2);

/// Tasks beside the two planes.
pub(crate) struct Beside {
    callouts: RunningCallouts,
    redirect: Option<RunningRedirect>,
    /// Obtains and renews certificates.
    renewal: Option<AbortHandle>,
}

impl Beside {
    /// Starts what only one process may do at a time: this one serves.
    pub(crate) fn start(
        runtime: &Runtime,
        callouts: RunningCallouts,
        redirect: Option<RedirectListener>,
        renewal: Option<Renewal>,
    ) -> Beside {
        Beside {
            callouts,
            redirect: redirect.map(|redirect| redirect.start(runtime)),
            renewal: renewal.map(|renewal| runtime.spawn(renewal.run()).abort_handle()),
        }
    }

    /// Another process serves, and does all this. An order of a certificate that is under way is
    /// given up: the authority would ask the other process for its proof. The task that is returned
    /// ends when what this process has begun has been answered.
    pub(crate) fn step_aside(&mut self) -> Option<JoinHandle<()>> {
        self.renewal.take().iter().for_each(AbortHandle::abort);
        self.redirect.take().map(RunningRedirect::stop)
    }

    /// Waits for the last events, after all connections have ended.
    pub(crate) async fn finish(self) {
        self.callouts.finish(EVENTS_GRACE).await;
    }
}
