//! The connection of a journal to a server: sockets and time, and nothing else.
//!
//! One task has the connection and the journal. What it hears it hands to the journal, and does
//! what that says. When the connection is lost, it connects to the next server of the list, again
//! and again; the journal answers for that time.

mod handshake;
mod lost;

use std::future::pending;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until};

use crate::journal::{Action, Event, Journal, Report};
use crate::protocol::decoder::{Decoder, ServerOp};
use crate::protocol::encoder;

use lost::Lost;

pub use handshake::Login;

/// How often a journal learns that time has passed.
const TICK: Duration = Duration::from_millis(50);

/// How often a server is asked whether it is there. A server that is silent for two such times is
/// given up: one that was cut off does not close its connections.
const PING: Duration = Duration::from_secs(2);

/// Pings without an answer, at most.
const PINGS_MAX: u32 = 2;

/// How long connecting and logging in may take.
const CONNECT: Duration = Duration::from_secs(2);

/// How long to wait before the next server is tried: nobody else is served by waiting longer, as
/// there are few nodes.
const RECONNECT: Duration = Duration::from_millis(200);

/// What is read at once.
const READ_BYTES: usize = 64 << 10;

/// While more than this waits to be written, the owner of the journal waits.
const UNWRITTEN_BYTES_MAX: usize = 8 << 20;

/// Events of the owner that are taken at once.
const EVENTS_AT_ONCE: usize = 256;

/// Where the servers are, and who this is.
#[derive(Debug, Clone)]
pub struct ClientSettings {
    /// `host:port` of each server.
    pub servers: Vec<String>,
    /// How to log in.
    pub login: Login,
    /// The name that the servers' monitoring shows.
    pub name: String,
    /// The clock, in milliseconds, which never goes back.
    pub now_ms: fn() -> u64,
}

/// What the owner of the journal is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// What the journal reports.
    Report(Report),
    /// A server cannot be reached, or has refused something.
    Trouble {
        /// Which server it is.
        server: String,
        /// What is wrong.
        error: String,
    },
}

/// Runs a journal until the senders of `events` are gone; who sends them bounds what may wait.
/// Everything is told by `notify`. While that blocks, the servers keep what comes, and in the end
/// disconnect, which loses nothing.
pub async fn run(
    settings: ClientSettings,
    journal: Journal,
    events: UnboundedReceiver<Event<'static>>,
    notify: impl FnMut(Notice) + Send,
) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let actions = Vec::new();
    let mut client = Client { settings, journal, events, notify, ticks, actions, out: Vec::new() };
    let mut attempt = 0;
    while !client.settings.servers.is_empty() {
        let server = client.settings.servers[attempt % client.settings.servers.len()].clone();
        attempt += 1;
        let lost = client.connect_and_serve(&server).await;
        if matches!(lost, Lost::Stopped) {
            return;
        }
        (client.notify)(Notice::Trouble { server, error: lost.to_string() });
        let until = Instant::now() + RECONNECT;
        if client.apart_from(sleep_until(until)).await.is_none() {
            return;
        }
    }
}

struct Client<F> {
    settings: ClientSettings,
    journal: Journal,
    events: UnboundedReceiver<Event<'static>>,
    notify: F,
    ticks: Interval,
    actions: Vec<Action>,
    /// What is to be written.
    out: Vec<u8>,
}

impl<F: FnMut(Notice) + Send> Client<F> {
    async fn connect_and_serve(&mut self, server: &str) -> Lost {
        let (address, login) = (server.to_owned(), self.settings.login.clone());
        let name = self.settings.name.clone();
        let connecting = tokio::time::timeout(CONNECT, async move {
            let mut stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let mut decoder = Decoder::default();
            let most = handshake::log_in(&mut stream, &mut decoder, &login, &name).await?;
            Ok((stream, decoder, most))
        });
        match self.apart_from(connecting).await {
            None => Lost::Stopped,
            Some(Err(_)) => Lost::Silent,
            Some(Ok(Err(lost))) => lost,
            Some(Ok(Ok((stream, decoder, payload_bytes_max)))) => {
                self.out.clear();
                self.step(Event::Connected { payload_bytes_max });
                let lost = self.serve(server, stream, decoder).await;
                let lost = match lost {
                    Err(lost) => lost,
                    Ok(never) => match never {},
                };
                self.step(Event::Disconnected);
                self.out.clear();
                lost
            }
        }
    }

    /// Waits for something without a connection, while events and time go on. `None` if the owner
    /// is gone.
    async fn apart_from<T>(&mut self, waiting: impl Future<Output = T>) -> Option<T> {
        let mut waiting = std::pin::pin!(waiting);
        loop {
            tokio::select! {
                done = &mut waiting => return Some(done),
                _ = self.ticks.tick() => self.step(Event::Tick),
                event = self.events.recv() => {
                    let event = event?;
                    self.step(event);
                }
            }
        }
    }

    async fn serve(
        &mut self,
        server: &str,
        stream: TcpStream,
        mut decoder: Decoder,
    ) -> Result<std::convert::Infallible, Lost> {
        let (mut reader, mut writer) = stream.into_split();
        let mut buffer = vec![0; READ_BYTES];
        let (mut written, mut pings) = (0, 0);
        let mut events = Vec::with_capacity(EVENTS_AT_ONCE);
        let mut ping = tokio::time::interval_at(Instant::now() + PING, PING);
        // After a pause of this thread, the server has to have time to answer.
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.take_in(server, &mut decoder, &mut pings)?;
        loop {
            if written == self.out.len() {
                self.out.clear();
                written = 0;
            }
            let (unwritten, has_room) =
                (&self.out[written..], self.out.len() - written < UNWRITTEN_BYTES_MAX);
            let write = async {
                if unwritten.is_empty() { pending().await } else { writer.write(unwritten).await }
            };
            tokio::select! {
                count = write => written += count?,
                count = reader.read(&mut buffer) => match count? {
                    0 => return Err(Lost::Closed),
                    count => {
                        decoder.feed(&buffer[..count]);
                        self.take_in(server, &mut decoder, &mut pings)?;
                    }
                },
                count = self.events.recv_many(&mut events, EVENTS_AT_ONCE), if has_room => {
                    if count == 0 {
                        return Err(Lost::Stopped);
                    }
                    events.drain(..).for_each(|event| self.step(event));
                }
                _ = self.ticks.tick() => self.step(Event::Tick),
                _ = ping.tick() => {
                    if pings >= PINGS_MAX {
                        return Err(Lost::Silent);
                    }
                    pings += 1;
                    encoder::ping(&mut self.out);
                }
            }
        }
    }

    /// Takes what the server has sent.
    fn take_in(
        &mut self,
        server: &str,
        decoder: &mut Decoder,
        pings: &mut u32,
    ) -> Result<(), Lost> {
        while let Some(op) = decoder.next_op()? {
            // Whatever it says, it is there.
            *pings = 0;
            match op {
                ServerOp::Message(delivery) => self.step(Event::Received(delivery)),
                ServerOp::Ping => encoder::pong(&mut self.out),
                ServerOp::Info(_) | ServerOp::Pong | ServerOp::Ok => {}
                // Only this one leaves the connection open.
                ServerOp::Error(error) if error.starts_with("Permissions Violation") => {
                    let (server, error) = (server.to_owned(), error.to_owned());
                    (self.notify)(Notice::Trouble { server, error });
                }
                ServerOp::Error(error) => return Err(Lost::Said(error.to_owned())),
            }
        }
        Ok(())
    }

    fn step(&mut self, event: Event<'_>) {
        self.journal.step((self.settings.now_ms)(), event, &mut self.actions);
        for action in self.actions.drain(..) {
            match action {
                Action::Subscribe { subject, sid } => {
                    encoder::subscribe(&mut self.out, &subject, sid);
                }
                Action::Unsubscribe { sid } => encoder::unsubscribe(&mut self.out, sid),
                Action::Publish { subject, reply, headers, payload } => {
                    let reply = reply.as_deref();
                    encoder::publish(&mut self.out, &subject, reply, &headers, &payload);
                }
                Action::Report(report) => (self.notify)(Notice::Report(report)),
            }
        }
    }
}
