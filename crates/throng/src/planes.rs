//! Joins the two planes: what the control plane needs, made of what the data plane offers.
//!
//! The descriptors here are those of the process's own table. A worker's sockets come out of
//! [`Handover`] already installed in it, and what goes back is closed here once it is under way.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixDatagram as StdUnixDatagram;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use throng_control::{Handoff, WorkerMetrics};
use throng_core::Listener;
use throng_edge::{Edge, Figures, Inlets};
use tokio::io::Interest;
use tokio::net::UnixDatagram;

/// Connections that come from the workers.
#[derive(Debug)]
pub struct Handover {
    /// Shared, because it is needed again for draining.
    edge: Arc<Edge>,
    /// A duplicate of the arrivals' descriptor, by which the runtime learns that one is there. It
    /// is a Unix socket; nothing is read through this type, so that its kind does not matter.
    watched: UnixDatagram,
}

impl Handover {
    /// Must be called within the runtime.
    pub fn new(edge: Arc<Edge>) -> io::Result<Handover> {
        let duplicate = edge.arrivals.as_fd().try_clone_to_owned()?;
        let watched = UnixDatagram::from_std(StdUnixDatagram::from(duplicate))?;
        Ok(Handover { edge, watched })
    }
}

impl throng_control::HandoffReceiver for Handover {
    async fn next(&mut self) -> io::Result<Option<Handoff>> {
        // "None now" is what tells the runtime to wait for the next one.
        let receive = || self.edge.arrivals.receive()?.ok_or(io::ErrorKind::WouldBlock.into());
        let arrival = self.watched.async_io(Interest::READABLE, receive).await?;
        Ok(Some(Handoff { stream: arrival.stream, bytes: arrival.bytes }))
    }
}

/// The workers, as the control plane sees them.
#[derive(Debug)]
pub struct Workers {
    /// The way to them.
    pub inlets: Inlets,
    /// What they tell about themselves.
    pub figures: Figures,
}

impl throng_control::Edge for Workers {
    fn hand_off(
        &self,
        listener: Listener,
        stream: TcpStream,
        bytes: &[u8],
    ) -> Result<(), TcpStream> {
        self.inlets.hand_back(listener, &stream, bytes).map_err(|_| stream)
    }

    fn subscribers(&self) -> u64 {
        let workers = self.figures.workers().iter();
        workers.map(|worker| u64::from(worker.taken.load(Ordering::Relaxed))).sum()
    }

    fn has_ended(&self) -> bool {
        self.figures.workers().iter().all(|worker| worker.is_ended.load(Ordering::Acquire))
    }

    fn workers(&self) -> Vec<WorkerMetrics> {
        let figures = self.figures.workers().iter().map(|worker| WorkerMetrics {
            connections: u64::from(worker.connections.load(Ordering::Relaxed)),
            counters: Arc::clone(&worker.counters),
        });
        figures.collect()
    }
}
