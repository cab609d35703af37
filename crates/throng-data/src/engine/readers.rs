//! The threads that read logs, so that nobody else waits for the disk.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Threads that read. A disk serves some requests at a time; most are served from memory.
const READERS: usize = 4;

/// Readings that wait at most. Beyond it they are refused: those before them take seconds.
const WAITING_MAX: usize = 65_536;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Threads that do one.
    busy: usize,
    is_ending: bool,
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
                while let Some(job) = next(&queue) {
                    job();
                    lock(&queue.0).busy -= 1;
                }
            };
            threads.push(std::thread::Builder::new().name("log-reader".into()).spawn(run)?);
        }
        Ok(Readers { queue, threads })
    }

    /// Whether nothing waits or is done.
    pub(super) fn are_idle(&self) -> bool {
        let queue = lock(&self.queue.0);
        queue.jobs.is_empty() && queue.busy == 0
    }

    /// Lets a thread do this. Dropped undone if too much waits.
    pub(super) fn submit(&self, job: impl FnOnce() + Send + 'static) {
        let mut queue = lock(&self.queue.0);
        if queue.jobs.len() < WAITING_MAX {
            queue.jobs.push_back(Box::new(job));
            drop(queue);
            self.queue.1.notify_one();
        }
    }
}

fn next(queue: &(Mutex<Queue>, Condvar)) -> Option<Job> {
    let is_idle = |queue: &mut Queue| queue.jobs.is_empty() && !queue.is_ending;
    let waited = queue.1.wait_while(lock(&queue.0), is_idle);
    let mut queue = waited.unwrap_or_else(PoisonError::into_inner);
    let job = if queue.is_ending { None } else { queue.jobs.pop_front() };
    queue.busy += usize::from(job.is_some());
    job
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
