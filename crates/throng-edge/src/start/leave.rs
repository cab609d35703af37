//! A worker leaves for another process, or returns.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use throng_handover::channel::{Channel, ChannelError};
use throng_handover::message::Kind;
use throng_handover::records::Frozen;

use super::assembly::Order;
use super::capacity::workers_min;
use super::error::cannot_go_on;
use super::succession::CHANNEL_TIMEOUT;
use super::thread::Thread;
use crate::event_loop::{self, Clock, Listening, Sources, ThreadWorker};
use crate::sys::sockets::KernelSockets;
use crate::tls::TlsNet;
use crate::worker::WorkerThaw;

/// How long a halted worker waits for what a journal has to answer.
const ANSWERS_TIMEOUT: Duration = Duration::from_secs(3);

const ANSWERS_INTERVAL: Duration = Duration::from_millis(1);

impl Thread {
    /// Leaves for another process. Returns the worker if it does not leave.
    pub(super) fn leave(
        &self,
        mut worker: ThreadWorker,
        sources: &mut Sources,
        clock: &Clock,
    ) -> Option<ThreadWorker> {
        let channel = sources.channel.take();
        let assembly = &self.succession.assembly;
        loop {
            match assembly.await_order() {
                Order::Settle => self.settle(&mut worker, sources, clock),
                Order::Send => break,
                Order::Leave | Order::Return => return Some(worker),
            }
        }
        worker.set_now(clock.now());
        let (frozen, net) = self.freeze(worker);
        let sent = channel.ok_or(ChannelError::Ended).and_then(|channel| {
            let channel = Channel::new(channel, CHANNEL_TIMEOUT).map_err(ChannelError::System)?;
            send(&channel, &sources.listeners, &frozen)
        });
        if let Err(error) = sent {
            assembly.fail(error.to_string());
        }
        let order = assembly.await_order();
        // Not before: it has all sockets in its epoll instance, which takes long to close.
        drop(net);
        match order {
            Order::Leave => None,
            _ => Some(self.thaw(frozen, sources, clock)),
        }
    }

    /// Ends the worker, once it is its turn. Returns what it was, and its net.
    fn freeze(&self, mut worker: ThreadWorker) -> (Frozen, TlsNet<KernelSockets>) {
        let turn = self.succession.freezing.begin(workers_min(&self.setup.settings));
        let mut frozen = Frozen::default();
        let copies = std::mem::take(&mut worker.net().inner().copies);
        let net = worker.freeze(&mut |record, socket| {
            let is_ahead = socket.as_ref().is_some_and(|socket| copies.contains(socket));
            frozen.push(&record, socket, is_ahead);
            turn.frozen(record.len());
        });
        if let Some(error) = frozen.finish() {
            tracing::warn!(
                "state cannot be put into memory that both processes share: {error}; it is there \
                 twice"
            );
        }
        (frozen, net)
    }

    /// Finishes what is under way between the workers.
    fn settle(&self, worker: &mut ThreadWorker, sources: &mut Sources, clock: &Clock) {
        let mut buffer = Vec::new();
        let deadline = Instant::now() + ANSWERS_TIMEOUT;
        loop {
            worker.set_now(clock.now());
            // Before the queue is looked at: what the engine has answered is there.
            let is_answered = self.setup.engine.is_at_rest();
            let mut has_done_something = false;
            while event_loop::receive_handoff(worker, sources, &mut buffer) {
                has_done_something = true;
            }
            has_done_something |= !self.setup.queue.is_empty();
            worker.close_unfinished();
            // Unanswered publications may keep other messages from being settled.
            worker.take_in(!is_answered);
            if is_answered && !has_done_something {
                worker.prepare_to_freeze();
            }
            let is_late = !is_answered && Instant::now() > deadline;
            if is_late {
                let why = "the journal, a disk or NATS, does not answer; try again";
                self.succession.assembly.fail(why.to_owned());
            }
            let is_done = !has_done_something && (is_answered || is_late);
            if self.succession.assembly.vote(is_done, self.to_workers.len()) {
                return;
            }
            if !is_answered {
                std::thread::sleep(ANSWERS_INTERVAL);
            }
        }
    }

    /// The worker as it was before it was frozen.
    fn thaw(&self, frozen: Frozen, sources: &mut Sources, clock: &Clock) -> ThreadWorker {
        let mut worker = match self.worker() {
            Ok((worker, _)) => worker,
            Err(error) => cannot_go_on(&error),
        };
        worker.set_now(clock.now());
        let mut thaw = WorkerThaw::new(worker);
        let read = frozen.into_records(|record, socket| {
            // Of a connection that cannot be thawed only the socket is closed. `finish` tells
            // whether anything else is wrong.
            let _ = thaw.record(record, socket);
            Ok::<(), ChannelError>(())
        });
        let mut worker = match (read, thaw.finish()) {
            (Ok(()), Ok(worker)) => worker,
            (Err(error), _) => cannot_go_on(&error),
            (_, Err(error)) => cannot_go_on(&error),
        };
        if let Err(error) = event_loop::register(&mut worker, sources) {
            cannot_go_on(&error);
        }
        worker
    }
}

/// Sends the listeners and everything that was frozen. A message without records is the end.
fn send(channel: &Channel, listeners: &[Listening], frozen: &Frozen) -> Result<(), ChannelError> {
    let (sockets, kinds): (Vec<BorrowedFd<'_>>, Vec<u8>) = listeners
        .iter()
        .map(|listening| {
            let (socket, is_tls) = listening.socket();
            (socket.as_fd(), u8::from(is_tls))
        })
        .unzip();
    channel.send_with(Kind::State, &kinds, &sockets)?;
    frozen.send(channel)?;
    channel.send_with(Kind::State, &[], &[])
}
