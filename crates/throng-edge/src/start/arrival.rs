//! A worker arrives from another process, on the thread and into the descriptor table that it goes
//! on with.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use throng_handover::channel::{Channel, ChannelError, Received};
use throng_handover::message::Kind;
use throng_handover::records;

use super::error::{StartError, system};
use super::gate::Gate;
use super::succession::CHANNEL_TIMEOUT;
use super::thread::{Prepared, Thread};
use crate::event_loop::{self, Clock, Listening};
use crate::worker::WorkerThaw;

/// How often a thread that waits for its channel looks whether the other process has given up.
const LOOK: Duration = Duration::from_millis(20);

impl Thread {
    /// Receives the listeners and the connections of the worker.
    pub(super) fn arrive(&self, gate: &Arc<Gate>, clock: &Clock) -> Result<Prepared, StartError> {
        let channel = self.channel(gate)?;
        let mut channel =
            Channel::new(channel, CHANNEL_TIMEOUT).map_err(system("take over a worker"))?;
        let lost = |error: ChannelError| StartError::TakeOver(error.to_string());
        let Received { content, descriptors, .. } = channel.receive().map_err(lost)?;
        let mut listeners = Vec::new();
        for (kind, socket) in content.into_iter().zip(descriptors) {
            let is_tls = kind != 0;
            let steering = Arc::clone(&self.steering[usize::from(is_tls)]);
            listeners.push(Listening::new(socket, steering, is_tls));
        }
        let (mut worker, method) = self.worker()?;
        worker.set_now(clock.now());
        let mut thaw = WorkerThaw::new(worker);
        loop {
            let Received { kind, content, descriptors } = channel.receive().map_err(lost)?;
            if kind != Kind::State {
                return Err(StartError::TakeOver("a message came out of order".to_owned()));
            }
            if content.is_empty() {
                break;
            }
            let read = records::read(&content, descriptors, |record, socket| {
                // Of a connection that cannot be thawed only the socket is closed. `finish` tells
                // whether anything else is wrong.
                let read = thaw.record(record, socket);
                if let Err(error) = read {
                    tracing::error!("a connection cannot be taken over: {error}");
                }
                Ok::<(), ChannelError>(())
            });
            read.map_err(lost)?;
        }
        let mut worker = thaw.finish().map_err(|error| StartError::TakeOver(error.to_string()))?;
        let mut sources = self.sources(listeners);
        event_loop::register(&mut worker, &mut sources).map_err(system("wait for events"))?;
        Ok((worker, sources, method))
    }

    /// Waits for the worker's channel, which comes as handoffs do.
    fn channel(&self, gate: &Gate) -> Result<OwnedFd, StartError> {
        let deadline = Instant::now() + 4 * CHANNEL_TIMEOUT;
        let mut buffer = Vec::new();
        while !gate.is_shut() && Instant::now() < deadline {
            let wait = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
            // An error means a turn without a wait.
            let _ = poll(&mut [PollFd::new(&self.handoffs, PollFlags::IN)], Some(&wait));
            let received = self.handoffs.receive(&mut buffer);
            match received.map_err(system("take over a worker"))? {
                Some((header, Some(socket))) if header.is_channel => return Ok(socket),
                Some(_) => {
                    return Err(StartError::TakeOver("a worker's channel is lost".to_owned()));
                }
                None => {}
            }
        }
        Err(StartError::TakeOver("the running server has given up".to_owned()))
    }
}
