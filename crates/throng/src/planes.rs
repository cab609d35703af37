//! Connects the two planes: implements the traits of the control plane with the data plane.
//!
//! Descriptors here belong to the process's own table. A worker's sockets come out of
//! [`Handover`] already in that table. A socket for a worker is closed here after it was sent.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixDatagram as StdUnixDatagram;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use throng_control::{Handoff, WorkerMetrics};
use throng_core::Listener;
use throng_edge::{Edge, Metrics, WorkerHandoffs};
use tokio::io::Interest;
use tokio::net::UnixDatagram;

/// Receives the connections that workers hand off.
#[derive(Debug)]
pub struct Handover {
    /// Shared with shutdown.
    edge: Arc<Edge>,
    /// A duplicate of the receiving descriptor, for the runtime's readiness events. Its type does
    /// not matter, because nothing is read through it.
    watched: UnixDatagram,
}

impl Handover {
    /// Requires the runtime.
    pub fn new(edge: Arc<Edge>) -> io::Result<Handover> {
        let duplicate = edge.to_control.as_fd().try_clone_to_owned()?;
        let watched = UnixDatagram::from_std(StdUnixDatagram::from(duplicate))?;
        Ok(Handover { edge, watched })
    }
}

impl throng_control::HandoffReceiver for Handover {
    async fn next(&mut self) -> io::Result<Option<Handoff>> {
        // "None now" is what tells the runtime to wait for the next one.
        let receive = || self.edge.to_control.receive()?.ok_or(io::ErrorKind::WouldBlock.into());
        let arrival = self.watched.async_io(Interest::READABLE, receive).await?;
        Ok(Some(Handoff { stream: arrival.stream, bytes: arrival.bytes }))
    }
}

/// The workers, for the control plane.
#[derive(Debug)]
pub struct Workers {
    /// The way to them.
    pub handoffs: WorkerHandoffs,
    /// What they tell about themselves.
    pub metrics: Metrics,
}

impl throng_control::Edge for Workers {
    fn hand_off(
        &self,
        listener: Listener,
        stream: TcpStream,
        bytes: &[u8],
    ) -> Result<(), TcpStream> {
        self.handoffs.send(listener, &stream, bytes).map_err(|_| stream)
    }

    fn subscribers(&self) -> u64 {
        let workers = self.metrics.workers().iter();
        workers.map(|worker| u64::from(worker.taken.load(Ordering::Relaxed))).sum()
    }

    fn has_ended(&self) -> bool {
        self.metrics.workers().iter().all(|worker| worker.is_ended.load(Ordering::Acquire))
    }

    fn workers(&self) -> Vec<WorkerMetrics> {
        let figures = self.metrics.workers().iter().map(|worker| WorkerMetrics {
            connections: u64::from(worker.connections.load(Ordering::Relaxed)),
            counters: Arc::clone(&worker.counters),
        });
        figures.collect()
    }
}
