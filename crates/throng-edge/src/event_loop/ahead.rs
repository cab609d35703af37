//! A worker that is about to leave sends copies of its sockets ahead, while it serves.
//!
//! Only of connections that stream: they stay with the worker until they end. A connection
//! that ends meanwhile is shut down, whatever copies there are (`sys/copies.rs`); one that comes
//! meanwhile travels with its state.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use throng_handover::channel::{Channel, ChannelError, DESCRIPTORS_MAX, SHORT_BYTES_MAX};
use throng_handover::message::Kind;

use super::sleep::RETRY_INTERVAL;
use crate::sys::sockets::KernelSockets;
use crate::tls::TlsNet;
use crate::worker::Worker;

/// How long any call may take; none waits.
const TIMEOUT: Duration = Duration::from_secs(1);

const TOKEN_BYTES: usize = size_of::<u64>();
const _: () = assert!(DESCRIPTORS_MAX * TOKEN_BYTES <= SHORT_BYTES_MAX);

/// The sending of one worker's sockets.
pub(crate) struct Ahead {
    channel: Channel,
    /// The place of the next connection.
    next: u32,
    /// True if the other process was behind.
    is_waiting: bool,
}

impl Ahead {
    pub(crate) fn begin(channel: OwnedFd) -> io::Result<Ahead> {
        Ok(Ahead { channel: Channel::new(channel, TIMEOUT)?, next: 0, is_waiting: false })
    }

    /// How long the thread may sleep before the next step.
    pub(super) fn sleep_max(&self) -> Duration {
        if self.is_waiting { RETRY_INTERVAL } else { Duration::ZERO }
    }

    /// Sends some, at most one message. Returns whether that was not the end.
    pub(super) fn step(&mut self, worker: &mut Worker<TlsNet<KernelSockets>>) -> bool {
        match self.send(worker) {
            Ok(goes_on) => goes_on,
            Err(error) => {
                // The other process has ended, or learns here that it cannot go on.
                tracing::debug!("sockets cannot be sent ahead: {error}");
                self.channel.shut();
                false
            }
        }
    }

    fn send(&mut self, worker: &mut Worker<TlsNet<KernelSockets>>) -> Result<bool, ChannelError> {
        let (mut content, mut sockets) = (Vec::new(), Vec::<BorrowedFd<'_>>::new());
        let mut next = self.next;
        for (token, socket) in worker.streams(self.next).take(DESCRIPTORS_MAX) {
            content.extend_from_slice(&token.bits().to_le_bytes());
            sockets.push(socket.as_fd());
            next = token.id().index() + 1;
        }
        self.is_waiting = !self.channel.try_send_with(Kind::Ahead, &content, &sockets)?;
        let numbers: Vec<RawFd> = sockets.iter().map(AsRawFd::as_raw_fd).collect();
        if self.is_waiting {
            return Ok(true);
        }
        self.next = next;
        let copies = &mut worker.net().inner().copies;
        numbers.iter().for_each(|number| copies.insert(*number));
        // A message without connections was the end.
        Ok(!numbers.is_empty())
    }
}
