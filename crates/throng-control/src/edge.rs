//! What the control plane needs of the data plane, and nothing more: sockets that come, sockets
//! that go back, figures. The binary joins the two.

use std::future::Future;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;

use throng_core::{Counters, Listener};

/// A socket that a worker has handed over.
#[derive(Debug)]
pub struct Arrival {
    /// The socket, nonblocking already.
    pub stream: TcpStream,
    /// What was read from it already; begins with a request head.
    pub bytes: Vec<u8>,
}

/// Where sockets come from.
pub trait Arrivals: Send {
    /// The next one; `None` when there will be no more. Dropping the future must not lose a socket.
    fn next(&mut self) -> impl Future<Output = io::Result<Option<Arrival>>> + Send;
}

/// One worker's figures.
#[derive(Debug, Clone)]
pub struct WorkerFigures {
    /// Connections it holds now.
    pub connections: u64,
    /// What it has counted.
    pub counters: Arc<Counters>,
}

/// The data plane, as seen from here.
pub trait Edge: Send + Sync {
    /// Gives a socket to a worker, one with room if there is one. `bytes` were read from it and
    /// begin with the head of a request that subscribes; one of the admin listener asks for the
    /// samples, and may. When the worker does not take it the socket comes back.
    fn hand_back(
        &self,
        listener: Listener,
        stream: TcpStream,
        bytes: &[u8],
    ) -> Result<(), TcpStream>;

    /// Places of subscribers that are taken. Asked for each arrival.
    fn subscribers(&self) -> u64;

    /// Whether all workers have ended: they take no more sockets.
    fn has_ended(&self) -> bool;

    /// Connections that the workers hold now.
    fn connections(&self) -> u64;

    /// The figures of all workers, in order.
    fn workers(&self) -> Vec<WorkerFigures>;
}
