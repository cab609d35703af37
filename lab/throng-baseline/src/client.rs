//! The client: many connections to one server. Throng and the raw loop get the same.
//!
//! # Layout
//!
//! - [`target`]: the request of a connection.
//! - [`subscribers`]: the connections of one thread.
//!
//! Each thread has a private descriptor table, so that `RLIMIT_NOFILE` limits the connections of a
//! thread, not of all. Connection `i` belongs to thread `i % threads`.

pub(crate) mod subscribers;
pub(crate) mod target;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::workers::{Pending, Workers};
use subscribers::{Batch, Parking, Subscribers};
use target::Target;

/// Connections on one or more threads. Dropping it closes them.
pub(crate) struct Client {
    threads: Workers<Subscribers>,
    connections: usize,
}

/// The deliveries of a round.
#[derive(Debug)]
pub(crate) struct Deliveries {
    /// From the publish to the last byte of the message, for each connection.
    pub(crate) latencies_ms: Vec<f64>,
    /// CPU time of the client for it.
    pub(crate) cpu_ns: u64,
}

/// Parked connections; the parking ends with [`Parked::unpark`] or on drop.
pub(crate) struct Parked {
    parking: Arc<Parking>,
    pending: Option<Pending<()>>,
}

impl Client {
    /// Starts the threads, without connections.
    pub(crate) fn start(threads: usize) -> Result<Self> {
        let threads = Workers::start(threads, "client", Subscribers::new)?;
        Ok(Self { threads, connections: 0 })
    }

    /// Adds `count` connections and waits until all are subscribed.
    pub(crate) fn connect(&mut self, target: &Target, ports: &[u16], count: usize) -> Result<()> {
        let (step, end) = (self.threads.len(), self.connections + count);
        let connect = |index| {
            // The distance to this thread's first new number.
            let ahead = (index + step - self.connections % step) % step;
            let first = self.connections + ahead;
            let batch = Batch { target: target.clone(), first, step, end, ports: ports.into() };
            move |subscribers: &mut Subscribers| subscribers.connect(&batch)
        };
        self.threads.ask(connect).wait()?;
        self.connections = end;
        Ok(())
    }

    /// Calls `publish`, and waits until each connection has received `message_bytes`. An error if a
    /// connection received less within `timeout`, or more.
    pub(crate) fn round(
        &self,
        message_bytes: usize,
        timeout: Duration,
        publish: impl FnOnce() -> Result<()>,
    ) -> Result<Deliveries> {
        let (ready, are_ready) = channel();
        let parts = self.threads.ask(|_| {
            let ready = ready.clone();
            move |subscribers: &mut Subscribers| {
                subscribers.reset_counts();
                ready.send(())?;
                subscribers.receive_round(message_bytes, Instant::now() + timeout)
            }
        });
        drop(ready);
        for _ in 0..self.threads.len() {
            are_ready.recv().context("a client thread has ended")?;
        }
        let started = Instant::now();
        let published = publish();
        let mut deliveries =
            Deliveries { latencies_ms: Vec::with_capacity(self.connections), cpu_ns: 0 };
        let (mut missing, mut closed, mut surplus) = (0, 0, 0);
        for part in parts.wait()? {
            let latencies = part.completed.iter().map(|at| ms(at.duration_since(started)));
            deliveries.latencies_ms.extend(latencies);
            deliveries.cpu_ns += part.cpu_ns;
            missing += part.missing;
            closed += part.closed;
            surplus += part.surplus;
        }
        published?;
        ensure!(
            missing == 0 && closed == 0 && surplus == 0,
            "of {} connections {missing} did not receive the whole message within {timeout:?}, \
             {closed} were closed and {surplus} received too much",
            self.connections
        );
        Ok(deliveries)
    }

    /// Makes the connections answer pings until the parking ends.
    pub(crate) fn park(&self) -> Parked {
        let parking = Arc::new(Parking::default());
        let pending = self.threads.ask(|_| {
            let parking = Arc::clone(&parking);
            move |subscribers: &mut Subscribers| subscribers.park(&parking)
        });
        Parked { parking, pending: Some(pending) }
    }
}

impl Parked {
    /// Ends the parking. An error if a connection was lost.
    pub(crate) fn unpark(mut self) -> Result<()> {
        let pending = self.pending.take();
        drop(self);
        pending.map_or(Ok(()), |pending| pending.wait().map(drop))
    }

    /// Connections that have had at least one heartbeat.
    pub(crate) fn pinged(&self) -> usize {
        self.parking.pinged.load(Ordering::Relaxed)
    }

    /// Heartbeats so far, of all connections.
    pub(crate) fn pings(&self) -> usize {
        self.parking.pings.load(Ordering::Relaxed)
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        self.parking.stop.store(true, Ordering::Relaxed);
    }
}

/// A duration in milliseconds.
pub(crate) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests;
