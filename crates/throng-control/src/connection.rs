//! One socket's life in the control plane: requests, deadlines, the way back to a worker, the end.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, timeout};

use crate::answer::{Code, Refused};
use crate::control::Control;
use crate::edge::Arrival;
use crate::gate::{Closed, Gate, Handle};
use crate::service::Service;

/// Deadlines are looked at this often within the shortest of them: they are late by that much.
const LOOKS_PER_DEADLINE: u32 = 4;
/// And not more often than this.
const LOOK_INTERVAL_MIN: Duration = Duration::from_millis(50);
/// After a last answer the client gets so long to read it before the socket is closed for good,
/// because closing a socket with unread bytes destroys what was written to it.
const LINGER: Duration = Duration::from_secs(2);
/// What it still sends meanwhile is thrown away, up to so many bytes.
const LINGER_BYTES_MAX: usize = 1 << 20;
/// Last words to a client that does not read are given up after this.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// How hyper's part ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// All is answered, or the client is gone.
    Finished,
    /// The gate has closed.
    Gate,
    /// A head has begun and does not end.
    SlowHead,
    /// Nothing has come or gone for too long.
    Idle,
    /// The socket is broken.
    Broken,
}

/// Serves one socket until it ends or goes back to a worker.
pub(crate) async fn run(
    control: &Control,
    service: Service,
    arrival: Arrival,
    draining: watch::Receiver<bool>,
) {
    let Ok(stream) = TcpStream::from_std(arrival.stream) else {
        return;
    };
    let gate = Gate::new(stream, &arrival.bytes, control.settings.head_bytes_max);
    drop(arrival.bytes);
    let handle = Handle(Arc::new(Mutex::new(gate)));
    let end = serve(control, &service, handle.clone(), draining).await;
    let Some(gate) = Arc::into_inner(handle.0) else {
        return;
    };
    let gate = gate.into_inner().unwrap_or_else(PoisonError::into_inner);
    // An error here is the client's: it is gone.
    let _ = finish(control, gate, end).await;
}

/// Hyper's part.
async fn serve(
    control: &Control,
    service: &Service,
    handle: Handle,
    mut draining: watch::Receiver<bool>,
) -> End {
    let answer =
        service_fn(
            |request| async move { Ok::<_, Infallible>(service.answer(control, request).await) },
        );
    let connection = http1::Builder::new()
        .half_close(true)
        .header_read_timeout(None)
        .max_buf_size((control.settings.head_bytes_max + 1024).max(16 << 10))
        .serve_connection(TokioIo::new(handle.clone()), answer);
    let mut connection = pin!(connection);
    let mut draining =
        pin!(async move { draining.wait_for(|is_draining| *is_draining).await.is_ok() });
    let mut is_draining = false;
    let mut deadlines = Deadlines::new(control);
    std::future::poll_fn(|cx| {
        if !is_draining && draining.as_mut().poll(cx).is_ready() {
            is_draining = true;
            connection.as_mut().graceful_shutdown();
        }
        if connection.as_mut().poll(cx).is_ready() {
            return Poll::Ready(End::Finished);
        }
        let mut gate = handle.lock();
        if gate.is_done() {
            return Poll::Ready(End::Gate);
        }
        if let Poll::Ready(Err(_)) = gate.poll_drain(cx) {
            return Poll::Ready(End::Broken);
        }
        while deadlines.interval.poll_tick(cx).is_ready() {
            if let Some(end) = deadlines.look(&gate) {
                return Poll::Ready(end);
            }
        }
        Poll::Pending
    })
    .await
}

/// What is to happen by when. Looked at now and then, so that a request costs no timer.
struct Deadlines {
    interval: Interval,
    head_timeout: Duration,
    idle_timeout: Duration,
    /// When something last came or went, as far as was looked.
    last: (u64, Instant),
    /// Since when the head of this number has been incomplete.
    head: Option<(u64, Instant)>,
}

impl Deadlines {
    fn new(control: &Control) -> Deadlines {
        let settings = &control.settings;
        let shortest = settings.head_timeout.min(settings.idle_timeout);
        let period = (shortest / LOOKS_PER_DEADLINE).max(LOOK_INTERVAL_MIN);
        let now = Instant::now();
        let mut interval = interval_at(now + period, period);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Deadlines {
            interval,
            head_timeout: settings.head_timeout,
            idle_timeout: settings.idle_timeout,
            last: (0, now),
            head: None,
        }
    }

    fn look(&mut self, gate: &Gate) -> Option<End> {
        let now = Instant::now();
        if gate.is_mid_head() {
            match self.head {
                Some((number, since)) if number == gate.heads() => {
                    if now - since >= self.head_timeout {
                        return Some(End::SlowHead);
                    }
                }
                _ => self.head = Some((gate.heads(), now)),
            }
        } else {
            self.head = None;
        }
        if gate.progress() != self.last.0 {
            self.last = (gate.progress(), now);
        }
        (now - self.last.1 >= self.idle_timeout).then_some(End::Idle)
    }
}

/// What comes after hyper.
async fn finish(control: &Control, mut gate: Gate, end: End) -> io::Result<()> {
    let refused = match end {
        End::Broken | End::Idle => return Ok(()),
        End::Finished => None,
        End::SlowHead => {
            Some(Refused::new(Code::TooSlow, "the request head did not arrive in time"))
        }
        End::Gate => match gate.take_closed() {
            Some(Closed::Subscription(_)) if control.is_draining() => Some(Refused::draining()),
            Some(Closed::Subscription(refusal)) if gate.heads() == 0 => {
                // The worker took it for something else: giving it back would send it to and fro
                // for ever.
                Some(refusal.map_or_else(not_for_here, Refused::from))
            }
            Some(Closed::Subscription(_)) => return hand_back(control, gate).await,
            Some(Closed::Refused(refusal)) => Some(refusal.into()),
            None => None,
        },
    };
    if let Some(refused) = &refused {
        say(control, &mut gate, refused);
    }
    timeout(LAST_WORDS, drain(&mut gate)).await??;
    let is_clean = refused.is_none() && gate.is_clean();
    let (stream, _) = gate.into_parts();
    if is_clean { Ok(()) } else { linger(stream).await }
}

fn not_for_here() -> Refused {
    Refused::new(Code::BadRequest, "the control plane does not serve subscriptions")
}

fn say(control: &Control, gate: &mut Gate, refused: &Refused) {
    let mut bytes = Vec::new();
    refused.write_raw(control, &mut bytes);
    gate.push_output(&bytes);
}

async fn drain(gate: &mut Gate) -> io::Result<()> {
    std::future::poll_fn(|cx| gate.poll_drain(cx)).await
}

/// Gives the socket back to a worker, with the request that subscribes. The answers to the
/// requests before it are written first.
async fn hand_back(control: &Control, mut gate: Gate) -> io::Result<()> {
    if gate.has_output() {
        timeout(LAST_WORDS, drain(&mut gate)).await??;
    }
    let (stream, bytes) = gate.into_parts();
    let Err(stream) = control.edge.hand_back(stream.into_std()?, &bytes) else {
        control.figures.handed_back.add(1);
        return Ok(());
    };
    let mut stream = TcpStream::from_std(stream)?;
    let mut words = Vec::new();
    Refused::new(Code::Full, "there is no room for another connection")
        .write_raw(control, &mut words);
    timeout(LAST_WORDS, stream.write_all(&words)).await??;
    linger(stream).await
}

/// Closes a socket from which something may still come, so that the last answer survives.
async fn linger(mut stream: TcpStream) -> io::Result<()> {
    stream.shutdown().await?;
    let mut scratch = vec![0; 8 << 10];
    let mut left = LINGER_BYTES_MAX;
    let read_all = async {
        while left > 0 {
            match stream.read(&mut scratch).await {
                Ok(0) | Err(_) => break,
                Ok(read) => left = left.saturating_sub(read),
            }
        }
    };
    let _ = timeout(LINGER, read_all).await;
    Ok(())
}
