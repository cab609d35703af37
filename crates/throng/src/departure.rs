//! The drain that an operator asks for: clients leave at a pace while the server goes on to serve
//! those who are left, and then it ends.
//!
//! # Order
//!
//! 1. The server is not ready any more, and serves for `drain-delay` as before, so that balancers
//!    learn of it.
//! 2. New subscriptions are refused, and the clients that are there are asked to leave, as many a
//!    second as the return rate says. Publishing goes on.
//! 3. When all have left, or at the deadline, the server shuts down as after SIGTERM.
//!
//! Until the third step begins the drain can be cancelled. A signal begins it at once.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use throng_control::{Departure as Progress, Health};
use throng_edge::Counter;
use throng_host::limits::Cores;
use throng_tls::{TimedHandshake, handshakes_per_second};
use throng_units::format::count;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep};

use crate::planes::Workers;

/// How often progress is looked at.
const INTERVAL: Duration = Duration::from_millis(200);

/// How often progress is logged.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Clients that a core of the servers that they go to accepts and serves a second, beside its other
/// work; a core that does nothing else accepts some 12,000.
const RETURNS_PER_CORE: f64 = 1000.0;

/// The part of their time that those servers may spend on TLS handshakes.
const HANDSHAKE_SHARE: f64 = 0.5;

/// How long the speed of handshakes is measured.
const MEASURED: Duration = Duration::from_millis(100);

/// The settings of drains.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DepartureSettings {
    /// The time in which the server is not ready, and serves as before.
    pub(crate) delay: Duration,
    /// How long those that lack messages are awaited once all others have been asked.
    pub(crate) patience: Duration,
    /// True if clients shake hands.
    pub(crate) has_tls: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DrainRequest {
    /// Clients that come back a second; `None` for as many as servers like this one accept.
    pub(crate) return_rate: Option<u64>,
    /// The time after which the server ends with those who are left.
    pub(crate) deadline: Duration,
}

/// How far it has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DrainStage {
    Serving,
    /// The server serves, and another process may take over: no drain begins.
    Upgrading,
    /// The clients are about to be asked to leave, by the drain with this number.
    Waiting(u64),
    /// They are asked to leave, by the drain with this number.
    Leaving(u64, Progress),
    /// The server ends, which nothing takes back.
    Ending,
}

/// The drain of this server.
#[derive(Debug)]
pub(crate) struct Departure {
    settings: DepartureSettings,
    stage: watch::Sender<DrainStage>,
    workers: Arc<Workers>,
    health: Arc<Health>,
    /// Drains begun so far. Its number tells a drain that it was cancelled, even if another one has
    /// begun since.
    begun: AtomicU64,
}

/// Keeps drains from beginning, until it is dropped.
#[derive(Debug)]
pub(crate) struct DrainReservation(Arc<Departure>);

impl Drop for DrainReservation {
    fn drop(&mut self) {
        self.0.stage.send_if_modified(|stage| {
            let is_kept = *stage == DrainStage::Upgrading;
            if is_kept {
                *stage = DrainStage::Serving;
            }
            is_kept
        });
    }
}

impl DrainStage {
    /// The number of the drain that is under way.
    fn number(&self) -> Option<u64> {
        match *self {
            DrainStage::Waiting(number) | DrainStage::Leaving(number, _) => Some(number),
            DrainStage::Serving | DrainStage::Upgrading | DrainStage::Ending => None,
        }
    }
}

impl Departure {
    /// A server that serves.
    pub(crate) fn new(
        settings: DepartureSettings,
        workers: Arc<Workers>,
        health: Arc<Health>,
    ) -> Arc<Departure> {
        let stage = watch::Sender::new(DrainStage::Serving);
        Arc::new(Departure { settings, stage, workers, health, begun: AtomicU64::new(0) })
    }

    /// How far it has come, now and from now on.
    pub(crate) fn watch(&self) -> watch::Receiver<DrainStage> {
        self.stage.subscribe()
    }

    /// Begins the drain if the server serves. Returns the stage before. The runtime must be
    /// entered.
    pub(crate) fn begin(self: &Arc<Departure>, wanted: DrainRequest) -> DrainStage {
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        let mut before = DrainStage::Serving;
        let begins = self.stage.send_if_modified(|stage| {
            before = *stage;
            if before != DrainStage::Serving {
                return false;
            }
            // Within this call, as everywhere here, so that nobody else advances it meanwhile.
            self.health.leave();
            *stage = DrainStage::Waiting(number);
            true
        });
        if begins {
            tracing::info!("throng drain: the server is no longer ready");
            tokio::spawn(Arc::clone(self).run(number, wanted));
        }
        before
    }

    /// Keeps drains from beginning while another process may take over.
    ///
    /// # Errors
    ///
    /// The stage of a server that does not just serve.
    pub(crate) fn reserve(self: &Arc<Departure>) -> Result<DrainReservation, DrainStage> {
        let mut before = DrainStage::Serving;
        self.stage.send_if_modified(|stage| {
            before = *stage;
            let serves = before == DrainStage::Serving;
            if serves {
                *stage = DrainStage::Upgrading;
            }
            serves
        });
        if before == DrainStage::Serving {
            Ok(DrainReservation(Arc::clone(self)))
        } else {
            Err(before)
        }
    }

    /// Takes the drain back, so that the server serves again: the last worker does once what is
    /// returned fails. Says what the drain had come to; `None` if none was under way, or it is
    /// too late.
    pub(crate) fn cancel(&self) -> Option<(DrainStage, oneshot::Receiver<Infallible>)> {
        let mut before = None;
        self.stage.send_if_modified(|stage| {
            if stage.number().is_none() {
                return false;
            }
            before = Some((*stage, self.workers.stay()));
            self.health.stay();
            *stage = DrainStage::Serving;
            true
        });
        if before.is_some() {
            tracing::info!("throng drain: cancelled; the server serves again");
        }
        before
    }

    /// The server ends. Says how far a drain had come.
    pub(crate) fn end(&self) -> DrainStage {
        self.health.leave();
        self.stage.send_replace(DrainStage::Ending)
    }

    /// Waits until a drain has come to its end.
    pub(crate) async fn ended(&self) {
        // `self` owns the sender, so that it does not fail.
        drop(self.watch().wait_for(|stage| *stage == DrainStage::Ending).await);
    }

    async fn run(self: Arc<Departure>, number: u64, wanted: DrainRequest) {
        let mut stage = self.watch();
        let is_over = |stage: &DrainStage| stage.number() != Some(number);
        tokio::select! {
            over = stage.wait_for(is_over) => drop(over),
            () = self.leave(number, wanted) => {}
        }
    }

    async fn leave(&self, number: u64, wanted: DrainRequest) {
        let end = Instant::now() + wanted.deadline;
        sleep(self.settings.delay.min(wanted.deadline)).await;
        let rate = match wanted.return_rate {
            Some(rate) => rate.max(1),
            None => measured_rate(self.settings.has_tls).await,
        };
        let clients = self.workers.clients();
        let left = end.saturating_duration_since(Instant::now());
        let (over, return_rate) = pace(clients, rate, left);
        tracing::info!(
            "throng drain: {} clients are asked to leave, {} a second",
            count(clients),
            count(return_rate)
        );
        let asked_before = self.workers.metrics.sum(Counter::ClosedDraining);
        let all_asked = Instant::now() + over;
        let last = (all_asked + self.settings.patience).min(end);
        let progress = || Progress {
            clients,
            asked: self.workers.metrics.sum(Counter::ClosedDraining) - asked_before,
            left: self.workers.clients(),
            return_rate,
            ends_in_ms: last.saturating_duration_since(Instant::now()).as_millis() as u64,
        };
        if !self.advance(number, progress(), || self.workers.leave(over)) {
            return;
        }
        let mut logged = Instant::now();
        loop {
            sleep(INTERVAL).await;
            let now = Instant::now();
            let progress = progress();
            if now >= last || (now >= all_asked && progress.left == 0) {
                return self.finish(number, progress);
            }
            self.advance(number, progress, || {});
            if now.duration_since(logged) >= LOG_INTERVAL {
                logged = now;
                tracing::info!("throng drain: {}", sentence(&progress));
            }
        }
    }

    /// Notes the progress of the drain with this number and calls `act`, unless it is over. Says
    /// whether it goes on.
    fn advance(&self, number: u64, progress: Progress, act: impl FnOnce()) -> bool {
        self.stage.send_if_modified(|stage| {
            if stage.number() != Some(number) {
                return false;
            }
            act();
            self.health.set_departure(Some(progress));
            *stage = DrainStage::Leaving(number, progress);
            true
        })
    }

    fn finish(&self, number: u64, progress: Progress) {
        self.stage.send_if_modified(|stage| {
            if stage.number() != Some(number) {
                return false;
            }
            tracing::info!("throng drain: {}; the server ends", sentence(&progress));
            *stage = DrainStage::Ending;
            true
        });
    }
}

/// The progress in words for an operator.
pub(crate) fn sentence(progress: &Progress) -> String {
    let Progress { clients, asked, left, return_rate, ends_in_ms } = *progress;
    let seconds = ends_in_ms.div_ceil(1000);
    format!(
        "{} of {} clients were asked to leave, {} are here, {} a second, at most {seconds} s more",
        count(asked),
        count(clients),
        count(left),
        count(return_rate)
    )
}

/// The time in which as many clients are asked at this rate, and the rate. Where there is less time
/// `left`, they are asked faster.
fn pace(clients: u64, rate: u64, left: Duration) -> (Duration, u64) {
    let over = Duration::from_secs_f64(clients as f64 / rate as f64);
    if over <= left {
        return (over, rate);
    }
    let faster = clients as f64 / left.as_secs_f64().max(1.0);
    (left, faster.ceil() as u64)
}

/// Clients that servers on machines like this one can accept a second.
async fn measured_rate(has_tls: bool) -> u64 {
    let cores = Cores::read().count as f64;
    let plain = RETURNS_PER_CORE * cores;
    if !has_tls {
        return plain as u64;
    }
    let measure = || handshakes_per_second(TimedHandshake::EcdsaP256, MEASURED).ok();
    let of_core = tokio::task::spawn_blocking(measure).await.ok().flatten();
    let handshakes = of_core.map_or(plain, |of_core| of_core * cores * HANDSHAKE_SHARE);
    plain.min(handshakes).max(1.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deadline_quickens_the_pace() {
        let minute = Duration::from_secs(60);
        assert_eq!(pace(6000, 1000, minute), (Duration::from_secs(6), 1000));
        assert_eq!(pace(600_000, 1000, minute), (minute, 10_000));
        assert_eq!(pace(0, 1, Duration::ZERO), (Duration::ZERO, 1));
        assert_eq!(pace(500, 1, Duration::ZERO), (Duration::ZERO, 500));
    }

    #[tokio::test]
    async fn a_rate_is_measured() {
        let plain = measured_rate(false).await;
        assert!(plain >= 1000 && (1..=plain).contains(&measured_rate(true).await));
    }
}
