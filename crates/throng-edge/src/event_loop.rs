//! The thread of a worker: waits for events and tells the worker.
//!
//! Everything is taken in batches, and between two batches the worker has one slice of its own
//! work: neither a fan-out to a million nor a million new connections keep the other waiting.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use throng_core::WorkerQueue;

use crate::net::HandOver;
use crate::relay::Runner;
use crate::steering::{LAST_PLACES, Steering};
use crate::sys::hand_over::Exit;
use crate::sys::poll::Poll;
use crate::sys::sockets::{self, Sockets};
use crate::worker::{Now, TICKS_PER_S, Worker};

/// Connections accepted, or taken from others, in one batch.
const ACCEPTS_PER_BATCH: usize = 64;

const TICK: Duration = Duration::from_millis(1000 / TICKS_PER_S as u64);

/// When something waits that no event will tell of, the worker looks again after this.
const SOON: Duration = Duration::from_millis(2);

/// Tokens that no connection has: generations grow from one.
pub(crate) const LISTENER: u64 = 0;
pub(crate) const QUEUE: u64 = 1;
pub(crate) const INLET: u64 = 2;

/// What the loop waits for, beside connections.
pub(crate) struct Sources {
    /// Dropped when the worker is to end.
    pub(crate) listener: Option<OwnedFd>,
    /// Whether the listener is not waited for until the next tick.
    pub(crate) is_listener_resting: bool,
    pub(crate) inlet: Exit,
    pub(crate) queue_event: Arc<OwnedFd>,
    pub(crate) queue: Arc<WorkerQueue>,
    pub(crate) steering: Arc<Steering>,
    pub(crate) runner: Runner,
}

/// Runs until the worker has ended.
pub(crate) fn run(mut worker: Worker<Sockets>, mut sources: Sources) -> io::Result<()> {
    let clock = Clock::start();
    let poll = &worker.net().poll;
    if let Some(listener) = &sources.listener {
        poll.add_level(listener, LISTENER)?;
    }
    poll.add_level(&sources.inlet, INLET)?;
    poll.add_level(&*sources.queue_event, QUEUE)?;
    let mut next_tick = TICK;
    let mut has_work = false;
    let mut handed = Vec::new();
    while !worker.is_ended() {
        let may_sleep =
            !has_work && prepare_to_sleep(&worker, &sources.queue) && !sources.runner.is_called();
        let timeout = match may_sleep {
            true if worker.is_waiting() => SOON,
            true => next_tick.saturating_sub(clock.elapsed()),
            false => Duration::ZERO,
        };
        worker.net().poll.wait(timeout)?;
        sources.queue.finish_sleep();
        worker.set_now(clock.now());
        handle(&mut worker, &mut sources, &mut handed)?;
        if clock.elapsed() >= next_tick {
            next_tick = clock.elapsed() + TICK;
            worker.tick();
            let Sources { listener, is_listener_resting, .. } = &mut sources;
            wake_listener(&worker.net().poll, listener.as_ref(), is_listener_resting);
            if let Some(listener) = &sources.listener {
                sources.steering.update(listener);
            }
        }
        if !sources.queue.is_empty() {
            // Most notifications is a message to fan out: with a baton that is done at once.
            sources.runner.wants(true, clock.elapsed());
        }
        has_work = worker.work(sources.runner.has_baton());
        sources.runner.wants(worker.is_fanning_out(), clock.elapsed());
        has_work |= sources.runner.has_baton();
        if !worker.takes_connections() {
            close_listener(&mut worker, &mut sources)?;
        }
    }
    close_inlet(&mut worker, &sources, &mut handed)
}

/// Whether the worker may sleep, with the notifications that it has.
fn prepare_to_sleep(worker: &Worker<Sockets>, queue: &WorkerQueue) -> bool {
    if worker.takes_notifications() {
        return queue.prepare_to_sleep();
    }
    // Until it has a baton and has made room there is nothing that it could do with its
    // notifications.
    queue.force_sleep();
    true
}

fn handle(
    worker: &mut Worker<Sockets>,
    sources: &mut Sources,
    handed: &mut Vec<u8>,
) -> io::Result<()> {
    let mut nth = 0;
    while let Some(ready) = worker.net().poll.ready(nth) {
        nth += 1;
        match ready.token {
            LISTENER => accept(worker, sources),
            INLET => take_over(worker, sources, handed),
            QUEUE => {
                let mut count = [0u8; 8];
                // It is there to wake; what it counts does not matter.
                let _ = rustix::io::read(&*sources.queue_event, &mut count);
            }
            token => {
                if ready.is_writable {
                    worker.writable(token);
                }
                if ready.is_readable {
                    worker.readable(token, ready.is_ended);
                }
            }
        }
    }
    Ok(())
}

fn accept(worker: &mut Worker<Sockets>, sources: &mut Sources) {
    let Some(listener) = &sources.listener else { return };
    for _ in 0..ACCEPTS_PER_BATCH {
        match sockets::accept(listener) {
            Ok(Some(socket)) => {
                // Before the client is answered: its next connection may follow at once, and is
                // to go to those whose turn it is by then.
                if worker.room() <= LAST_PLACES {
                    sources.steering.update(listener);
                }
                worker.accepted(socket);
            }
            Ok(None) => return,
            Err(_) => {
                // Descriptors or memory are exhausted. The listener stays readable: without a rest
                // until the next tick this would spin.
                worker.accept_failed();
                sources.is_listener_resting = worker.net().poll.remove(listener).is_ok();
                return;
            }
        }
    }
}

/// Waits for the listener again, if it rests. The same shortage may keep it out of epoll: then it
/// rests until the next tick.
fn wake_listener(poll: &Poll, listener: Option<&OwnedFd>, is_resting: &mut bool) {
    if let Some(listener) = listener.filter(|_| *is_resting) {
        *is_resting = poll.add_level(listener, LISTENER).is_err();
    }
}

fn take_over(worker: &mut Worker<Sockets>, sources: &Sources, bytes: &mut Vec<u8>) {
    for _ in 0..ACCEPTS_PER_BATCH {
        match sources.inlet.receive(bytes) {
            Ok(Some((hand_over, socket))) => hand_in(worker, hand_over, socket, bytes),
            Ok(None) | Err(_) => return,
        }
    }
}

fn hand_in(
    worker: &mut Worker<Sockets>,
    hand_over: HandOver,
    socket: Option<OwnedFd>,
    bytes: &mut [u8],
) {
    match socket {
        Some(socket) => worker.handed_over(hand_over, socket, bytes),
        None => worker.hand_over_lost(hand_over),
    }
}

/// Takes what has connected until now, then listens no more.
fn close_listener(worker: &mut Worker<Sockets>, sources: &mut Sources) -> io::Result<()> {
    let Some(listener) = sources.listener.take() else { return Ok(()) };
    while let Ok(Some(socket)) = sockets::accept(&listener) {
        worker.accepted(socket);
    }
    if !std::mem::take(&mut sources.is_listener_resting) {
        worker.net().poll.remove(&listener)?;
    }
    Ok(())
}

/// Answers what others have sent before they knew of the end. From now on they are told.
fn close_inlet(
    worker: &mut Worker<Sockets>,
    sources: &Sources,
    bytes: &mut Vec<u8>,
) -> io::Result<()> {
    sources.inlet.close()?;
    while let Ok(Some((hand_over, socket))) = sources.inlet.receive(bytes) {
        hand_in(worker, hand_over, socket, bytes);
    }
    Ok(())
}

/// The worker's clock.
struct Clock {
    started: Instant,
}

impl Clock {
    fn start() -> Clock {
        Clock { started: Instant::now() }
    }

    fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    fn now(&self) -> Now {
        let elapsed_ms = self.elapsed().as_millis() as u64;
        Now {
            unix_ms: throng_core::clock::now_ms(),
            tick: (elapsed_ms * u64::from(TICKS_PER_S) / 1000) as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Epoll refuses what it has already, as it refuses what it has no room for.
    #[test]
    fn a_listener_that_epoll_refuses_rests_until_it_is_taken() {
        let mut poll = Poll::new().expect("an epoll instance");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let listener = OwnedFd::from(listener);
        let mut is_resting = true;
        poll.add_level(&listener, QUEUE).expect("it is new");
        wake_listener(&poll, Some(&listener), &mut is_resting);
        assert!(is_resting, "it is not waited for as the listener");
        poll.remove(&listener).expect("it is there");
        wake_listener(&poll, Some(&listener), &mut is_resting);
        assert!(!is_resting);
        let _client = TcpStream::connect(address).expect("it listens");
        poll.wait(Duration::from_secs(60)).expect("epoll waits");
        assert_eq!(poll.ready(0).map(|ready| ready.token), Some(LISTENER));
        wake_listener(&poll, None, &mut is_resting);
        assert!(!is_resting);
    }
}
