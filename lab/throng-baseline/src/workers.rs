//! Threads with private descriptor tables, each with a state that only it has.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use throng_host::private_table;

/// The maximum time for the result of a task: longer than all timeouts of a task itself.
const RESULT_DEADLINE: Duration = Duration::from_secs(180);

type Task<S> = Box<dyn FnOnce(&mut S) + Send>;

/// Threads that execute tasks. Dropping it ends them.
pub(crate) struct Workers<S> {
    threads: Vec<Worker<S>>,
}

struct Worker<S> {
    tasks: Option<Sender<Task<S>>>,
    handle: Option<JoinHandle<()>>,
}

impl<S: 'static> Workers<S> {
    /// Starts threads, each with the state that `start` makes on it.
    pub(crate) fn start(count: usize, name: &str, start: fn() -> Result<S>) -> Result<Self> {
        let mut threads = Vec::with_capacity(count);
        for index in 0..count {
            let (tasks, tasked) = channel::<Task<S>>();
            let (started, outcome) = channel();
            let handle = private_table::spawn(format!("{name}-{index}"), move |unshared| {
                let unshared = unshared.context("cannot unshare the descriptor table");
                let state = unshared.and_then(|()| start());
                // Fails only while the workers are dropped.
                match state {
                    Err(error) => drop(started.send(Err(error))),
                    Ok(mut state) => {
                        let _ = started.send(Ok(()));
                        tasked.into_iter().for_each(|task| task(&mut state));
                    }
                }
            })?;
            threads.push(Worker { tasks: Some(tasks), handle: Some(handle) });
            outcome.recv().context("a thread has ended")??;
        }
        Ok(Self { threads })
    }

    pub(crate) fn len(&self) -> usize {
        self.threads.len()
    }

    /// Gives each thread the task that `task` makes for its index.
    pub(crate) fn ask<T, F>(&self, task: impl Fn(usize) -> F) -> Pending<T>
    where
        T: Send + 'static,
        F: FnOnce(&mut S) -> Result<T> + Send + 'static,
    {
        let ask = |(index, thread): (usize, &Worker<S>)| {
            let (result, results) = channel();
            let task = task(index);
            // A thread that has ended drops the task, which `wait` reports.
            let run: Task<S> = Box::new(move |state| drop(result.send(task(state))));
            thread.tasks.as_ref().map(|tasks| tasks.send(run));
            results
        };
        Pending(self.threads.iter().enumerate().map(ask).collect())
    }
}

/// The results of tasks.
pub(crate) struct Pending<T>(Vec<Receiver<Result<T>>>);

impl<T> Pending<T> {
    /// Waits for all results, in the order of the threads. Fails with the first error of a task.
    pub(crate) fn wait(self) -> Result<Vec<T>> {
        let wait = |result: Receiver<Result<T>>| {
            result.recv_timeout(RESULT_DEADLINE).map_err(|_| anyhow!("a thread does not answer"))?
        };
        self.0.into_iter().map(wait).collect()
    }
}

impl<S> Drop for Workers<S> {
    fn drop(&mut self) {
        // Ends all threads before it waits for one, so that they close at the same time.
        self.threads.iter_mut().for_each(|thread| thread.tasks = None);
        for handle in self.threads.iter_mut().filter_map(|thread| thread.handle.take()) {
            // A thread that panicked has closed its descriptors while unwinding.
            let _ = handle.join();
        }
    }
}
