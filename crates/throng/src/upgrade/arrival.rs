//! The new process: takes over from the one that has started it.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use rustix::net::sockopt::socket_peercred;
use throng_access::KeptSubscriptions;
use throng_access::revocation::PassedFile;
use throng_access::session::Tagger;
use throng_control::{Control, Handoff, UpgradeState};
use throng_core::{
    MemoryEngine, MemoryThaw, PresenceEventSettings, PresenceEvents, PresenceThaw, WatchedPresence,
    clock, frozen,
};
use throng_edge::{Arrivals, PassedPorts};
use throng_handover::channel::{Channel, ChannelError, Received};
use throng_handover::message::{DescriptorKind, Kind, MARK, Message, OF_WORKER, PROTOCOL, Welcome};
use throng_handover::phase;
use throng_handover::records;

use super::victim::Victim;
use super::{ahead, parts};
use crate::journals::PreparedJournals;
use crate::version;

/// Says that standard input leads to a server to take over from.
pub(super) const VARIABLE: &str = "TAKE_OVER_FROM_THRONG";

/// True if this process has been started to take over.
pub(crate) fn takes_over() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// How long the running server may take to answer: it may first finish requests.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The server that this process takes over from.
#[derive(Debug)]
pub(crate) struct Arrival {
    channel: Channel,
    phase: phase::Successor,
    welcome: Welcome,
    descriptors: HashMap<u8, OwnedFd>,
    victim: Victim,
    /// The id of the running server.
    predecessor: i32,
    /// How long after the last word the workers acted.
    later: Duration,
}

impl Arrival {
    /// Greets the server that has started this process to take over; `None` if none has.
    ///
    /// # Errors
    ///
    /// There is no such server, or it does not understand this version.
    pub(crate) fn begin() -> Result<Option<Arrival>> {
        if !takes_over() {
            return Ok(None);
        }
        let channel = io::stdin().as_fd().try_clone_to_owned()?;
        let parent = socket_peercred(&channel).ok().map(|peer| peer.pid);
        // A variable that somebody has set, or that a program has inherited.
        if parent.is_none() || parent != rustix::process::getppid() {
            bail!("{VARIABLE} is set, and no server has started this one to take over; unset it");
        }
        let victim = Victim::volunteer();
        rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
        let mut channel = Channel::new(channel, TIMEOUT)?;
        if !is_released(std::env::var(VARIABLE).ok().as_deref()) {
            channel.send(&Message::Refused(UNRELEASED.into()))?;
            bail!(UNRELEASED);
        }
        channel.send(&Message::Hello {
            protocol: PROTOCOL,
            frozen: frozen::VERSION,
            build: version::BUILD.into(),
        })?;
        let mut phase = phase::Successor::default();
        let (message, descriptors) = channel.receive_message()?;
        phase.received(message.kind())?;
        let Message::Welcome(welcome) = message else { bail!(phase::OutOfOrder) };
        ensure!(welcome.listeners.len() == descriptors.len(), "a listener was lost on the way");
        let numbers = welcome.listeners.iter().map(|listener| *listener as u8);
        let descriptors = numbers.zip(descriptors).collect();
        let predecessor = parent.map_or(0, |parent| parent.as_raw_nonzero().get());
        let later = Duration::ZERO;
        Ok(Some(Arrival { channel, phase, welcome, descriptors, victim, predecessor, later }))
    }

    /// Takes a descriptor that came with the greeting.
    pub(crate) fn take(&mut self, listener: DescriptorKind) -> Option<OwnedFd> {
        self.descriptors.remove(&(listener as u8))
    }

    /// The ports of the workers.
    pub(crate) fn ports(&mut self) -> PassedPorts {
        PassedPorts {
            workers: self.welcome.workers as usize,
            reservation: self.take(DescriptorKind::Reservation),
            tls_reservation: self.take(DescriptorKind::TlsReservation),
            listener: self.take(DescriptorKind::Passed),
        }
    }

    /// Makes the same tags of sessions.
    pub(crate) fn tagger(&self) -> Tagger {
        Tagger::from_seed(self.welcome.tag_seed)
    }

    /// The keys of session tickets.
    pub(crate) fn ticket_keys(&self) -> &[u8] {
        &self.welcome.ticket_keys
    }

    /// Says that this process has its settings and can begin, and takes the logs that come ahead,
    /// while the `workers` take copies of sockets. Then waits for the rest of the logs, which
    /// `thaw` reads, for the records of the `journals`, and for what the server keeps for users,
    /// which goes to `kept`.
    ///
    /// # Errors
    ///
    /// The running server has given up or ended, or this version cannot read its state.
    pub(crate) fn memory(
        &mut self,
        mut thaw: MemoryThaw,
        journals: &mut PreparedJournals,
        kept: Option<&KeptSubscriptions>,
        workers: &Arrivals,
    ) -> Result<MemoryEngine> {
        let ready = self.phase.is_ready()?;
        self.channel.send(&ready)?;
        self.take_ahead(&mut thaw, workers)?;
        self.records(|record| thaw.record(record).context("the logs"))?;
        let memory = thaw.finish().context("the logs")?;
        for read in journals.readers() {
            self.records(read)?;
        }
        self.records(|record| kept.map_or(Ok(()), |kept| parts::thaw_kept(record, kept)))?;
        Ok(memory)
    }

    /// Takes what comes ahead, while the running server goes on.
    fn take_ahead(&mut self, thaw: &mut MemoryThaw, workers: &Arrivals) -> Result<()> {
        let (mut passed, mut bytes) = (0, 0);
        loop {
            let Received { kind, content, descriptors } =
                self.channel.receive().map_err(given_up)?;
            self.phase.received(kind)?;
            ensure!(kind == Kind::Ahead, phase::OutOfOrder);
            let Some(descriptor) = descriptors.first() else { break };
            if content == OF_WORKER {
                ensure!(passed < self.welcome.workers as usize, phase::OutOfOrder);
                workers.pass(passed, descriptor).context("a worker's channel")?;
                passed += 1;
            } else {
                bytes += ahead::take(thaw, descriptor.as_fd())?;
            }
        }
        ensure!(passed == self.welcome.workers as usize, phase::OutOfOrder);
        workers.wait()?;
        ahead::check_room(bytes)?;
        let has_ahead = self.phase.has_ahead()?;
        Ok(self.channel.send(&has_ahead)?)
    }

    /// Waits for the presence events already sent to subscribers, of a server with these settings.
    /// `watched` is from the memory, whose workers have not been thawed.
    ///
    /// # Errors
    ///
    /// As [`Arrival::memory`].
    pub(crate) fn presence_events(
        &mut self,
        settings: Option<PresenceEventSettings>,
        watched: &WatchedPresence,
    ) -> Result<Option<PresenceEvents>> {
        let mut thaw = settings.map(|settings| PresenceThaw::new(settings, clock::now_ms()));
        self.records(|record| {
            let read = thaw.as_mut().map_or(Ok(()), |thaw| thaw.record(record, watched));
            read.context("the presence events")
        })?;
        Ok(thaw.map(PresenceThaw::finish))
    }

    /// Waits for the file of revocations; `None` if the running server has none.
    ///
    /// # Errors
    ///
    /// As [`Arrival::memory`].
    pub(crate) fn revocations(&mut self) -> Result<Option<PassedFile>> {
        let descriptors = self.state()?.descriptors;
        Ok(<[OwnedFd; 2]>::try_from(descriptors).ok().map(PassedFile::new))
    }

    /// Waits for what the control plane of the running server has counted.
    ///
    /// # Errors
    ///
    /// As [`Arrival::memory`].
    pub(crate) fn counted(&mut self) -> Result<Vec<Vec<u8>>> {
        let mut counted = Vec::new();
        self.records(|record| {
            counted.push(record.to_vec());
            Ok(())
        })?;
        Ok(counted)
    }

    /// Reads records until their end.
    fn records(&mut self, mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        loop {
            let Received { content, .. } = self.state()?;
            if content.is_empty() {
                return Ok(());
            }
            records::read(&content, Vec::new(), |record, _| each(record))?;
        }
    }

    fn state(&mut self) -> Result<Received> {
        let received = self.channel.receive().map_err(given_up)?;
        self.phase.received(received.kind)?;
        ensure!(received.kind == Kind::State, phase::OutOfOrder);
        Ok(received)
    }

    /// Says that everything is here, and waits for the last word. When this returns, the running
    /// server acts no more: this one does, once `begin` has returned.
    ///
    /// # Errors
    ///
    /// It has given up or ended.
    pub(crate) fn finish(&mut self, begin: impl FnOnce()) -> Result<()> {
        // Memory used to read the state, while the state itself takes most of it.
        throng_edge::release_unused_memory();
        let has_all = self.phase.has_all()?;
        self.channel.send(&has_all)?;
        let (message, _) = self.channel.receive_message().map_err(given_up)?;
        self.phase.received(message.kind())?;
        ensure!(self.phase.serves(), phase::OutOfOrder);
        let heard = Instant::now();
        self.victim.serve();
        begin();
        self.later = heard.elapsed();
        Ok(())
    }

    /// Says that this process serves, and receives the connections between two requests that no
    /// worker had.
    pub(crate) fn receive_rest(mut self, control: &Control) {
        // It may have died.
        let _ = self.channel.send(&Message::Serves(self.later.as_micros() as u64));
        let done = |pause_ms| {
            let (own, old) = (std::process::id(), self.predecessor);
            let message = format!("process {own} has taken over from process {old}");
            control.health().set_upgrade(UpgradeState::Done, &message, pause_ms);
        };
        done(None);
        loop {
            match self.channel.receive() {
                Ok(received) if received.descriptors.is_empty() => {
                    done(parts::unpack_pause(&received.content));
                }
                Ok(received) => {
                    if let Some((listener, handoff)) = handoff(received) {
                        control.hold().put_moved(listener, handoff);
                    }
                }
                // The running server has sent all.
                Err(ChannelError::Ended) => return,
                Err(error) => return tracing::warn!("connections may be lost: {error}"),
            }
        }
    }

    /// Tells the running server why this process cannot take over.
    pub(crate) fn refuse(&mut self, reason: &anyhow::Error) {
        // It may have gone, or given up.
        let _ = self.channel.send(&Message::Refused(format!("{reason:#}")));
    }
}

const UNRELEASED: &str = "the running server is of a build from before version 0.1.0, which this \
                          version cannot take over from; restart instead";

/// True if the server that set [`VARIABLE`] to this counts the versions of the protocol as this one
/// does. The number behind the mark tells a later version which one to greet it with.
fn is_released(value: Option<&str>) -> bool {
    let number = value.and_then(|value| value.strip_prefix(MARK)?.strip_prefix('/'));
    number.is_some_and(|number| number.parse::<u16>().is_ok())
}

fn handoff(received: Received) -> Option<(throng_core::Listener, Handoff)> {
    let socket = received.descriptors.into_iter().next()?;
    match parts::unpack(received.content, socket) {
        Ok(handoff) => Some(handoff),
        Err(error) => {
            tracing::warn!("a connection is lost: {error}");
            None
        }
    }
}

fn given_up(error: ChannelError) -> anyhow::Error {
    match error {
        ChannelError::Ended => anyhow!("the running server has given up or ended"),
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreleased_server_is_known_by_its_variable() {
        assert!(is_released(Some("throng/1")) && is_released(Some("throng/2")));
        for unreleased in [Some("1"), Some("4"), Some("throng/"), Some("yes"), None] {
            assert!(!is_released(unreleased), "{unreleased:?}");
        }
    }

    #[test]
    fn the_end_of_the_channel_says_nothing_about_the_other() {
        let message = given_up(ChannelError::Ended).to_string();
        assert_eq!(message, "the running server has given up or ended");
    }
}
