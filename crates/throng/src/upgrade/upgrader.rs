//! The running server: starts a new process and gives it everything, or goes on.
//!
//! | step | who serves | when it fails |
//! |---|---|---|
//! | the new process starts, and loads its settings | this one | this one goes on |
//! | logs, in memory that both map, and copies of sockets are sent ahead | this one | the same |
//! | no request begins; those that have begun end | the workers of this one | the same |
//! | all workers halt, freeze and send; the logs are sent | nobody | the workers thaw, and go on |
//! | the new process has checked all of it: it is told to serve | nobody | unsent, the same |
//! | its workers thaw, and it says that it serves | the new one | there is no way back |
//! | this process writes what slow clients have not read, and ends | the new one | |

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::Shutdown;
use rustix::process::Pid;
use throng_access::AccessControl;
use throng_certificates::ServerTls;
use throng_control::{Control, UpgradeState};
use throng_core::{Channels, frozen};
use throng_edge::Edge;
use throng_handover::channel::{Channel, ChannelError};
use throng_handover::message::{DescriptorKind, Kind, Message, OF_WORKER, PROTOCOL, Welcome};
use throng_handover::phase::{OutOfOrder, Predecessor};

use super::binary::SuccessorBinary;
use super::reloads::Reloads;
use super::{ahead, parent, parts};
use crate::control_socket::ControlSocket;
use crate::dev::DevSecrets;
use crate::journals::{Backups, Journals};
use crate::presence_events::PresenceShared;
use crate::service::notify;
use crate::watch::Rest;

/// How long the new process may take to start and to load its settings.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// How long nothing may be delivered at most: then this process goes on.
const PAUSE_MAX: Duration = Duration::from_secs(15);

/// How long the watchdog of systemd is fed for workers that stand still: for the pause, and for the
/// data directory, which may have to be opened again.
const REST_MAX: Duration = Duration::from_secs(45);

/// How long the new process may take to say that it serves, once it has been told to.
const SERVES_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a reason of the new process is waited for once something has failed. It is sent before
/// the process ends, but after its workers' channels have been closed.
const REASON_PATIENCE: Duration = Duration::from_millis(200);

/// The time for requests that have begun. After it, bodies that are still arriving are refused.
const REQUESTS_PATIENCE: Duration = Duration::from_secs(2);

/// The time after which an upgrade is given up because requests have not ended.
const REQUESTS_TIMEOUT: Duration = Duration::from_secs(6);

/// The time for TLS handshakes that have begun. After it they are closed.
const HANDSHAKES_PATIENCE: Duration = Duration::from_secs(1);

/// How often it is looked whether requests have ended, and how often in a row they must have: a
/// connection on its way between the planes is counted by neither for a moment.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
const CHECKS: u32 = 2;

/// The parts of the running server that an upgrade needs.
pub(crate) struct Running {
    pub(crate) channels: Arc<Channels>,
    pub(crate) journals: Journals,
    pub(crate) access: Arc<AccessControl>,
    pub(crate) tls: Option<Arc<ServerTls>>,
    pub(crate) presence_events: Option<PresenceShared>,
    /// The listeners that no worker has.
    pub(crate) listeners: Vec<(DescriptorKind, OwnedFd)>,
    pub(crate) reloads: Arc<Reloads>,
    /// The secrets of `--dev`.
    pub(crate) dev: Option<DevSecrets>,
    /// Whether the workers are expected to stand still.
    pub(crate) rest: Rest,
    /// Why this server cannot be upgraded, if anything is in the way.
    pub(crate) obstacle: Option<String>,
    pub(crate) successor: SuccessorBinary,
    /// Its path is free once the new process serves.
    pub(crate) control_socket: Mutex<Option<ControlSocket>>,
}

/// Starts new processes that take over from this one.
pub(crate) struct Upgrader {
    running: Running,
    control: Arc<Control>,
    edge: Arc<Edge>,
    /// The channel to the process that starts, so that another thread can shut it.
    attempt: Mutex<Option<OwnedFd>>,
}

/// A new process that serves instead of this one.
pub(crate) struct Upgraded {
    control: Arc<Control>,
    channel: Channel,
    pub(crate) process: Pid,
    /// How long nothing was delivered.
    pub(crate) pause: Duration,
    /// Why the new process has ended since, and all connections with it.
    pub(crate) lost: Option<String>,
    /// Makes backups of the directory, which the new process has.
    backups: Option<Arc<Backups>>,
}

/// A new process that has not taken over. Ended when dropped.
struct Starting(Option<Child>);

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Upgrader {
    pub(crate) fn new(running: Running, control: Arc<Control>, edge: Arc<Edge>) -> Upgrader {
        Upgrader { running, control, edge, attempt: Mutex::default() }
    }

    /// Makes an upgrade that is under way fail, if it can still fail.
    pub(crate) fn cancel(&self) {
        let attempt = self.attempt.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(channel) = attempt {
            // Fails only if the other end has been closed already.
            let _ = rustix::net::shutdown(channel, Shutdown::Both);
        }
    }

    /// Starts a new process and gives it everything. Blocks for as long as it takes, and says how
    /// it goes on.
    ///
    /// # Errors
    ///
    /// Why it was not possible, in one sentence. Then this process goes on as if nothing had been.
    pub(crate) fn upgrade(&self, say: &dyn Fn(&str)) -> Result<Upgraded> {
        let Running { obstacle, journals, .. } = &self.running;
        let of_journals = || journals.iter().find_map(|journal| journal.obstacle());
        if let Some(obstacle) = obstacle.clone().or_else(of_journals) {
            bail!("{obstacle}");
        }
        let reloads = &self.running.reloads;
        ensure!(
            reloads.begin_upgrade(),
            "a reload is under way and does not finish; restart instead"
        );
        let health = self.control.health();
        let upgraded = self.attempt(&|text| {
            health.set_upgrade(UpgradeState::UnderWay, text, None);
            say(text);
        });
        if let Err(error) = &upgraded {
            reloads.fail_upgrade();
            health.set_upgrade(UpgradeState::Failed, &format!("{error:#}"), None);
        }
        upgraded
    }

    fn attempt(&self, say: &dyn Fn(&str)) -> Result<Upgraded> {
        let (near, far) = Channel::pair().context("cannot make a channel")?;
        let attempt = near.try_clone().context("cannot make a channel")?;
        *self.attempt.lock().unwrap_or_else(PoisonError::into_inner) = Some(attempt);
        if parent::is_needed() {
            // Before there is one: it may be replaced by a third process at once.
            parent::adopt().context("cannot adopt the process that takes over")?;
        }
        let path = self.running.successor.path();
        let child = self.running.successor.start(far);
        let child = child.with_context(|| format!("cannot start {}", path.display()))?;
        let process = Pid::from_child(&child);
        say(&format!("process {} starts: {}", child.id(), path.display()));
        let mut starting = Starting(Some(child));
        let mut channel = Channel::new(near, START_TIMEOUT)?;
        let mut phase = Predecessor::default();
        self.greet(&mut channel, &mut phase).map_err(|error| explained(error, &mut channel))?;
        say("it is ready; sending logs and sockets ahead, then finishing requests under way");
        let moved = self
            .send_ahead(&mut channel, &mut phase)
            .and_then(|()| self.hand_over(&mut channel, &mut phase));
        match moved {
            Ok(until_then) => {
                // It serves: it must not end with this value.
                starting.0 = None;
                self.running.reloads.end_upgrade(process);
                let (pause, lost) = match await_service(&mut channel) {
                    Ok(later) => (until_then + later, None),
                    Err(reason) => (until_then, Some(reason)),
                };
                // Not before: to close all descriptors takes the time of the processors.
                self.edge.leave();
                let control = Arc::clone(&self.control);
                let backups = self.running.journals.iter().find_map(|journal| journal.backups());
                Ok(Upgraded { control, channel, process, pause, lost, backups })
            }
            Err(error) => {
                let error = explained(error, &mut channel);
                phase.fail();
                // First, so that it cannot act on what it has.
                drop(starting);
                self.running.channels.end_sealing();
                self.running.journals.iter().for_each(|journal| journal.take_back());
                self.edge.go_back();
                self.running.journals.iter().for_each(|journal| journal.go_on());
                self.running.rest.end();
                self.control.rush(false);
                self.control.hold().end();
                Err(error)
            }
        }
    }

    /// Learns which version the new process is, and waits until it has loaded its settings.
    fn greet(&self, channel: &mut Channel, phase: &mut Predecessor) -> Result<()> {
        let Message::Hello { protocol, frozen, build } = self.next(channel, phase)? else {
            bail!("it does not greet");
        };
        ensure!(
            protocol == PROTOCOL,
            "it speaks protocol {protocol} of upgrades, and this version {PROTOCOL}; restart \
             instead"
        );
        ensure!(
            frozen >= frozen::VERSION,
            "it ({build}) reads state up to format {frozen}, and this version writes format {}; \
             restart instead",
            frozen::VERSION
        );
        let own = self.running.listeners.iter().map(|(listener, it)| (*listener, it.as_fd()));
        let dev = self.running.dev.as_ref().map(DevSecrets::pass).transpose();
        let dev = dev.context("cannot pass the keys of --dev")?;
        let dev = dev.as_ref().map(|pipe| (DescriptorKind::DevKeys, pipe.as_fd()));
        let journals = self.running.journals.iter().map(|journal| journal.pass());
        let journals = journals.collect::<Result<Vec<_>>>()?;
        let journals = journals.iter().map(|(kind, own)| (*kind, own.as_fd()));
        let ports = self.edge.ports().into_iter().chain(own).chain(dev).chain(journals);
        let (listeners, descriptors): (Vec<_>, Vec<BorrowedFd<'_>>) = ports.unzip();
        let tls = self.running.tls.as_ref();
        let ticket_keys = tls.map(|tls| tls.ticket_keys().to_vec()).unwrap_or_default();
        let welcome = Message::Welcome(Welcome {
            workers: self.edge.workers() as u32,
            tag_seed: self.running.access.tagger.seed(),
            listeners,
            ticket_keys,
        });
        let sent = channel.send_with(Kind::Welcome, &welcome.encode(), &descriptors);
        sent.map_err(ended)?;
        match self.next(channel, phase)? {
            Message::Ready => Ok(()),
            _ => bail!("it did not report that it is ready"),
        }
    }

    fn next(&self, channel: &mut Channel, phase: &mut Predecessor) -> Result<Message> {
        let (message, _) = channel.receive_message().map_err(ended)?;
        if let Message::Refused(reason) = message {
            return Err(refused(&reason));
        }
        phase.received(message.kind())?;
        Ok(message)
    }

    /// Sends logs and copies of sockets, while this process serves.
    fn send_ahead(&self, channel: &mut Channel, phase: &mut Predecessor) -> Result<()> {
        self.running.journals.iter().for_each(|journal| journal.write_ahead());
        for worker in self.edge.send_ahead().context("the workers")? {
            channel.send_with(Kind::Ahead, OF_WORKER, &[worker.as_fd()]).map_err(ended)?;
        }
        ahead::send(&self.running.channels, channel).map_err(ended)?;
        match self.next(channel, phase)? {
            Message::HasAhead => Ok(()),
            _ => bail!("it did not confirm the state sent ahead"),
        }
    }

    /// Brings everything to rest, and gives it away. Returns how long nothing was delivered then.
    fn hand_over(&self, channel: &mut Channel, phase: &mut Predecessor) -> Result<Duration> {
        self.control.hold().begin();
        self.edge.hold();
        let deadline = Instant::now() + REQUESTS_TIMEOUT;
        let began = loop {
            self.finish_requests(deadline)?;
            let began = Instant::now();
            self.running.rest.begin(REST_MAX);
            self.running.journals.iter().try_for_each(|journal| journal.hold())?;
            self.edge.halt().context("the workers")?;
            // One that had not heard of the hold may have handed a connection off meanwhile.
            if self.control.hold().is_at_rest() && !self.is_handing_off() {
                break began;
            }
            self.edge.go_on();
            self.running.journals.iter().for_each(|journal| journal.go_on());
            self.running.rest.end();
        };
        let pause_end = began + PAUSE_MAX;
        channel.set_deadline(Some(pause_end));
        ensure!(phase.freeze(), "the new process is not ready");
        // Before a journal is closed, of which the metrics have something.
        let mut counted = Vec::new();
        self.control.freeze(|record| counted.push(record.to_vec()));
        let Running { channels, journals, presence_events, .. } = &self.running;
        journals.iter().try_for_each(|journal| journal.give_up())?;
        self.edge.send_workers();
        parts::send_logs(channels, channel).map_err(ended)?;
        journals.iter().try_for_each(|journal| journal.send(channel))?;
        parts::send_kept(&self.running.access.kept, channel).map_err(ended)?;
        let events = presence_events.as_ref();
        parts::send_presence_events(events, channels, channel).map_err(ended)?;
        let revocations = self.control.pass_revocations().context("the file of revocations")?;
        parts::send_revocations(revocations.as_ref(), channel).map_err(ended)?;
        parts::send_control(&counted, channel).map_err(ended)?;
        match self.next(channel, phase)? {
            Message::HasAll => {}
            _ => bail!("it did not confirm that it has everything"),
        }
        let left = pause_end.saturating_duration_since(Instant::now());
        self.edge.await_workers(left).context("a worker")?;
        self.commit(channel, phase)?;
        let until_then = began.elapsed();
        journals.iter().for_each(|journal| journal.cede());
        Ok(until_then)
    }

    /// Tells the new process that it serves. There is no way back after that.
    fn commit(&self, channel: &mut Channel, phase: &mut Predecessor) -> Result<()> {
        // The holder decides: shutting a channel now would leave nobody who serves.
        let attempt = self.attempt.lock().unwrap_or_else(PoisonError::into_inner).take();
        ensure!(attempt.is_some(), "a signal to stop the server arrived");
        let commit = phase.give_up().ok_or_else(|| anyhow!("it does not have everything"))?;
        // The new process takes its path as soon as it has heard the word.
        let mut socket = self.running.control_socket.lock().unwrap_or_else(PoisonError::into_inner);
        socket.iter().for_each(|socket| socket.step_aside(true));
        // So few bytes leave together, or not at all.
        if let Err(error) = channel.send(&commit) {
            phase.take_back();
            socket.iter().for_each(|socket| socket.step_aside(false));
            return Err(ended(error));
        }
        *socket = None;
        Ok(())
    }

    /// Waits until no request and no TLS handshake is under way.
    fn finish_requests(&self, deadline: Instant) -> Result<()> {
        let began = Instant::now();
        let mut checks = 0;
        while checks < CHECKS {
            std::thread::sleep(CHECK_INTERVAL);
            let has_handshakes =
                self.edge.metrics.handshakes() > 0 && began.elapsed() < HANDSHAKES_PATIENCE;
            let is_busy = !self.control.hold().is_at_rest() || self.is_handing_off();
            checks = if is_busy || has_handshakes { 0 } else { checks + 1 };
            if is_busy && began.elapsed() >= REQUESTS_PATIENCE {
                self.control.rush(true);
            }
            ensure!(
                Instant::now() < deadline,
                "requests under way do not finish; try again, or restart instead"
            );
        }
        Ok(())
    }

    /// True if a connection is on its way from a worker to the control plane.
    fn is_handing_off(&self) -> bool {
        let mut waits = [PollFd::new(&self.edge.to_control, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // An error is no reason to go on.
        poll(&mut waits, Some(&now)).map_or(true, |count| count > 0)
    }
}

impl Upgraded {
    /// Tells the new process how long nothing was delivered.
    pub(crate) fn send_pause(&self) {
        let pause = parts::pack_pause(self.pause);
        // It may have ended.
        let _ = self.channel.send_with(Kind::State, &pause, &[]);
    }

    /// Gives the new process the connections between two requests that no worker had.
    pub(crate) fn send_rest(&self) {
        for (listener, handoff) in self.control.hold().take_moved() {
            let Some((bytes, socket)) = parts::pack(listener, handoff) else { continue };
            if let Err(error) = self.channel.send_with(Kind::State, &bytes, &[socket.as_fd()]) {
                tracing::warn!("a connection is lost: {error}");
            }
        }
    }

    /// Tells the backup that is under way to stop.
    pub(crate) fn stop_backup(&self) {
        self.backups.iter().for_each(|backups| backups.stop());
    }

    /// True if a backup has not removed yet what it had written.
    pub(crate) fn has_backup(&self) -> bool {
        self.backups.as_ref().is_some_and(|backups| backups.is_under_way())
    }

    /// Logs that a backup does not end before this process does.
    pub(crate) fn log_backup(&self) {
        if self.has_backup() {
            tracing::warn!("a backup does not stop: its files stay where they are");
        }
    }

    /// Tells the service manager, and says it in one sentence.
    pub(crate) fn announce(&self) -> String {
        let Upgraded { process, pause, .. } = self;
        let process = process.as_raw_nonzero();
        notify(&format!("MAINPID={process}"));
        format!("process {process} has taken over after a pause of {} ms", pause.as_millis())
    }
}

/// Waits until the new process serves, which was told to. Returns how long that took it, or why it
/// has ended.
fn await_service(channel: &mut Channel) -> Result<Duration, String> {
    let began = Instant::now();
    channel.set_deadline(Some(began + SERVES_TIMEOUT));
    let said = channel.receive_message();
    channel.set_deadline(None);
    // Fails for no socket.
    let _ = channel.set_timeout(SERVES_TIMEOUT);
    match said {
        Ok((Message::Serves(later_us), _)) => Ok(Duration::from_micros(later_us)),
        // One that is slow is there.
        Err(ChannelError::TimedOut) => Ok(began.elapsed()),
        Ok((Message::Refused(reason), _)) => Err(reason),
        Ok(_) => Err(OutOfOrder.to_string()),
        Err(error) => Err(ended(error).to_string()),
    }
}

/// The reason of the new process, if it has refused; otherwise `error`.
///
/// It refuses as soon as it finds something, which may be while this process still sends: then this
/// one has only noticed that nobody reads any more. Nothing may be sent afterwards.
fn explained(error: anyhow::Error, channel: &mut Channel) -> anyhow::Error {
    let deadline = Instant::now() + REASON_PATIENCE;
    channel.set_deadline(Some(deadline));
    loop {
        match channel.receive_message() {
            Ok((Message::Refused(reason), _)) => return refused(&reason),
            // Sent before it refused.
            Ok(_) => {}
            Err(_) => return error,
        }
    }
}

fn refused(reason: &str) -> anyhow::Error {
    anyhow!("the new process refuses: {reason}")
}

fn ended(error: ChannelError) -> anyhow::Error {
    match error {
        ChannelError::Ended => anyhow!("the new process has ended; its log has the reason"),
        ChannelError::TimedOut => anyhow!("the new process did not answer in time"),
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Channel, Channel) {
        let (near, far) = Channel::pair().unwrap();
        (Channel::new(near, START_TIMEOUT).unwrap(), Channel::new(far, START_TIMEOUT).unwrap())
    }

    /// Sends until nobody reads, as the server does that learns of a refusal in the middle.
    fn send_in_vain(channel: &Channel) -> anyhow::Error {
        loop {
            if let Err(error) = channel.send_with(Kind::State, &[0; 4096], &[]) {
                return ended(error);
            }
        }
    }

    #[test]
    fn a_refusal_while_this_process_sends_is_the_reason() {
        let (mut near, far) = pair();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                far.send(&Message::HasAhead).unwrap();
                far.send(&Message::Refused("it is in use".into())).unwrap();
            });
            let error = explained(send_in_vain(&near), &mut near);
            assert_eq!(error.to_string(), "the new process refuses: it is in use");
        });
    }

    #[test]
    fn a_refusal_after_a_worker_has_failed_is_the_reason() {
        let (mut near, far) = pair();
        std::thread::scope(|scope| {
            scope.spawn(move || far.send(&Message::Refused("it is in use".into())).unwrap());
            let error = explained(anyhow!("a worker: broken pipe"), &mut near);
            assert_eq!(error.to_string(), "the new process refuses: it is in use");
        });
    }

    #[test]
    fn without_a_refusal_an_error_stays_as_it_is() {
        let (mut near, _far) = pair();
        let error = explained(anyhow!("a worker does not stop"), &mut near);
        assert_eq!(error.to_string(), "a worker does not stop");
        let (mut near, far) = pair();
        drop(far);
        let error = explained(send_in_vain(&near), &mut near);
        assert_eq!(error.to_string(), "the new process has ended; its log has the reason");
    }
}
