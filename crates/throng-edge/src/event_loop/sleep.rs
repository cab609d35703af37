//! Decides how long a worker's thread waits for events, and when the worker may fan out.
//!
//! Three things wake a worker's thread: events of its sockets, notifications in its queue, and a
//! permit that it has requested. epoll reports the first. For the other two, another thread writes
//! to the queue's event, but only if the worker sleeps, so that a burst costs one wake-up. No
//! wake-up is lost, because of the order on both sides:
//!
//! * the worker announces its sleep ([`WorkerQueue::prepare_to_sleep`]), then checks its queue and
//!   its permit;
//! * the other thread posts, or grants the permit, then wakes the worker if its sleep is announced.
//!
//! The event loop and the simulation drive this type, each with its own clock and events:
//!
//! ```text
//! loop {
//!     wait for events, at most for sleep.prepare_to_sleep(..)
//!     sleep.finish_sleep()
//!     handle the events; if sleep.is_tick_due(..), the tick
//!     sleep.work(..)
//! }
//! ```

use std::sync::Arc;
use std::time::Duration;

use throng_core::WorkerQueue;

use super::permits::PermitHolder;
use crate::delivery::Delivery;
use crate::net::Net;
use crate::sockets::Sockets;
use crate::worker::{TICKS_PER_S, Worker};

/// The time between two ticks.
pub const TICK: Duration = Duration::from_millis(1000 / TICKS_PER_S as u64);

/// The interval at which the worker retries something that no event reports.
pub(crate) const RETRY_INTERVAL: Duration = Duration::from_millis(2);

/// The part of a worker that its sleep depends on.
pub trait Work {
    /// Does one slice of work. Returns whether there is more to do at once, beside fan-outs.
    fn work(&mut self, may_fan_out: bool) -> bool;

    /// True if it takes notifications from its queue.
    fn takes_notifications(&self) -> bool;

    /// True if a fan-out is under way.
    fn is_fanning_out(&self) -> bool;

    /// True if it retries something that no event reports.
    fn is_retrying(&self) -> bool;

    /// The time until it has something to write that it holds back; `None` if it holds nothing.
    fn until_due(&self) -> Option<Duration>;
}

impl<N: Net> Work for Worker<N> {
    fn work(&mut self, may_fan_out: bool) -> bool {
        Worker::work(self, may_fan_out)
    }

    fn takes_notifications(&self) -> bool {
        Delivery::takes_notifications(self)
    }

    fn is_fanning_out(&self) -> bool {
        Delivery::is_fanning_out(self)
    }

    fn is_retrying(&self) -> bool {
        Sockets::is_retrying(self)
    }

    fn until_due(&self) -> Option<Duration> {
        Delivery::until_due(self)
    }
}

/// When a worker's thread sleeps, ticks, and fans out. Times count from the thread's start.
#[derive(Debug)]
pub struct Sleep {
    queue: Arc<WorkerQueue>,
    permit: PermitHolder,
    /// True if the last slice left work that can be done at once.
    has_work: bool,
    next_tick: Duration,
}

impl Sleep {
    /// The sleep of the worker with this queue and this permit. The first tick is due after
    /// [`TICK`].
    pub fn new(queue: Arc<WorkerQueue>, permit: PermitHolder) -> Sleep {
        Sleep { queue, permit, has_work: false, next_tick: TICK }
    }

    /// Announces that the thread is about to wait for events. Returns how long it may wait; zero if
    /// there is something to do. Call [`Sleep::finish_sleep`] after the wait.
    pub fn prepare_to_sleep(&self, worker: &impl Work, now: Duration) -> Duration {
        if self.has_work || !self.announce(worker) || self.permit.is_granted() {
            return Duration::ZERO;
        }
        let until_tick = self.next_tick.saturating_sub(now);
        let until_due = worker.until_due().unwrap_or(until_tick).min(until_tick);
        if worker.is_retrying() { until_due.min(RETRY_INTERVAL) } else { until_due }
    }

    /// Announces the sleep. Returns whether the queue allows it.
    fn announce(&self, worker: &impl Work) -> bool {
        if worker.takes_notifications() {
            return self.queue.prepare_to_sleep();
        }
        // Notifications stay in the queue until the worker has fanned out more. For that it needs a
        // permit, and the grant wakes it.
        self.queue.force_sleep();
        true
    }

    /// Makes the thread do a slice of work before it sleeps: the worker was thawed, and may have
    /// something to do that no event reports.
    pub fn expect_work(&mut self) {
        self.has_work = true;
    }

    /// Announces that the thread is awake: other threads need not wake it.
    pub fn finish_sleep(&self) {
        self.queue.finish_sleep();
    }

    /// True if a tick is due. If so, the next one is due a whole [`TICK`] after `now`: missed ticks
    /// are not made up for.
    pub fn is_tick_due(&mut self, now: Duration) -> bool {
        let is_due = now >= self.next_tick;
        if is_due {
            self.next_tick = now + TICK;
        }
        is_due
    }

    /// Lets the worker do one slice of work. It fans out if it holds a permit, which is requested
    /// as long as there is something to fan out and given back after that.
    pub fn work(&mut self, worker: &mut impl Work, now: Duration) {
        if !self.queue.is_empty() {
            // Most notifications are messages to fan out: if a permit is free, this slice does it.
            self.permit.request(now);
        }
        let has_more = worker.work(self.permit.is_held());
        if worker.is_fanning_out() {
            self.permit.request(now);
        } else {
            self.permit.release();
        }
        self.has_work = has_more || self.permit.is_held();
    }

    /// True if the worker waits for a permit.
    pub fn awaits_permit(&self, worker: &impl Work) -> bool {
        worker.is_fanning_out() && !self.permit.is_held()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;

    use throng_core::{Notification, WorkerId};

    use super::super::permits::FanOutPermits;
    use super::*;

    /// Slices that each notification takes to fan out.
    const SLICES: u32 = 2;
    /// Notifications under way at which a worker takes no more.
    const SLICES_MAX: u32 = 4;

    /// A worker that fans out each notification in [`SLICES`] slices.
    struct FakeWorker {
        queue: Arc<WorkerQueue>,
        slices_left: u32,
        taken: usize,
        until_due: Option<Duration>,
    }

    impl Work for FakeWorker {
        fn work(&mut self, may_fan_out: bool) -> bool {
            if self.takes_notifications() {
                let mut taken = Vec::new();
                self.queue.take(&mut taken);
                self.taken += taken.len();
                self.slices_left += SLICES * taken.len() as u32;
            }
            if may_fan_out {
                self.slices_left = self.slices_left.saturating_sub(1);
            }
            false
        }

        fn takes_notifications(&self) -> bool {
            self.slices_left < SLICES_MAX
        }

        fn is_fanning_out(&self) -> bool {
            self.slices_left > 0
        }

        fn is_retrying(&self) -> bool {
            false
        }

        fn until_due(&self) -> Option<Duration> {
            self.until_due
        }
    }

    /// A thread of the model: a worker, its event, and whether it waits for events.
    struct Thread {
        worker: FakeWorker,
        sleep: Sleep,
        event: Arc<AtomicBool>,
        is_asleep: bool,
    }

    impl Thread {
        /// True if it has something to do: it is awake, or has been woken.
        fn is_ready(&self) -> bool {
            !self.is_asleep || self.event.load(Ordering::SeqCst)
        }

        /// One step: it goes to sleep, or it wakes and works.
        fn step(&mut self, now: Duration) {
            if !self.is_asleep {
                self.is_asleep = true;
                let timeout = self.sleep.prepare_to_sleep(&self.worker, now);
                if timeout == Duration::ZERO {
                    self.event.store(true, Ordering::SeqCst);
                }
                return;
            }
            self.is_asleep = false;
            self.event.store(false, Ordering::SeqCst);
            self.sleep.finish_sleep();
            self.sleep.work(&mut self.worker, now);
        }
    }

    fn threads(count: usize, permits: usize) -> Vec<Thread> {
        let events: Vec<_> = (0..count).map(|_| Arc::new(AtomicBool::new(false))).collect();
        let queue = |event: &Arc<AtomicBool>| {
            let event = Arc::clone(event);
            Arc::new(WorkerQueue::new(move || event.store(true, Ordering::SeqCst)))
        };
        let queues: Vec<_> = events.iter().map(queue).collect();
        let permits = Arc::new(FanOutPermits::new(&queues, permits));
        let thread = |(worker, event): (usize, Arc<AtomicBool>)| {
            let queue = Arc::clone(&queues[worker]);
            let permit = PermitHolder::new(Arc::clone(&permits), WorkerId(worker as u16));
            Thread {
                worker: FakeWorker {
                    queue: Arc::clone(&queue),
                    slices_left: 0,
                    taken: 0,
                    until_due: None,
                },
                sleep: Sleep::new(queue, permit),
                event,
                is_asleep: false,
            }
        };
        events.into_iter().enumerate().map(thread).collect()
    }

    /// Pseudo-random numbers below `bound` (a linear congruential generator).
    fn random(state: &mut u64, bound: usize) -> usize {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        ((*state >> 33) as usize) % bound
    }

    #[test]
    fn a_worker_that_holds_messages_back_sleeps_until_they_are_due() {
        let mut thread = threads(1, 1).remove(0);
        let asleep = |thread: &Thread, now| thread.sleep.prepare_to_sleep(&thread.worker, now);
        assert_eq!(asleep(&thread, Duration::ZERO), TICK);
        thread.worker.until_due = Some(Duration::from_millis(8));
        assert_eq!(asleep(&thread, Duration::ZERO), Duration::from_millis(8));
        let almost = TICK - Duration::from_millis(3);
        assert_eq!(asleep(&thread, almost), Duration::from_millis(3), "the tick is earlier");
    }

    /// Many schedules of two or three workers, one or two permits and a poster: when no thread is
    /// ready any more, everything is taken and fanned out. Posting and waking are two steps.
    #[test]
    fn no_schedule_leaves_a_worker_asleep_with_something_to_do() {
        for seed in 0..5_000 {
            let mut state = seed;
            let count = 2 + random(&mut state, 2);
            let mut threads = threads(count, 1 + random(&mut state, 2));
            let mut posts_left = 6;
            let mut posted = vec![0; count];
            let mut wakes = Vec::new();
            let mut now = Duration::ZERO;
            loop {
                now += Duration::from_millis(random(&mut state, 3) as u64);
                let mut actors: Vec<_> =
                    (0..count).filter(|&worker| threads[worker].is_ready()).collect();
                actors.extend((posts_left > 0).then_some(count));
                actors.extend((!wakes.is_empty()).then_some(count + 1));
                if actors.is_empty() {
                    break;
                }
                let actor = actors[random(&mut state, actors.len())];
                if actor == count {
                    let to = random(&mut state, count);
                    threads[to].worker.queue.post(Notification::Drain);
                    (posts_left, posted[to]) = (posts_left - 1, posted[to] + 1);
                    wakes.push(to);
                } else if actor == count + 1 {
                    let to = wakes.swap_remove(random(&mut state, wakes.len()));
                    threads[to].worker.queue.wake();
                } else {
                    threads[actor].step(now);
                }
            }
            for (thread, posted) in threads.iter().zip(posted) {
                assert_eq!(thread.worker.taken, posted, "seed {seed}: something is in a queue");
                assert_eq!(thread.worker.slices_left, 0, "seed {seed}: a fan-out has stopped");
                assert!(!thread.sleep.permit.is_held(), "seed {seed}: a permit is lost");
            }
        }
    }

    /// The same on real threads. A lost wake-up would let this test wait forever.
    #[test]
    fn threads_that_share_a_permit_lose_no_wake_up() {
        const WORKERS: usize = 3;
        const POSTS: usize = 5_000;
        let channels: Vec<_> = (0..WORKERS).map(|_| mpsc::channel::<()>()).collect();
        let (wakers, woken): (Vec<_>, Vec<_>) = channels.into_iter().unzip();
        let queue = |waker: mpsc::Sender<()>| {
            Arc::new(WorkerQueue::new(move || waker.send(()).unwrap_or_default()))
        };
        let queues: Vec<_> = wakers.into_iter().map(queue).collect();
        let permits = Arc::new(FanOutPermits::new(&queues, 1));
        let run = |(number, woken): (usize, mpsc::Receiver<()>)| {
            let permit = PermitHolder::new(Arc::clone(&permits), WorkerId(number as u16));
            let queue = Arc::clone(&queues[number]);
            move || {
                let mut sleep = Sleep::new(Arc::clone(&queue), permit);
                let mut worker = FakeWorker { queue, slices_left: 0, taken: 0, until_due: None };
                while worker.taken < POSTS || worker.is_fanning_out() {
                    if sleep.prepare_to_sleep(&worker, Duration::ZERO) > Duration::ZERO {
                        woken.recv().expect("the queue keeps the other end");
                    }
                    sleep.finish_sleep();
                    sleep.work(&mut worker, Duration::ZERO);
                }
            }
        };
        let threads: Vec<_> =
            woken.into_iter().enumerate().map(run).map(std::thread::spawn).collect();
        for _ in 0..POSTS {
            for queue in &queues {
                queue.post(Notification::Drain);
                queue.wake();
            }
        }
        for thread in threads {
            thread.join().expect("no worker panics");
        }
    }

    #[test]
    fn a_worker_without_work_sleeps_until_the_tick() {
        let mut threads = threads(1, 1);
        let Thread { worker, sleep, .. } = &mut threads[0];
        let now = TICK / 4;
        assert_eq!(sleep.prepare_to_sleep(worker, now), TICK - now);
        assert!(!sleep.is_tick_due(now) && sleep.is_tick_due(TICK * 3));
        assert_eq!(sleep.prepare_to_sleep(worker, TICK * 3), TICK);
    }

    #[test]
    fn a_worker_sleeps_no_longer_than_until_a_clock_is_due() {
        let mut threads = threads(1, 1);
        let Thread { worker, sleep, .. } = &mut threads[0];
        worker.until_due = Some(TICK / 8);
        assert_eq!(sleep.prepare_to_sleep(worker, TICK / 4), TICK / 8);
        worker.until_due = Some(TICK * 8);
        assert_eq!(sleep.prepare_to_sleep(worker, TICK / 4), TICK - TICK / 4);
    }

    /// Otherwise it would spin until its turn comes, on a core that the holders need.
    #[test]
    fn a_worker_without_a_permit_sleeps_despite_queued_mail() {
        let mut threads = threads(2, 1);
        for thread in &mut threads {
            (0..SLICES_MAX).for_each(|_| thread.worker.queue.post(Notification::Drain));
            thread.sleep.work(&mut thread.worker, Duration::ZERO);
            thread.worker.queue.post(Notification::Drain);
        }
        let [holder, waiting] = &mut threads[..] else { panic!("two of them") };
        assert_eq!(holder.sleep.prepare_to_sleep(&holder.worker, TICK / 2), Duration::ZERO);
        assert!(waiting.sleep.awaits_permit(&waiting.worker));
        assert_eq!(waiting.sleep.prepare_to_sleep(&waiting.worker, TICK / 2), TICK / 2);
        holder.sleep.permit.release();
        assert!(waiting.event.load(Ordering::SeqCst), "the grant wakes it");
        assert_eq!(waiting.sleep.prepare_to_sleep(&waiting.worker, TICK / 2), Duration::ZERO);
    }
}
