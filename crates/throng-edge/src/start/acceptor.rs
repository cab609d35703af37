//! Accepts the connections of a listener that the service manager has opened, and hands them off to
//! the workers.
//!
//! Workers cannot have listeners of their own on its port: the kernel lets only sockets of one user
//! share a port, and the service manager is another user. So each connection takes a handoff.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use throng_core::{Admission, AdmissionSettings, QueueLook, QueueWatch, WorkerId};

use super::gate::Gate;
use super::succession::Succession;
use crate::counters::Counter;
use crate::event_loop::TakesConnections;
use crate::event_loop::steering::Steering;
use crate::metrics::Metrics;
use crate::net::HandoffHeader;
use crate::sys::handoff::HandoffSender;
use crate::sys::{listener, sockets};

/// How often the thread looks whether workers take connections, and how long it waits for workers
/// that take none for now.
const PAUSE: Duration = Duration::from_millis(100);

/// While the queue is not empty, one connection of this many shows how long it is.
const LOOK_EVERY: u32 = 64;

/// The thread's stack. It keeps no buffers.
const STACK_BYTES: usize = 128 << 10;

/// The thread before its start.
#[derive(Debug)]
pub(super) struct Acceptor {
    pub(super) listener: Arc<OwnedFd>,
    pub(super) to_workers: Vec<HandoffSender>,
    pub(super) steering: Arc<Steering>,
    pub(super) metrics: Metrics,
    pub(super) admission: Arc<Admission>,
    pub(super) takers: TakesConnections,
    pub(super) succession: Arc<Succession>,
}

impl Acceptor {
    /// Starts the thread, which begins when the workers may act, and ends once none takes
    /// connections. What waits in the listener then is for the next process.
    pub(super) fn spawn(self, gate: Option<Arc<Gate>>) -> io::Result<JoinHandle<()>> {
        let builder = std::thread::Builder::new().name("acceptor".into()).stack_size(STACK_BYTES);
        builder.spawn(move || {
            if gate.is_some_and(|gate| !gate.wait()) {
                return;
            }
            let mut queue = QueueWatch::default();
            // Connections accepted since the queue was empty.
            let mut accepted = 0_u32;
            while self.takers.has_any() {
                // While the workers may leave for another process, connections wait in the backlog.
                let _may_hand_out = self.succession.await_permission();
                match sockets::accept(&self.listener) {
                    Ok(Some(socket)) => {
                        accepted = accepted.wrapping_add(1);
                        if accepted.is_multiple_of(LOOK_EVERY) {
                            self.look(&mut queue, &socket);
                        }
                        self.hand_out(&socket);
                    }
                    Ok(None) => {
                        if std::mem::take(&mut accepted) >= LOOK_EVERY {
                            queue.emptied();
                            self.show(queue);
                        }
                        sockets::wait_readable(&self.listener, PAUSE);
                    }
                    Err(_) => {
                        // Descriptors or memory are short.
                        let worker = self.metrics.worker(WorkerId(0));
                        worker.counters.add(Counter::AcceptFailed, 1);
                        std::thread::sleep(PAUSE);
                    }
                }
            }
        })
    }

    /// Looks how long a connection has waited.
    fn look(&self, queue: &mut QueueWatch, socket: &OwnedFd) {
        let Some(&AdmissionSettings { wait, rate }) = self.admission.settings() else { return };
        let (waited, queued) = (sockets::waited(socket), listener::queued(&self.listener));
        let look = QueueLook { at: Instant::now(), waited, queued, accepted: LOOK_EVERY, rate };
        queue.observe(wait, look);
        self.show(*queue);
    }

    /// Shows the workers how long the queue is.
    fn show(&self, queue: QueueWatch) {
        self.admission.set_shared_queue(&queue);
        self.metrics.workers()[0].set_queue_wait(queue.waited());
    }

    /// Hands a connection off to the least loaded worker of those that take connections now.
    fn hand_out(&self, socket: &OwnedFd) {
        while self.takers.has_any() {
            let number = self.steering.least_loaded();
            let place = self.metrics.workers()[number].keep_place();
            if self.to_workers[number].send(HandoffHeader::NEW, socket.as_fd(), &[]).is_ok() {
                return place.travel();
            }
            // So many are on their way to the worker that its channel is full.
            std::thread::sleep(PAUSE);
        }
    }
}
