//! The connection of a journal to a server: sockets and time, and nothing else.
//!
//! One task owns the connection and the journal. It hands received events to the journal, and
//! carries out its actions. When the connection is lost, it connects to the next server, again and
//! again; the journal answers for that time.
//!
//! | module | what it is |
//! |---|---|
//! | `address` | where a server is |
//! | `servers` | which servers there are, also those that the cluster announces |
//! | `source` | what is asked for anew for each connection |
//! | `nkey`, `login` | who logs in |
//! | `stream` | bytes, with or without TLS |
//! | `handshake` | connecting, TLS and logging in |
//! | `lost` | why a connection ended |
//! | `session` | a connection for those who examine servers |
//! | `unwritten` | what is yet to be written |
//! | [`version`] | which servers are too old |
//! | this file | the connection and its journal |

mod address;
mod handshake;
mod login;
mod lost;
mod nkey;
mod servers;
mod session;
mod source;
mod stream;
mod unwritten;
pub mod version;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::pending;
use std::pin::Pin;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, WriteHalf};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep, sleep_until, timeout};

use crate::api::NatsLimit;
use crate::journal::{JournalAction, JournalEvent, JournalReport, StreamJournal};
use crate::protocol::decoder::{Decoder, ServerOp};
use crate::protocol::encoder;

use handshake::Connected;
use lost::ConnectionLost;
use servers::{KnownServer, Said, Servers};
use stream::ServerStream;
use unwritten::Unwritten;

pub use address::ServerAddress;
pub use handshake::{Info, NatsTls};
pub use login::{Login, LoginError};
pub use nkey::{SeedError, UserKey};
pub use session::{NatsSession, SessionReply};
pub use source::Source;

/// How often a journal learns that time has passed.
const TICK: Duration = Duration::from_millis(50);

/// How often a server is asked whether it is there. A server that is silent for two such times is
/// given up: one that was cut off does not close its connections.
const PING: Duration = Duration::from_secs(2);

/// How often a server that has answered is asked again, to know how far everything has come:
/// positions of clients follow that.
const ASK: Duration = Duration::from_millis(200);

/// Pings without an answer, at most.
const PINGS_MAX: u32 = 2;

/// Pings whose answers are waited for, at most. While a server sends other things, it may answer
/// any number of them later.
const PINGS_KEPT: usize = 64;

/// How long connecting and logging in may take.
const CONNECT: Duration = Duration::from_secs(2);

/// How long to wait before the next server is tried: nobody else is served by waiting longer, as
/// there are few nodes.
const RECONNECT: Duration = Duration::from_millis(200);

/// The same after servers that answer have refused this client so often that trying again at once
/// would only burden them.
const RECONNECT_REFUSED_MAX: Duration = Duration::from_secs(5);

/// A connection that has lasted for this time was no refusal.
const LASTING: Duration = Duration::from_secs(10);

/// A server that hangs up within this time after a complaint does so because of it.
const COMPLAINT: Duration = Duration::from_secs(5);

/// How long telling the others that the node ends may take.
const LEAVE: Duration = Duration::from_millis(400);

const READ_BYTES: usize = 64 << 10;

/// While more than this waits to be written, the owner of the journal waits, and nothing is sent
/// again.
const UNWRITTEN_BYTES_MAX: usize = 8 << 20;

/// The list of pending actions keeps memory for at most this many.
const ACTIONS_KEPT: usize = 1_024;

/// Events of the owner that are taken at once.
const EVENTS_AT_ONCE: usize = 256;

/// Where the servers are, and who this is.
#[derive(Debug, Clone)]
pub struct NatsClientSettings {
    /// The servers, in the order in which they are tried. Those that they announce come after them.
    pub servers: Vec<ServerAddress>,
    /// How to log in.
    pub login: Source<Login>,
    /// How TLS is spoken, where it is.
    pub tls: NatsTls,
    /// The name that the servers' monitoring shows.
    pub name: String,
    /// The clock, in milliseconds, which never goes back.
    pub now_ms: fn() -> u64,
}

/// News for the owner of the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    Report(JournalReport),
    /// A server cannot be reached, or has refused something.
    Trouble {
        server: String,
        error: String,
    },
    /// A server has refused something because of a limit.
    Limit(NatsLimit),
    /// A server is too old for nodes: [`version`](super::version) says why.
    Old {
        server: String,
        /// As it says in its INFO.
        version: String,
    },
    /// Time has passed: told about twenty times a second, whatever becomes of the connection.
    Turn,
    /// All was told that has come at once: what waits for that need wait no longer.
    Rest,
    /// How late is what comes from the server: the time that it takes to answer, behind everything
    /// that was under way before. Told every two seconds.
    Lag {
        /// That time, in milliseconds; that which has passed if the answer is still under way.
        ms: u64,
    },
    /// All that the servers had sent when they were asked last has come, and they were not asked
    /// again since.
    CaughtUp,
}

/// Runs a journal until the senders of `events` are gone, or [`JournalEvent::Leave`] or
/// [`JournalEvent::Cede`] comes; who sends them bounds what may wait. Everything is told by
/// `notify`. While that blocks, the servers keep what comes, and in the end disconnect, which loses
/// nothing.
pub async fn run(
    settings: NatsClientSettings,
    journal: StreamJournal,
    events: UnboundedReceiver<JournalEvent<'static>>,
    notify: impl FnMut(Notice) + Send,
) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (actions, out) = (Vec::new(), Unwritten::default());
    let servers = Servers::new(&settings.servers);
    let mut client = Client { settings, servers, journal, events, notify, ticks, actions, out };
    let mut pause = RECONNECT;
    while let Some(server) = client.servers.next() {
        let began = Instant::now();
        let lost = client.connect_and_serve(&server).await;
        if matches!(lost, ConnectionLost::Stopped) {
            return;
        }
        match &lost {
            ConnectionLost::Old { version } => {
                let (server, version) = (server.address.to_string(), version.clone());
                (client.notify)(Notice::Old { server, version });
            }
            lost => {
                let said = lost.to_string();
                let limit = NatsLimit::of_complaint(&said);
                limit.into_iter().for_each(|limit| (client.notify)(Notice::Limit(limit)));
                client.trouble(&server, said);
            }
        }
        let is_refused = lost.is_refusal() && began.elapsed() < LASTING;
        pause = if is_refused { (2 * pause).min(RECONNECT_REFUSED_MAX) } else { RECONNECT };
        let until = Instant::now() + pause;
        if client.apart_from(sleep_until(until)).await.is_none() {
            return;
        }
    }
}

/// A search for another server, while one still serves.
type Moving = Pin<Box<dyn Future<Output = Box<(KnownServer, Connected)>> + Send>>;

async fn moving(moving: &mut Option<Moving>) -> Box<(KnownServer, Connected)> {
    match moving {
        Some(moving) => moving.await,
        None => pending().await,
    }
}

/// Connects to one of these servers that is not `from`.
async fn find_other(
    settings: NatsClientSettings,
    mut servers: Servers,
    from: ServerAddress,
) -> Box<(KnownServer, Connected)> {
    let NatsClientSettings { login, tls, name, .. } = settings;
    loop {
        if let Some(server) = servers.next().filter(|server| server.address != from) {
            let connecting = handshake::connect(&server, &login, &tls, &name);
            if let Ok(Ok(connected)) = timeout(CONNECT, connecting).await
                && !version::is_old(&connected.info.version)
            {
                return Box::new((server, connected));
            }
        }
        sleep(RECONNECT / 4).await;
    }
}

/// How serving a connection ends.
enum Ended {
    Lost(ConnectionLost),
    /// The server is about to shut down, and there is a connection to another one.
    Moved(Box<(KnownServer, Connected)>),
}

impl<L: Into<ConnectionLost>> From<L> for Ended {
    fn from(lost: L) -> Ended {
        Ended::Lost(lost.into())
    }
}

/// Writes some bytes, or flushes those that TLS may keep. Nothing to do takes for ever.
async fn write(
    writer: &mut WriteHalf<ServerStream>,
    unwritten: &[u8],
    is_flushed: bool,
) -> std::io::Result<usize> {
    match (unwritten.is_empty(), is_flushed) {
        (false, _) => writer.write(unwritten).await,
        (true, false) => writer.flush().await.map(|()| 0),
        (true, true) => pending().await,
    }
}

/// True if the connection ends after an event.
fn is_last(event: &JournalEvent<'_>) -> bool {
    matches!(event, JournalEvent::Leave | JournalEvent::Cede)
}

struct Client<F> {
    settings: NatsClientSettings,
    servers: Servers,
    journal: StreamJournal,
    events: UnboundedReceiver<JournalEvent<'static>>,
    notify: F,
    ticks: Interval,
    actions: Vec<JournalAction>,
    out: Unwritten,
}

/// A connection that is served.
struct Serving<'a> {
    server: &'a KnownServer,
    decoder: Decoder,
    login: Login,
    /// How the server says what it says now.
    said: Said,
    /// Pings since the server was heard last.
    pings: u32,
    /// Looks for another server, once this one is about to shut down.
    moving: Option<Moving>,
    /// When pings were sent that are not answered yet.
    pinged_ms: VecDeque<u64>,
    /// The server's last complaint about this client, before it perhaps hangs up, and its time.
    complaint: Option<(ConnectionLost, Instant)>,
}

impl<'a> Serving<'a> {
    fn new((server, decoder, login): (&'a KnownServer, Decoder, Login), said: Said) -> Serving<'a> {
        let (pinged_ms, moving) = (VecDeque::new(), None);
        Serving { server, decoder, login, said, pings: 0, moving, pinged_ms, complaint: None }
    }

    /// The server has hung up: because of its complaint, if it has just made one.
    fn hung_up(&mut self, otherwise: ConnectionLost) -> ConnectionLost {
        let complaint = self.complaint.take();
        let recent = complaint.filter(|(_, said)| said.elapsed() < COMPLAINT);
        recent.map_or(otherwise, |(lost, _)| lost)
    }
}

impl<F: FnMut(Notice) + Send> Client<F> {
    async fn connect_and_serve(&mut self, server: &KnownServer) -> ConnectionLost {
        let (to, settings) = (server.clone(), self.settings.clone());
        let connecting = timeout(CONNECT, async move {
            handshake::connect(&to, &settings.login, &settings.tls, &settings.name).await
        });
        match self.apart_from(connecting).await {
            None => ConnectionLost::Stopped,
            Some(Err(_)) => ConnectionLost::Silent,
            Some(Ok(Err(lost))) => lost,
            Some(Ok(Ok(connected))) if version::is_old(&connected.info.version) => {
                ConnectionLost::Old { version: connected.info.version }
            }
            Some(Ok(Ok(connected))) => self.serve_all(server.clone(), connected).await,
        }
    }

    /// Serves a connection, and those to other servers that take its place.
    async fn serve_all(
        &mut self,
        mut server: KnownServer,
        mut connected: Connected,
    ) -> ConnectionLost {
        let mut is_moved = false;
        loop {
            self.out.clear();
            self.servers.announced(&server, &connected.info.connect_urls, connected.said);
            let payload_bytes_max = connected.info.max_payload;
            self.step(if is_moved {
                JournalEvent::Moved { payload_bytes_max }
            } else {
                JournalEvent::Connected { payload_bytes_max }
            });
            let cluster = connected.info.cluster.clone();
            let Err(ended) = self.serve(&server, connected).await;
            if let Ended::Moved(next) = &ended {
                // Others may have another stream.
                is_moved = cluster.is_some() && next.1.info.cluster == cluster;
            }
            if !is_moved || matches!(ended, Ended::Lost(_)) {
                self.step(JournalEvent::Disconnected);
            }
            match ended {
                Ended::Moved(next) => (server, connected) = *next,
                Ended::Lost(lost) => {
                    self.out.clear();
                    return lost;
                }
            }
        }
    }

    fn trouble(&mut self, server: &KnownServer, error: String) {
        (self.notify)(Notice::Trouble { server: server.address.to_string(), error });
    }

    /// Waits for something without a connection, while events and time go on. `None` if the owner
    /// is gone.
    async fn apart_from<T>(&mut self, waiting: impl Future<Output = T>) -> Option<T> {
        let mut waiting = std::pin::pin!(waiting);
        loop {
            tokio::select! {
                done = &mut waiting => return Some(done),
                _ = self.ticks.tick() => self.step(JournalEvent::Tick),
                event = self.events.recv() => {
                    let event = event.filter(|event| !is_last(event))?;
                    self.step(event);
                }
            }
        }
    }

    async fn serve(
        &mut self,
        server: &KnownServer,
        connected: Connected,
    ) -> Result<Infallible, Ended> {
        let Connected { stream, decoder, login, .. } = connected;
        let said = if stream.is_tls() { Said::OverTls } else { Said::Plainly };
        let mut serving = Serving::new((server, decoder, login), said);
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut buffer = vec![0; READ_BYTES];
        let (mut is_flushed, mut is_clogged) = (true, false);
        let mut events = Vec::with_capacity(EVENTS_AT_ONCE);
        let mut ping = tokio::time::interval_at(Instant::now() + PING, PING);
        let mut ask = tokio::time::interval_at(Instant::now() + ASK, ASK);
        ask.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // After a pause of this thread, the server has to have time to answer.
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.take_in(&mut serving)?;
        loop {
            let has_room = self.out.bytes().len() < UNWRITTEN_BYTES_MAX;
            if is_clogged == has_room {
                is_clogged = !has_room;
                self.step(JournalEvent::Clogged(is_clogged));
            }
            tokio::select! {
                next = moving(&mut serving.moving) => return Err(Ended::Moved(next)),
                count = write(&mut writer, self.out.bytes(), is_flushed) => {
                    let count = count.map_err(|error| serving.hung_up(error.into()))?;
                    is_flushed = count == 0;
                    self.out.wrote(count);
                }
                count = reader.read(&mut buffer) => match count {
                    Ok(0) => return Err(serving.hung_up(ConnectionLost::Closed).into()),
                    Err(error) => return Err(serving.hung_up(error.into()).into()),
                    Ok(count) => {
                        serving.decoder.feed(&buffer[..count]);
                        self.take_in(&mut serving)?;
                    }
                },
                count = self.events.recv_many(&mut events, EVENTS_AT_ONCE), if has_room => {
                    if count == 0 {
                        return Err(ConnectionLost::Stopped.into());
                    }
                    let leaves = events.iter().any(is_last);
                    events.drain(..).for_each(|event| self.hear(event));
                    (self.notify)(Notice::Rest);
                    if leaves {
                        let rest = writer.write_all(self.out.bytes());
                        // Others notice without it, some seconds later.
                        let _ = timeout(LEAVE, rest).await;
                        return Err(ConnectionLost::Stopped.into());
                    }
                }
                _ = self.ticks.tick() => self.step(JournalEvent::Tick),
                _ = ask.tick() => {
                    if serving.pinged_ms.is_empty() {
                        self.ping(&mut serving);
                    }
                }
                _ = ping.tick() => {
                    if serving.pings >= PINGS_MAX {
                        return Err(ConnectionLost::Silent.into());
                    }
                    serving.pings += 1;
                    self.ping(&mut serving);
                }
            }
        }
    }

    /// Asks whether the server is there, and tells how long an earlier question has no answer.
    fn ping(&mut self, serving: &mut Serving<'_>) {
        let now_ms = (self.settings.now_ms)();
        if let Some(pinged_ms) = serving.pinged_ms.front() {
            let ms = now_ms.saturating_sub(*pinged_ms);
            (self.notify)(Notice::Lag { ms });
        }
        if serving.pinged_ms.len() < PINGS_KEPT {
            serving.pinged_ms.push_back(now_ms);
            self.hear(JournalEvent::Pinged);
            encoder::ping(self.out.end());
        }
    }

    /// Takes what the server has sent.
    fn take_in(&mut self, serving: &mut Serving<'_>) -> Result<(), ConnectionLost> {
        let taken = self.take_ops(serving);
        (self.notify)(Notice::Rest);
        taken
    }

    fn take_ops(&mut self, serving: &mut Serving<'_>) -> Result<(), ConnectionLost> {
        while let Some(op) = serving.decoder.next_op()? {
            // Any answer shows that it is alive.
            serving.pings = 0;
            match op {
                ServerOp::Message(delivery) => self.hear(JournalEvent::Received(delivery)),
                ServerOp::Ping => encoder::pong(self.out.end()),
                ServerOp::Info(info) => {
                    let info = Info::read(info)?;
                    self.servers.announced(serving.server, &info.connect_urls, serving.said);
                    self.hear(JournalEvent::Payload { bytes_max: info.max_payload });
                    if info.shuts_down && self.servers.count() > 1 && serving.moving.is_none() {
                        let soon = "the server is about to shut down; going to another";
                        self.trouble(serving.server, soon.into());
                        let from = serving.server.address.clone();
                        let (settings, servers) = (self.settings.clone(), self.servers.clone());
                        serving.moving = Some(Box::pin(find_other(settings, servers, from)));
                    }
                }
                ServerOp::Pong => {
                    if let Some(pinged_ms) = serving.pinged_ms.pop_front() {
                        let ms = (self.settings.now_ms)().saturating_sub(pinged_ms);
                        (self.notify)(Notice::Lag { ms });
                        self.hear(JournalEvent::Ponged);
                        if serving.pinged_ms.is_empty() {
                            (self.notify)(Notice::CaughtUp);
                        }
                    }
                }
                ServerOp::Ok => {}
                ServerOp::Error(error) if error.starts_with("Permissions Violation") => {
                    let denied = lost::denied(error).map(|(verb, subject)| JournalEvent::Denied {
                        verb,
                        subject: subject.to_owned(),
                        error: error.to_owned(),
                    });
                    let error = lost::violation(error);
                    self.trouble(serving.server, error);
                    denied.into_iter().for_each(|denied| self.hear(denied));
                }
                ServerOp::Error(error) if lost::is_about_a_subscription(error) => {
                    (self.notify)(Notice::Limit(NatsLimit::Subscriptions));
                    self.hear(JournalEvent::Exceeded);
                }
                // A server that means to hang up does so by itself. Otherwise it has refused one
                // request, and others need not suffer.
                ServerOp::Error(error) => {
                    let lost = ConnectionLost::said(error, &serving.login);
                    self.trouble(serving.server, lost.to_string());
                    serving.complaint = Some((lost, Instant::now()));
                }
            }
        }
        Ok(())
    }

    fn step(&mut self, event: JournalEvent<'_>) {
        self.hear(event);
        (self.notify)(Notice::Rest);
    }

    /// Takes an event of several, after which [`Notice::Rest`] is due.
    fn hear(&mut self, event: JournalEvent<'_>) {
        if matches!(event, JournalEvent::Tick) {
            (self.notify)(Notice::Turn);
        }
        self.journal.step((self.settings.now_ms)(), event, &mut self.actions);
        let out = self.out.end();
        for action in self.actions.drain(..) {
            match action {
                JournalAction::Subscribe { subject, sid } => encoder::subscribe(out, &subject, sid),
                JournalAction::Unsubscribe { sid } => encoder::unsubscribe(out, sid),
                JournalAction::Publish { subject, reply, headers, payload } => {
                    let reply = reply.as_deref();
                    encoder::publish(out, &subject, reply, &headers, &payload);
                }
                JournalAction::Report(report) => (self.notify)(Notice::Report(report)),
            }
        }
        self.actions.shrink_to(ACTIONS_KEPT);
    }
}
