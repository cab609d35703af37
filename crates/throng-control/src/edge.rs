//! What the control plane needs of the data plane: sockets that arrive, sockets that it hands back,
//! and the workers' metrics. The binary connects the two planes.

use std::future::Future;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;

use throng_core::{Counters, Listener};

/// A socket that a worker has handed off to the control plane.
#[derive(Debug)]
pub struct Handoff {
    /// The socket, in nonblocking mode.
    pub stream: TcpStream,
    /// What the worker has read from it; begins with a request head.
    pub bytes: Vec<u8>,
}

/// The source of sockets.
pub trait HandoffReceiver: Send {
    /// The next socket; `None` after the last one. Dropping the future must not lose a socket.
    fn next(&mut self) -> impl Future<Output = io::Result<Option<Handoff>>> + Send;
}

/// The metrics of one worker.
#[derive(Debug, Clone)]
pub struct WorkerMetrics {
    /// Connections that it holds now.
    pub connections: u64,
    /// The worker's counters.
    pub counters: Arc<Counters>,
}

/// The data plane.
pub trait Edge: Send + Sync {
    /// Hands a socket off to a worker, preferably one with free places. `bytes` have been read from
    /// the socket and begin with the head of a request that subscribes; on the admin listener, with
    /// a permitted request for the status stream. Returns the socket if no worker accepts it.
    fn hand_off(
        &self,
        listener: Listener,
        stream: TcpStream,
        bytes: &[u8],
    ) -> Result<(), TcpStream>;

    /// Places for subscribers that are taken. Called for each handoff.
    fn subscribers(&self) -> u64;

    /// Whether all workers have ended and accept no more sockets.
    fn has_ended(&self) -> bool;

    /// The metrics of all workers, in the order of their ids.
    fn workers(&self) -> Vec<WorkerMetrics>;
}
