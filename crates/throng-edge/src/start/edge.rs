//! The running data plane, and the sockets that travel between it and the control plane.

use std::io;
use std::net::{IpAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use throng_access::{Clients, CountedAddress};
use throng_core::{Admission, Notification, WorkerQueue};
use throng_handover::message::DescriptorKind;

use super::gate::Gate;
use super::send_method::SendMethod;
use super::succession::Succession;
use crate::metrics::Metrics;
use crate::net::HandoffHeader;
use crate::sys::handoff::{HandoffReceiver, HandoffSender};
use crate::sys::listener::{Port, PortReservation};
use crate::tls::{Carried, TlsConnection};

/// The running data plane.
#[derive(Debug)]
pub struct Edge {
    /// Connections that the workers hand off to the control plane.
    pub to_control: ControlHandoffs,
    /// Hands connections off to the workers.
    pub to_workers: WorkerHandoffs,
    pub metrics: Metrics,
    /// The moments that clients were told.
    pub admission: Arc<Admission>,
    pub send_method: SendMethod,
    pub(super) queues: Vec<Arc<WorkerQueue>>,
    pub(super) threads: Vec<JoinHandle<()>>,
    pub(super) succession: Arc<Succession>,
    /// If workers come from another process: opens once they may act; and how many of them do.
    pub(super) gate: Option<(Arc<Gate>, usize)>,
    /// Keeps the ports from other programs as long as the server runs.
    pub(super) ports: (Port, Option<PortReservation>),
}

impl Edge {
    /// Stops accepting connections and subscriptions. Existing ones go on.
    pub fn stop_accepting(&self) {
        self.notify_all(|| Notification::StopAccepting);
    }

    /// Delivers the messages that were accepted, tells every client to reconnect, and ends the
    /// workers.
    pub fn drain(&self) {
        self.notify_all(|| Notification::Drain);
    }

    /// Lets workers act that come from another process, which has ended its own, and waits until
    /// they do: they thaw first. Call it once.
    pub fn take_over(&self) {
        if let Some((gate, arriving)) = &self.gate {
            gate.decide(true);
            gate.await_arrivals(*arriving);
        }
    }

    /// The number of running workers.
    pub fn workers(&self) -> usize {
        self.queues.len()
    }

    /// The descriptors that the process which takes over needs beside the workers' own, and
    /// their kinds.
    pub fn ports(&self) -> Vec<(DescriptorKind, BorrowedFd<'_>)> {
        let plain = match &self.ports.0 {
            Port::Own(reservation) => (DescriptorKind::Reservation, reservation.as_fd()),
            Port::Passed(listener, _) => (DescriptorKind::Passed, listener.as_fd()),
        };
        let tls = self.ports.1.as_ref();
        let tls = tls.map(|reservation| (DescriptorKind::TlsReservation, reservation.as_fd()));
        std::iter::once(plain).chain(tls).collect()
    }

    fn notify_all(&self, notification: impl Fn() -> Notification) {
        for queue in &self.queues {
            queue.post(notification());
            queue.wake();
        }
    }

    /// Waits until all workers have ended.
    pub fn join(self) {
        for thread in self.threads {
            // A worker that panicked has aborted the process.
            let _ = thread.join();
        }
    }
}

/// Receives the connections that workers hand off to the control plane. The descriptor is readable
/// while one waits.
#[derive(Debug)]
pub struct ControlHandoffs {
    receiver: HandoffReceiver,
    clients: Arc<Clients>,
}

/// A connection for the control plane.
#[derive(Debug)]
pub struct Handoff {
    /// The connection, non-blocking.
    pub stream: TcpStream,
    /// Bytes that the worker has read from it: they begin with a request head.
    pub bytes: Vec<u8>,
    /// The address of its client, which counts until this is dropped; `None` if addresses are not
    /// kept, or if this one is not known.
    pub client: Option<CountedAddress>,
    /// Its TLS; `None` for a plain connection. `bytes` were opened already.
    pub tls: Option<Box<TlsConnection>>,
}

impl Handoff {
    /// The connection without its socket, for another process; `None` if its TLS cannot travel. Its
    /// client's address counts no longer.
    pub fn pack(self) -> Option<(Vec<u8>, TcpStream)> {
        let Handoff { stream, bytes, tls, client: _ } = self;
        let mut packed = vec![u8::from(tls.is_some())];
        match tls {
            None => packed.extend_from_slice(&bytes),
            Some(tls) => {
                let carried = Carried::Established(tls).pack(&bytes).ok()?;
                packed.extend_from_slice(carried.bytes());
            }
        }
        Some((packed, stream))
    }

    /// Reads what [`Handoff::pack`] has written.
    pub fn unpack(mut bytes: Vec<u8>, stream: TcpStream) -> io::Result<Handoff> {
        if bytes.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let is_tls = bytes.remove(0) != 0;
        let tls = if is_tls { Some(take_tls(&mut bytes)?) } else { None };
        Ok(Handoff { stream, bytes, client: None, tls })
    }
}

impl ControlHandoffs {
    pub(super) fn new(receiver: HandoffReceiver, clients: Arc<Clients>) -> ControlHandoffs {
        ControlHandoffs { receiver, clients }
    }

    /// Receives the next connection; `None` while none waits.
    pub fn receive(&self) -> io::Result<Option<Handoff>> {
        let mut bytes = Vec::new();
        let Some((header, socket)) = self.receiver.receive(&mut bytes)? else { return Ok(None) };
        let arrived = |address| CountedAddress::arrived(&self.clients, address);
        let client = header.address.map(arrived);
        let lost = || io::Error::other("no descriptor was left for a socket that was handed off");
        let tls = if header.is_tls { Some(take_tls(&mut bytes)?) } else { None };
        bytes.shrink_to_fit();
        let stream = TcpStream::from(socket.ok_or_else(lost)?);
        Ok(Some(Handoff { stream, bytes, client, tls }))
    }
}

/// Takes the state of a TLS connection from the front of the bytes of its handoff.
fn take_tls(bytes: &mut Vec<u8>) -> io::Result<Box<TlsConnection>> {
    let (carried, used) = Carried::read(bytes).map_err(io::Error::other)?;
    bytes.drain(..used);
    match carried {
        Carried::Established(tls) => Ok(tls),
        Carried::New(_) => Err(io::Error::other("a TLS connection came before its handshake")),
    }
}

impl AsFd for ControlHandoffs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }
}

/// The worker cannot take more connections now: too many are on their way to it, or it has ended.
#[derive(Debug, thiserror::Error)]
#[error("the worker takes no more connections for now")]
pub struct WorkerBusyError {
    /// The TLS of a connection that has it, so that it can be answered; `None` also if the
    /// connection can only be closed.
    pub tls: Option<Box<TlsConnection>>,
}

/// Hands connections off from the control plane to the workers.
#[derive(Debug, Clone)]
pub struct WorkerHandoffs {
    senders: Arc<[HandoffSender]>,
    metrics: Metrics,
}

impl WorkerHandoffs {
    pub(super) fn senders(&self) -> &[HandoffSender] {
        &self.senders
    }

    pub(super) fn new(senders: Vec<HandoffSender>, metrics: Metrics) -> WorkerHandoffs {
        WorkerHandoffs { senders: senders.into(), metrics }
    }

    /// Hands a connection of the server's own canary off to the worker of this number, counted in a
    /// circle. `bytes` are a request that subscribes, whatever to: it follows the canary's log.
    pub fn send_canary(
        &self,
        worker: usize,
        stream: &TcpStream,
        bytes: &[u8],
    ) -> Result<(), WorkerBusyError> {
        let sender = &self.senders[worker % self.senders.len()];
        let sent = sender.send(HandoffHeader::CANARY, stream.as_fd(), bytes);
        sent.map_err(|_| WorkerBusyError { tls: None })
    }

    /// Hands a connection off to the least loaded worker; if all are full, that worker answers it
    /// with a 503. `bytes` begin with a request head. A connection of the admin listener may follow
    /// the status samples, whatever its head says about host and origin. Once it has gone, its
    /// `address`, which counts, is the worker's. Its `tls` goes with it; `bytes` were opened
    /// already.
    pub fn send(
        &self,
        listener: throng_core::Listener,
        stream: &TcpStream,
        bytes: &[u8],
        address: Option<IpAddr>,
        tls: Option<Box<TlsConnection>>,
    ) -> Result<(), WorkerBusyError> {
        let worker = self.metrics.least_loaded();
        let sender = &self.senders[usize::from(worker.0)];
        let header = HandoffHeader { address, ..HandoffHeader::between_planes(listener) };
        let Some(tls) = tls else {
            let sent = sender.send(header, stream.as_fd(), bytes);
            return sent.map_err(|_| WorkerBusyError { tls: None });
        };
        let header = HandoffHeader { is_tls: true, ..header };
        let packed = Carried::Established(tls).pack(bytes);
        let packed = packed.map_err(|_| WorkerBusyError { tls: None })?;
        if sender.send(header, stream.as_fd(), packed.bytes()).is_ok() {
            return Ok(());
        }
        // Nothing has left: the state goes on here.
        match packed.unpack() {
            Ok(Carried::Established(tls)) => Err(WorkerBusyError { tls: Some(tls) }),
            _ => Err(WorkerBusyError { tls: None }),
        }
    }
}
