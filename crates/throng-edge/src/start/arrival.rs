//! A worker arrives from another process, on the thread and into the descriptor table that it goes
//! on with.
//!
//! Its thread begins before the worker is there: it receives copies of sockets while the other
//! process serves ([`Arrivals`]). Then it gets what a worker needs, receives the state and checks
//! it. The connections are thawed once the other process has ended its workers ([`Arrived`]), and
//! the state is given back behind them: there is no moment at which the tables of both, or a table
//! and all of its bytes, take memory.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use throng_handover::channel::{Channel, Received};
use throng_handover::records::{Passed, Socket};

use super::ahead::{Ahead, Copies, lost};
use super::arrived::Arrived;
use super::error::{StartError, system};
use super::gate::Gate;
use super::thread::{self, Beginning, Prepared, Started, Thread};
use crate::event_loop::{self, Clock, Listening};
use crate::net::HandoffHeader;
use crate::sys::handoff::{HandoffReceiver, HandoffSender};
use crate::sys::sockets::KernelSockets;
use crate::tls::TlsNet;
use crate::worker::WorkerThaw;

/// The threads of the workers that come from another process, before they are workers.
#[derive(Debug)]
pub struct Arrivals {
    threads: Vec<Arriving>,
    senders: Vec<HandoffSender>,
}

#[derive(Debug)]
struct Arriving {
    thread: JoinHandle<()>,
    /// Reports that it has a descriptor table of its own, and that it has what came ahead.
    told: mpsc::Receiver<Result<(), StartError>>,
    begin: mpsc::Sender<(Thread, Started)>,
}

impl Arrivals {
    /// Starts the threads of the workers whose connections come through these ends. When this
    /// returns, each has a descriptor table of its own: what is opened afterwards is not in it.
    pub(super) fn start(
        ends: &[(HandoffSender, HandoffReceiver)],
        gate: &Arc<Gate>,
    ) -> Result<Arrivals, StartError> {
        let threads = ends.iter().enumerate().map(|(number, (_, handoffs))| {
            let (handoffs, gate) = (handoffs.clone(), Arc::clone(gate));
            let (tell, told) = mpsc::channel();
            let (begin, begun) = mpsc::channel();
            let thread = thread::builder(number as u16)
                .spawn(move || run(&handoffs, &gate, &tell, &begun))
                .map_err(system("start a thread"))?;
            Ok(Arriving { thread, told, begin })
        });
        let threads = threads.collect::<Result<_, StartError>>()?;
        let senders = ends.iter().map(|(sender, _)| sender.clone()).collect();
        let arrivals = Arrivals { threads, senders };
        arrivals.wait()?;
        Ok(arrivals)
    }

    /// Passes a worker its channel to the worker of the same number in the other process.
    pub fn pass(&self, worker: usize, channel: &OwnedFd) -> io::Result<()> {
        self.senders[worker].send(HandoffHeader::CHANNEL, channel.as_fd(), &[])
    }

    /// Waits until all have what comes ahead.
    pub fn wait(&self) -> Result<(), StartError> {
        let died = || StartError::TakeOver("a worker's thread has died".to_owned());
        self.threads
            .iter()
            .try_for_each(|arriving| arriving.told.recv().unwrap_or_else(|_| Err(died())))
    }

    /// Makes workers of the threads, the first of `threads`. Returns the threads.
    pub(super) fn begin(
        self,
        threads: impl Iterator<Item = (Thread, Started)>,
    ) -> Vec<JoinHandle<()>> {
        let begin = |(arriving, own): (Arriving, (Thread, Started))| {
            // If it has died, that is reported by what was to report its start.
            let _ = arriving.begin.send(own);
            arriving.thread
        };
        self.threads.into_iter().zip(threads).map(begin).collect()
    }
}

/// A thread that is to be a worker's.
fn run(
    handoffs: &HandoffReceiver,
    gate: &Gate,
    tell: &mpsc::Sender<Result<(), StartError>>,
    begun: &mpsc::Receiver<(Thread, Started)>,
) {
    let table = throng_host::private_table::unshare();
    let has_table = table.is_ok();
    // Nobody listens if the process is about to exit.
    let _ = tell.send(table.map_err(system("give a worker a descriptor table of its own")));
    if !has_table {
        return;
    }
    match Ahead::receive(handoffs, gate) {
        Ok(ahead) => {
            let _ = tell.send(Ok(()));
            if let Ok((thread, started)) = begun.recv() {
                thread.run(&started, Some(ahead));
            }
        }
        Err(error) => {
            let _ = tell.send(Err(error));
        }
    }
}

impl Thread {
    /// Receives the listeners, and the state of the worker whose sockets have come ahead.
    pub(super) fn arrive(&self, ahead: Ahead, clock: &Clock) -> Result<Prepared, StartError> {
        let (mut channel, mut copies, epoll) = ahead.into_parts();
        let Received { content, descriptors, .. } = channel.receive().map_err(lost)?;
        let mut listeners = self.new_listeners()?;
        let mut former = Vec::new();
        for (kind, socket) in content.into_iter().zip(descriptors) {
            let is_tls = kind != 0;
            if self.inherits[usize::from(is_tls)] {
                let steering = Arc::clone(&self.steering[usize::from(is_tls)]);
                listeners.push(Listening::new(socket, steering, is_tls));
            } else {
                former.push((socket, is_tls));
            }
        }
        let (mut worker, method) = self.worker()?;
        worker.net().inner().epoll = epoll;
        worker.set_now(clock.now());
        let mut thaw = WorkerThaw::new(worker);
        let passed = check(&mut thaw, &mut channel, &mut copies)?;
        copies.into_left().for_each(|copy| close(thaw.worker().net(), copy.socket));
        let mut sources = self.sources(listeners);
        sources.former = former;
        event_loop::register(thaw.worker(), &mut sources).map_err(system("wait for events"))?;
        let arrived = Box::new(Arrived::new(thaw, passed)?);
        Ok((Beginning::Arrived(arrived), sources, method))
    }
}

/// Receives the records of a worker and looks at them. Keeps the sockets that they need.
fn check(
    thaw: &mut WorkerThaw<TlsNet<KernelSockets>>,
    channel: &mut Channel,
    copies: &mut Copies,
) -> Result<Passed, StartError> {
    let mut failure = None;
    let passed = Passed::receive(channel, |record, socket| {
        let copy = copies.take(record);
        // At once: new connections need their descriptors.
        copies.take_left().for_each(|copy| close(thaw.worker().net(), copy.socket));
        // A fault of one connection is its own matter, and is logged when it is closed. After any
        // other fault `end_check` fails.
        let checked = thaw.check(record);
        let is_sound = checked.is_ok();
        failure = failure.take().or(checked.err());
        match socket {
            Socket::None => None,
            Socket::Here(socket) => Some(socket),
            Socket::Ahead => copy.map(|copy| {
                if is_sound && copy.is_watched() {
                    thaw.note_watched(record);
                }
                copy.socket
            }),
        }
    });
    let passed = passed.map_err(lost)?;
    let ended = thaw.end_check().map_err(|error| failure.unwrap_or(error));
    ended.map_err(|error| StartError::TakeOver(error.to_string()))?;
    Ok(passed)
}

/// Closes a copy whose connection has ended. It may be open elsewhere still: epoll would go on
/// reporting it here.
fn close(net: &mut TlsNet<KernelSockets>, copy: OwnedFd) {
    // Fails for one that is not there.
    let _ = net.inner().epoll.remove(&copy);
}
