//! A worker that has arrived from another process, and is thawed once it may act.

use throng_handover::channel::ChannelError;
use throng_handover::records::Passed;

use super::error::{StartError, cannot_go_on};
use crate::event_loop::{Clock, ThreadWorker};
use crate::sys::sockets::KernelSockets;
use crate::tls::TlsNet;
use crate::worker::WorkerThaw;

/// Bytes that a worker may take for each byte that it was frozen to. Kinds of connections differ:
/// 39 bytes become 56, and a few more what is half read or half written.
const ROOM_FACTOR: usize = 4;

/// A worker of another process of which everything is here and checked. Its connections are to be
/// thawed once it may act: until then, the other process has the memory that they will take.
pub(super) struct Arrived {
    thaw: WorkerThaw<TlsNet<KernelSockets>>,
    passed: Passed,
    /// As much as the connections will take, which nothing else can get meanwhile. No page of it is
    /// touched.
    room: Vec<u8>,
}

impl Arrived {
    /// Fails if there is too little memory.
    pub(super) fn new(
        thaw: WorkerThaw<TlsNet<KernelSockets>>,
        passed: Passed,
    ) -> Result<Arrived, StartError> {
        let mut room = Vec::new();
        let bytes = usize::try_from(passed.len()).unwrap_or(usize::MAX);
        let reserved = room.try_reserve_exact(bytes.saturating_mul(ROOM_FACTOR));
        reserved.map_err(|_| StartError::TakeOver("there is too little memory".to_owned()))?;
        Ok(Arrived { thaw, passed, room })
    }

    /// The worker. It may act.
    pub(super) fn thaw(self, clock: &Clock) -> ThreadWorker {
        let Arrived { mut thaw, passed, room } = self;
        drop(room);
        thaw.worker().set_now(clock.now());
        let read = passed.into_records(|record, socket| {
            // Of a connection that cannot be thawed only the socket is closed.
            if let Err(error) = thaw.record(record, socket) {
                tracing::error!("a connection cannot be taken over: {error}");
            }
            Ok::<(), ChannelError>(())
        });
        match (read, thaw.finish()) {
            (Ok(()), Ok(worker)) => worker,
            (Err(error), _) => cannot_go_on(&error),
            (_, Err(error)) => cannot_go_on(&error),
        }
    }
}
