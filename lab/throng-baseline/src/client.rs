//! The client: many connections to one server. Throng and the raw loop get the same.
//!
//! # Layout
//!
//! - [`target`]: the request of a connection.
//! - [`subscribers`]: the connections of one thread.
//!
//! Each thread has a private descriptor table, so that `RLIMIT_NOFILE` limits the connections of a
//! thread, not of all. Connection `i` belongs to thread `i % threads`.

pub(crate) mod subscribers;
pub(crate) mod target;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use throng_host::private_table;

use subscribers::{Batch, Parking, Part, Subscribers};
use target::Target;

/// The maximum time for a thread's answer: longer than all timeouts of the thread itself.
const ANSWER_DEADLINE: Duration = Duration::from_secs(180);

enum Command {
    Connect(Batch),
    Round { message_bytes: usize, timeout: Duration },
    Park(Arc<Parking>),
}

enum Answer {
    Connected,
    Ready,
    Received(Part),
    Parked,
    Failed(String),
}

/// Connections on one or more threads. Dropping it closes them.
pub(crate) struct Client {
    threads: Vec<Thread>,
    connections: usize,
}

struct Thread {
    commands: Option<Sender<Command>>,
    answers: Receiver<Answer>,
    handle: Option<JoinHandle<()>>,
}

/// The deliveries of a round.
#[derive(Debug)]
pub(crate) struct Deliveries {
    /// From the publish to the last byte of the message, for each connection.
    pub(crate) latencies_ms: Vec<f64>,
    /// CPU time of the client for it.
    pub(crate) cpu_ns: u64,
}

/// Parked connections; the parking ends with [`Client::unpark`] or on drop.
pub(crate) struct Parked(Arc<Parking>);

impl Client {
    /// Starts the threads, without connections.
    pub(crate) fn start(threads: usize) -> Result<Self> {
        let threads = (0..threads).map(Thread::start).collect::<Result<_>>()?;
        Ok(Self { threads, connections: 0 })
    }

    /// Adds `count` connections and waits until all are subscribed.
    pub(crate) fn connect(&mut self, target: &Target, ports: &[u16], count: usize) -> Result<()> {
        let (step, end) = (self.threads.len(), self.connections + count);
        for (index, thread) in self.threads.iter().enumerate() {
            // The distance to this thread's first new number.
            let ahead = (index + step - self.connections % step) % step;
            let (first, ports) = (self.connections + ahead, ports.into());
            thread.send(Command::Connect(Batch {
                target: target.clone(),
                first,
                step,
                end,
                ports,
            }))?;
        }
        for thread in &self.threads {
            let Answer::Connected = thread.answer()? else {
                bail!("a client thread sent another answer")
            };
        }
        self.connections = end;
        Ok(())
    }

    /// Calls `publish`, and waits until each connection has received `message_bytes`. An error if a
    /// connection received less within `timeout`, or more.
    pub(crate) fn round(
        &self,
        message_bytes: usize,
        timeout: Duration,
        publish: impl FnOnce() -> Result<()>,
    ) -> Result<Deliveries> {
        for thread in &self.threads {
            thread.send(Command::Round { message_bytes, timeout })?;
        }
        for thread in &self.threads {
            let Answer::Ready = thread.answer()? else {
                bail!("a client thread sent another answer")
            };
        }
        let started = Instant::now();
        let published = publish();
        let mut deliveries =
            Deliveries { latencies_ms: Vec::with_capacity(self.connections), cpu_ns: 0 };
        let (mut missing, mut closed, mut surplus) = (0, 0, 0);
        for thread in &self.threads {
            let Answer::Received(part) = thread.answer()? else {
                bail!("a client thread sent another answer")
            };
            let latencies = part.completed.iter().map(|at| ms(at.duration_since(started)));
            deliveries.latencies_ms.extend(latencies);
            deliveries.cpu_ns += part.cpu_ns;
            missing += part.missing;
            closed += part.closed;
            surplus += part.surplus;
        }
        published?;
        ensure!(
            missing == 0 && closed == 0 && surplus == 0,
            "of {} connections {missing} did not receive the whole message within {timeout:?}, \
             {closed} were closed and {surplus} received too much",
            self.connections
        );
        Ok(deliveries)
    }

    /// Makes the connections answer pings until [`unpark`](Self::unpark).
    pub(crate) fn park(&self) -> Result<Parked> {
        let parking = Arc::new(Parking::default());
        for thread in &self.threads {
            thread.send(Command::Park(Arc::clone(&parking)))?;
        }
        Ok(Parked(parking))
    }

    /// Ends the parking. An error if a connection was lost.
    pub(crate) fn unpark(&self, parked: Parked) -> Result<()> {
        drop(parked);
        for thread in &self.threads {
            let Answer::Parked = thread.answer()? else {
                bail!("a client thread sent another answer")
            };
        }
        Ok(())
    }
}

impl Parked {
    /// Connections that have had at least one heartbeat.
    pub(crate) fn pinged(&self) -> usize {
        self.0.pinged.load(Ordering::Relaxed)
    }

    /// Heartbeats so far, of all connections.
    pub(crate) fn pings(&self) -> usize {
        self.0.pings.load(Ordering::Relaxed)
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

impl Thread {
    fn start(index: usize) -> Result<Self> {
        let (commands, commanded) = channel();
        let (sender, answers) = channel();
        let handle = private_table::spawn(format!("client-{index}"), move |unshared| {
            let outcome = unshared
                .context("cannot unshare the descriptor table")
                .and_then(|()| serve(&commanded, &sender));
            if let Err(error) = outcome {
                // Fails only while the client is dropped.
                let _ = sender.send(Answer::Failed(format!("{error:#}")));
            }
        })?;
        Ok(Self { commands: Some(commands), answers, handle: Some(handle) })
    }

    fn send(&self, command: Command) -> Result<()> {
        let sent = self.commands.as_ref().map(|commands| commands.send(command));
        if let Some(Ok(())) = sent {
            return Ok(());
        }
        // Its last answer is why it ended.
        match self.answer() {
            Err(error) => Err(error),
            Ok(_) => Err(anyhow!("a client thread has ended")),
        }
    }

    fn answer(&self) -> Result<Answer> {
        match self
            .answers
            .recv_timeout(ANSWER_DEADLINE)
            .context("a client thread does not answer")?
        {
            Answer::Failed(error) => Err(anyhow!(error)),
            answer => Ok(answer),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Ends all threads before it waits for one, so that they close at the same time.
        for thread in &mut self.threads {
            thread.commands = None;
        }
        for handle in self.threads.iter_mut().filter_map(|thread| thread.handle.take()) {
            // A thread that panicked has closed its connections while unwinding.
            let _ = handle.join();
        }
    }
}

/// Executes commands until the client is dropped.
fn serve(commanded: &Receiver<Command>, answers: &Sender<Answer>) -> Result<()> {
    let mut subscribers = Subscribers::new()?;
    for command in commanded {
        let answer = match command {
            Command::Connect(batch) => {
                subscribers.connect(&batch)?;
                Answer::Connected
            }
            Command::Round { message_bytes, timeout } => {
                subscribers.reset_counts();
                answers.send(Answer::Ready)?;
                let deadline = Instant::now() + timeout;
                Answer::Received(subscribers.receive_round(message_bytes, deadline)?)
            }
            Command::Park(parking) => {
                subscribers.park(&parking)?;
                Answer::Parked
            }
        };
        answers.send(answer)?;
    }
    Ok(())
}

/// A duration in milliseconds.
pub(crate) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests;
