//! The memory that the server may use: how much of it each part may take, and what is given up when
//! it is nearly used up.
//!
//! The parts are planned so that all of them fit. Memory outside of the plan, such as buffers of
//! the kernel, is watched: a thread reads the usage, and decides on the steps of [`MemoryDefence`].

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use throng_core::parts::OPEN_BYTES_MAX;
use throng_core::{
    Channels, ConnectionName, FoundConnection, MemoryDefence, MemoryPressure, MemoryStep,
    ScanAction, ScanTarget, Scanned, Ticket,
};
use throng_host::limits::MemoryMeter;
use throng_units::format::bytes;

use crate::planes::Workers;

/// Time between two readings. At the pace of a fast network little more than a hundredth of a
/// gigabyte comes meanwhile.
const INTERVAL: Duration = Duration::from_millis(50);

/// While memory is short, time between two returns of freed memory to the system, which hold the
/// allocator's locks.
const RETURN_INTERVAL: Duration = Duration::from_secs(1);

/// The thread keeps no buffers.
const STACK_BYTES: usize = 128 << 10;

/// Connections that one round may close.
const CLOSED_PER_ROUND: usize = 256;

/// A connection for which less waits is not closed: that would free nothing, and any client may be
/// behind for a moment.
const HELD_BYTES_MIN: u64 = 16 << 10;

/// Limits of the server's parts, where their settings allow more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryPlan {
    /// All logs together.
    pub(crate) logs: usize,
    /// Incomplete requests and unread responses of workers.
    pub(crate) buffered: usize,
    /// Messages for subscribers that do not read.
    pub(crate) blocked: usize,
    /// Responses of the control plane, of each of two kinds.
    pub(crate) answers: u64,
    /// Messages that arrive at the control plane.
    pub(crate) messages: u64,
    /// Batches that arrive there.
    pub(crate) batches: u64,
    /// Parts of logs that are on a disk or in a stream, which wait for clients.
    pub(crate) parts: usize,
    /// The store of the data directory holds this much of what it has yet to write to files. Small
    /// entries take twice that.
    pub(crate) memtables: u64,
    /// Blocks of the store's files that were read.
    pub(crate) blocks: u64,
}

/// Blocks of the store's files take no more, however much memory there is.
const BLOCKS_BYTES_MAX: u64 = 64 << 20;

impl MemoryPlan {
    /// A plan for this limit. A quarter is for the program itself, connections, and the kernel.
    pub(crate) fn new(limit_bytes: u64) -> MemoryPlan {
        let part = |divisor: u64| limit_bytes / divisor;
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        MemoryPlan {
            logs: size(part(4)),
            buffered: size(part(8)),
            blocked: size(part(8)),
            answers: part(32),
            messages: part(16),
            batches: part(8),
            parts: size(part(16)).min(OPEN_BYTES_MAX),
            memtables: part(32),
            blocks: part(32).min(BLOCKS_BYTES_MAX),
        }
    }

    /// The same with a data directory, whose store and parts of logs get half of what logs in
    /// memory may take.
    pub(crate) fn with_data(self) -> MemoryPlan {
        MemoryPlan { logs: self.logs / 2, ..self }
    }

    /// The plan where nothing says how much memory there is.
    pub(crate) fn unlimited() -> MemoryPlan {
        MemoryPlan::new(u64::MAX)
    }
}

/// Starts the thread that watches the memory, if there is a meter for it. It runs until the process
/// ends.
///
/// # Errors
///
/// There is no room for a thread.
pub(crate) fn watch(
    meter: Option<MemoryMeter>,
    pressure: &Arc<MemoryPressure>,
    channels: &Arc<Channels>,
    workers: &Arc<Workers>,
) -> Result<()> {
    let Some(meter) = meter else { return Ok(()) };
    let mut watch = Watch {
        meter,
        pressure: Arc::clone(pressure),
        channels: Arc::clone(channels),
        workers: Arc::clone(workers),
        defence: MemoryDefence::default(),
        returned: Instant::now(),
        found: None,
    };
    let builder = thread::Builder::new().name("memory".into()).stack_size(STACK_BYTES);
    let run = move || {
        loop {
            watch.turn();
            thread::sleep(INTERVAL);
        }
    };
    builder.spawn(run).context("cannot start the thread that watches the memory")?;
    Ok(())
}

struct Watch {
    meter: MemoryMeter,
    pressure: Arc<MemoryPressure>,
    channels: Arc<Channels>,
    workers: Arc<Workers>,
    defence: MemoryDefence,
    /// When freed memory was last returned to the system.
    returned: Instant,
    /// The answer to come about who is behind.
    found: Option<Receiver<Option<Scanned>>>,
}

impl Watch {
    fn turn(&mut self) {
        // Without a reading the step stays.
        let Some((used, limit)) = self.meter.read() else { return };
        let (before, step) = (self.pressure.step(), self.defence.step(used, limit));
        self.pressure.report(used, limit, step);
        if step != before {
            self.channels.set_memory_short(step >= MemoryStep::Shrink);
            log(before, step, used, limit);
        }
        if step >= MemoryStep::Shrink && self.returned.elapsed() >= RETURN_INTERVAL {
            throng_edge::release_unused_memory();
            self.returned = Instant::now();
        }
        if step == MemoryStep::CloseSlow {
            self.close_slow(self.defence.excess_bytes(used, limit));
        } else {
            self.found = None;
        }
    }

    /// Closes those that hold most, once the workers have said who that is; otherwise asks them.
    fn close_slow(&mut self, excess_bytes: u64) {
        let found = match self.found.as_ref().map(Receiver::try_recv) {
            Some(Err(TryRecvError::Empty)) => return,
            Some(Ok(Some(scanned))) => scanned.connections,
            Some(Ok(None) | Err(TryRecvError::Disconnected)) | None => {
                let (sender, answer) = mpsc::channel();
                // An answer that comes when it is not wanted any more is dropped.
                let ticket = Ticket::new(move |scanned| drop(sender.send(scanned)));
                let action = ScanAction::List { limit: CLOSED_PER_ROUND };
                self.workers.post_scan(ScanTarget::Behind, action, ticket);
                self.found = Some(answer);
                return;
            }
        };
        self.found = None;
        let names = holders(&found, excess_bytes);
        if !names.is_empty() {
            tracing::warn!(connections = names.len(), "memory is short: closing the slowest");
            let target = ScanTarget::Connections(names);
            self.workers.post_scan(target, ScanAction::CloseForMemory, Ticket::new(drop));
        }
    }
}

/// Those of the connections, which hold most first, that hold as much as is in excess.
fn holders(found: &[FoundConnection], excess_bytes: u64) -> Vec<ConnectionName> {
    let mut left = excess_bytes;
    let mut names = Vec::new();
    for connection in found {
        let held = connection.lag.as_ref().map_or(0, |lag| lag.held_bytes());
        if left == 0 || held < HELD_BYTES_MIN {
            break;
        }
        left = left.saturating_sub(held);
        names.push(connection.name);
    }
    names
}

fn log(before: MemoryStep, step: MemoryStep, used: u64, limit: u64) {
    let (used, limit) = (bytes(used as f64), bytes(limit as f64));
    if step > before {
        tracing::warn!(step = step.word(), used, limit, "{}", step.message());
    } else {
        tracing::info!(step = step.word(), used, limit, "memory is less short: {}", step.message());
    }
}

#[cfg(test)]
mod tests {
    use throng_core::{FoundLag, FoundTransport};

    use super::*;

    fn connection(name: u64, bytes: u64, kernel_bytes: u64) -> FoundConnection {
        let (user, channels) = (None, Vec::new());
        let lag = FoundLag {
            since_ms: 0,
            messages: 1,
            bytes,
            kernel_bytes,
            user,
            channels,
            subscriptions: 1,
        };
        FoundConnection {
            name: ConnectionName::numbered(name),
            transport: FoundTransport::Sse,
            since_ms: None,
            peer: None,
            proxied: None,
            lag: Some(Box::new(lag)),
        }
    }

    #[test]
    fn those_that_hold_most_are_closed_until_the_excess_is_covered() {
        let found = [
            connection(1, 100 << 10, 100 << 10),
            connection(2, 0, 90 << 10),
            connection(3, 20 << 10, 0),
            connection(4, 10 << 10, 0),
        ];
        let closed = |excess| -> Vec<u64> {
            holders(&found, excess).iter().map(|name| name.number()).collect()
        };
        assert_eq!(closed(0), [0; 0]);
        assert_eq!(closed(1), [1]);
        assert_eq!(closed(200 << 10), [1]);
        assert_eq!(closed(201 << 10), [1, 2]);
        assert_eq!(closed(1 << 30), [1, 2, 3], "the last holds too little to matter");
    }

    #[test]
    fn the_parts_of_the_plan_fit_the_limit() {
        let limit = 64 << 20;
        let sum = |plan: MemoryPlan| {
            let MemoryPlan { logs, buffered, blocked, answers, messages, batches, .. } = plan;
            (logs + buffered + blocked) as u64 + 2 * answers + messages + batches
        };
        assert!(sum(MemoryPlan::new(limit)) <= limit / 4 * 3);
        let plan = MemoryPlan::new(limit).with_data();
        let MemoryPlan { parts, memtables, blocks, .. } = plan;
        let sum = sum(plan) + parts as u64 + 2 * memtables + blocks;
        assert!(sum <= limit / 5 * 4, "{sum}");
        assert!(MemoryPlan::unlimited().logs > 1 << 40);
    }
}
