//! The threads that read logs, so that nobody else waits for the disk.
//!
//! They are shared fairly: each client and each channel has a clock that goes on with the time that
//! its readings take, and the reading comes next whose client and channel have had least. So one
//! that asks for much waits behind those that ask for little, however many readings wait. A
//! reading takes its turn for some milliseconds, and then waits for the next one. No client and no
//! channel has all threads at a time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::Hash;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use throng_core::{AskerId, ChannelName};

/// Threads that read. A disk serves some requests at a time; most are served from memory.
const READERS: usize = 4;

/// Threads that read for one client, or of one channel, at most.
const READERS_OF_ONE: usize = READERS - 1;

/// Readings that wait at most. Beyond it they are refused: those before them take seconds.
const WAITING_MAX: usize = 65_536;

/// Readings of the same client, at most.
const WAITING_OF_CLIENT_MAX: usize = 8_192;

/// Readings that are passed over because their client or channel has its threads.
const PASSED_OVER_MAX: usize = 64;

/// How long a thread rests when all that is left waits for something that comes soon: a part of the
/// time that a disk takes for a sync.
const REST: Duration = Duration::from_millis(1);

/// Least time that a turn counts, in microseconds.
const TURN_US_MIN: u64 = 20;

/// The outcome of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadTurn {
    Done,
    /// It has more to read, in its next turn.
    Again,
    /// It waits for something that comes soon.
    Later,
}

type Job = Box<dyn FnMut() -> ReadTurn + Send>;

/// Reads so far and under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ReadersMetrics {
    /// Readings that wait for a thread.
    pub(crate) waiting: u64,
    /// Readings that were refused, as too many waited.
    pub(crate) refused: u64,
}

/// A reading that waits, or is under way.
struct Waiting {
    job: Job,
    asker: AskerId,
    channel: ChannelName,
}

/// How much one has had.
#[derive(Debug, Clone, Copy, Default)]
struct Use {
    /// Up to when it has had its part, by the clock of the queue.
    until_us: u64,
    /// Readings that wait, or are under way.
    waiting: usize,
    /// Threads that read for it.
    reading: usize,
}

/// The uses of clients, or of channels.
struct Uses<K>(HashMap<K, Use>);

impl<K> Default for Uses<K> {
    fn default() -> Uses<K> {
        Uses(HashMap::new())
    }
}

impl<K: Hash + Eq + Clone> Uses<K> {
    fn get(&self, key: &K) -> Use {
        self.0.get(key).copied().unwrap_or_default()
    }

    fn entry(&mut self, key: &K) -> &mut Use {
        self.0.entry(key.clone()).or_default()
    }

    /// Ends a reading of one, or a turn of it.
    fn end(&mut self, key: &K, is_read: bool) {
        if let Some(used) = self.0.get_mut(key) {
            used.reading -= usize::from(is_read);
            used.waiting -= 1;
        }
    }

    /// Forgets those that have nothing to wait for.
    fn forget(&mut self, now_us: u64) {
        self.0.retain(|_, used| used.waiting > 0 || used.until_us > now_us);
        if self.0.len() * 4 < self.0.capacity() {
            self.0.shrink_to_fit();
        }
    }
}

#[derive(Default)]
struct Queue {
    /// The waiting reads, by the time of their turn and their number.
    order: BinaryHeap<Reverse<(u64, u64)>>,
    jobs: HashMap<u64, Waiting>,
    next: u64,
    /// The time at which the last turn came.
    now_us: u64,
    clients: Uses<AskerId>,
    channels: Uses<ChannelName>,
    /// Threads that do one.
    busy: usize,
    /// Turns since those were forgotten that have nothing to wait for.
    turns: usize,
    /// Turns since the last one that did not end as [`ReadTurn::Later`].
    in_vain: usize,
    refused: u64,
    is_ending: bool,
}

impl Queue {
    /// Lets a reading wait for its turn.
    fn push(&mut self, waiting: Waiting) {
        let (asker, channel) = (waiting.asker, waiting.channel.clone());
        let mut at_us = self.now_us;
        if asker.is_client() {
            at_us = at_us.max(self.clients.get(&asker).until_us);
        }
        at_us = at_us.max(self.channels.get(&channel).until_us) + TURN_US_MIN;
        for used in [self.clients.entry(&asker), self.channels.entry(&channel)] {
            used.until_us = used.until_us.max(at_us);
            used.waiting += 1;
        }
        let number = self.next;
        self.next += 1;
        self.jobs.insert(number, waiting);
        self.order.push(Reverse((at_us, number)));
    }

    /// The reading whose turn it is.
    fn pop(&mut self) -> Option<Waiting> {
        let mut passed_over = Vec::new();
        let mut found = None;
        while passed_over.len() < PASSED_OVER_MAX
            && let Some(Reverse((at_us, number))) = self.order.pop()
        {
            let may_be = self.jobs.get(&number).is_some_and(|waiting| {
                let has_room = |used: Use| used.reading < READERS_OF_ONE;
                let is_free =
                    !waiting.asker.is_client() || has_room(self.clients.get(&waiting.asker));
                is_free && has_room(self.channels.get(&waiting.channel))
            });
            if may_be {
                self.now_us = self.now_us.max(at_us);
                found = self.jobs.remove(&number);
                break;
            }
            passed_over.push(Reverse((at_us, number)));
        }
        self.order.extend(passed_over);
        let waiting = found?;
        self.clients.entry(&waiting.asker).reading += 1;
        self.channels.entry(&waiting.channel).reading += 1;
        self.busy += 1;
        Some(waiting)
    }

    /// Ends a turn that took this long.
    fn end(&mut self, waiting: Waiting, turn: ReadTurn, took_us: u64) {
        self.busy -= 1;
        for used in [self.clients.entry(&waiting.asker), self.channels.entry(&waiting.channel)] {
            used.until_us = used.until_us.max(self.now_us) + took_us.saturating_sub(TURN_US_MIN);
        }
        self.clients.end(&waiting.asker, true);
        self.channels.end(&waiting.channel, true);
        self.turns += 1;
        if self.turns > self.clients.0.len() + self.channels.0.len() {
            self.turns = 0;
            self.clients.forget(self.now_us);
            self.channels.forget(self.now_us);
        }
        self.in_vain = if turn == ReadTurn::Later { self.in_vain + 1 } else { 0 };
        if turn != ReadTurn::Done && !self.is_ending {
            self.push(waiting);
        }
    }

    /// True if all readings wait for something that comes soon.
    fn waits(&self) -> bool {
        self.in_vain > self.jobs.len()
    }
}

/// The threads. They end when this is dropped; what waits then is dropped, too.
pub(super) struct Readers {
    queue: Arc<(Mutex<Queue>, Condvar)>,
    threads: Vec<JoinHandle<()>>,
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Readers {
    pub(super) fn start() -> io::Result<Readers> {
        let queue = Arc::<(Mutex<Queue>, Condvar)>::default();
        let mut threads = Vec::with_capacity(READERS);
        for _ in 0..READERS {
            let queue = Arc::clone(&queue);
            let run = move || {
                while let Some(mut waiting) = next(&queue) {
                    let began = Instant::now();
                    let turn = (waiting.job)();
                    if turn == ReadTurn::Done {
                        // Here, as it may have much to drop.
                        waiting.job = Box::new(|| ReadTurn::Done);
                    }
                    let took_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
                    let mut locked = lock(&queue.0);
                    locked.end(waiting, turn, took_us);
                    // One that was passed over may have its turn now.
                    queue.1.notify_one();
                    if locked.waits() {
                        drop(queue.1.wait_timeout(locked, REST));
                    }
                }
            };
            threads.push(std::thread::Builder::new().name("log-reader".into()).spawn(run)?);
        }
        Ok(Readers { queue, threads })
    }

    /// True if nothing waits or is done.
    pub(super) fn are_idle(&self) -> bool {
        let queue = lock(&self.queue.0);
        queue.jobs.is_empty() && queue.busy == 0
    }

    /// Waiting and refused reads.
    pub(super) fn metrics(&self) -> ReadersMetrics {
        let queue = lock(&self.queue.0);
        ReadersMetrics { waiting: queue.jobs.len() as u64, refused: queue.refused }
    }

    /// Lets a thread read a channel for a client, in turns. Dropped undone if too much waits.
    pub(super) fn submit(
        &self,
        asker: AskerId,
        channel: &ChannelName,
        job: impl FnMut() -> ReadTurn + Send + 'static,
    ) {
        let mut queue = lock(&self.queue.0);
        let of_client = if asker.is_client() { queue.clients.get(&asker).waiting } else { 0 };
        if queue.jobs.len() >= WAITING_MAX || of_client >= WAITING_OF_CLIENT_MAX {
            queue.refused += 1;
            return;
        }
        queue.push(Waiting { job: Box::new(job), asker, channel: channel.clone() });
        drop(queue);
        self.queue.1.notify_one();
    }
}

fn next(queue: &(Mutex<Queue>, Condvar)) -> Option<Waiting> {
    let mut locked = lock(&queue.0);
    loop {
        if locked.is_ending {
            return None;
        }
        if let Some(waiting) = locked.pop() {
            return Some(waiting);
        }
        locked = queue.1.wait(locked).unwrap_or_else(PoisonError::into_inner);
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        let mut queue = lock(&self.queue.0);
        queue.is_ending = true;
        let undone = std::mem::take(&mut queue.jobs);
        drop(queue);
        self.queue.1.notify_all();
        drop(undone);
        for thread in self.threads.drain(..) {
            // It panics only with the process.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(asker: AskerId, channel: &str) -> Waiting {
        let channel = ChannelName::channel(channel);
        Waiting { job: Box::new(|| ReadTurn::Done), asker, channel }
    }

    /// Lets all that waits have its turns, one at a time. Returns whose they were.
    fn order(queue: &mut Queue, took_us: u64) -> Vec<AskerId> {
        let mut order = Vec::new();
        while let Some(waiting) = queue.pop() {
            order.push(waiting.asker);
            queue.end(waiting, ReadTurn::Done, took_us);
        }
        order
    }

    #[test]
    fn a_small_read_does_not_wait_for_a_large_one() {
        let mut queue = Queue::default();
        let (greedy, modest) = (AskerId::next(), AskerId::next());
        for channel in 0..100 {
            queue.push(waiting(greedy, &channel.to_string()));
        }
        queue.push(waiting(modest, "a"));
        let turns = order(&mut queue, 1_000);
        assert_eq!(turns.len(), 101);
        assert!(turns[..2].contains(&modest), "{turns:?}");
        // It has had its part, however long ago that was.
        queue.push(waiting(greedy, "1"));
        queue.push(waiting(modest, "b"));
        assert_eq!(order(&mut queue, 1_000), [modest, greedy]);
        assert!(queue.clients.0.len() + queue.channels.0.len() < 110);
    }

    #[test]
    fn a_busy_channel_does_not_keep_others_waiting() {
        let mut queue = Queue::default();
        let clients: Vec<_> = (0..100).map(|_| AskerId::next()).collect();
        clients.iter().for_each(|client| queue.push(waiting(*client, "busy")));
        let other = AskerId::next();
        queue.push(waiting(other, "quiet"));
        assert!(order(&mut queue, 1_000)[..2].contains(&other));
    }

    #[test]
    fn no_client_and_no_channel_has_all_threads() {
        let client = AskerId::next();
        let mut of_client = Queue::default();
        (0..READERS).for_each(|channel| of_client.push(waiting(client, &channel.to_string())));
        let mut of_channel = Queue::default();
        (0..READERS).for_each(|_| of_channel.push(waiting(AskerId::next(), "a")));
        for queue in [&mut of_client, &mut of_channel] {
            let mut under_way: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
            assert_eq!(under_way.len(), READERS_OF_ONE);
            queue.end(under_way.pop().expect("there are some"), ReadTurn::Done, 1);
            assert!(queue.pop().is_some());
        }
    }

    #[test]
    fn threads_rest_while_nothing_can_be_read_yet() {
        let mut queue = Queue::default();
        for channel in ["a", "b"] {
            queue.push(waiting(AskerId::next(), channel));
        }
        for _ in 0..3 {
            assert!(!queue.waits());
            let next = queue.pop().expect("it waits");
            queue.end(next, ReadTurn::Later, 1);
        }
        assert!(queue.waits(), "each had its turn in vain");
        let next = queue.pop().expect("it waits");
        queue.end(next, ReadTurn::Done, 1);
        assert!(!queue.waits());
    }

    #[test]
    fn a_reading_with_more_to_read_comes_again_behind_others() {
        let mut queue = Queue::default();
        let (long, short) = (AskerId::next(), AskerId::next());
        queue.push(waiting(long, "a"));
        let first = queue.pop().expect("it waits");
        queue.push(waiting(short, "b"));
        queue.end(first, ReadTurn::Again, 5_000);
        assert_eq!(order(&mut queue, 1), [short, long]);
    }
}
