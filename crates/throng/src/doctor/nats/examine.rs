//! Asks the servers. Nothing is created or changed, and nothing stored unless that was asked for.

use std::net::{IpAddr, ToSocketAddrs as _};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use throng_core::{Body, ChannelName, Publication};
use throng_nats::api::stream::StreamInfo;
use throng_nats::api::table::{self, TableSettings};
use throng_nats::api::{JetStreamError, StreamSettings, ack, bucket, message, stream};
use throng_nats::client::{Login, NatsSession, NatsTls, ServerAddress, Source};
use throng_nats::permissions;
use throng_nats::protocol::headers::Headers;
use throng_nats::subject::{self, Subjects};

use super::findings::{
    Account, Examined, ExaminedTable, Existing, ExistingStream, Findings, JetStream, StoreTimes,
};

/// The name that the servers' monitoring shows.
const NAME: &str = "throng doctor";

/// How often the way to the server and back is measured.
const ROUND_TRIPS: usize = 50;

/// A server that has room for so many subscriptions has no limit that matters, unless more are
/// wanted.
const SUBSCRIPTIONS: usize = 10_000;

/// No more are tried: they take some 80 MB of the server's memory for a moment.
pub(super) const SUBSCRIPTIONS_MAX: usize = 100_000;

/// Subscriptions of a node that are of no channel.
pub(super) const SUBSCRIPTIONS_OWN: usize = 8;

/// The servers to examine, and how.
pub(super) struct ExaminePlan {
    pub(super) servers: Vec<ServerAddress>,
    pub(super) login: Source<Login>,
    pub(super) tls: NatsTls,
    pub(super) stream: StreamSettings,
    pub(super) tables: Vec<TableSettings>,
    /// Letters and digits that no other program has.
    pub(super) nonce: String,
    /// Messages to store.
    pub(super) store: Option<usize>,
    /// How many channels and inboxes a node is to follow.
    pub(super) followed: Option<usize>,
}

/// Connects to each server of the settings, and examines the first that can be used.
pub(super) async fn examine(plan: &ExaminePlan) -> Findings {
    let mut found = Findings { servers: Vec::new(), examined: None, monitor: None };
    for address in &plan.servers {
        let access = (&plan.login, &plan.tls);
        let fault = match NatsSession::open(address, access, NAME, &plan.nonce).await {
            Err(fault) => Some(fault),
            Ok(_) if found.examined.is_some() => None,
            Ok(session) => match Examination::new(plan, session, address).run().await {
                Ok(examined) => {
                    found.examined = Some(examined);
                    None
                }
                Err(fault) => Some(fault),
            },
        };
        found.servers.push((address.to_string(), fault));
    }
    found
}

/// Reads what servers say about a stream, and compares it with what is wanted.
type Parse = fn(&[u8], &Value) -> Result<StreamInfo, JetStreamError>;

struct Examination<'a> {
    plan: &'a ExaminePlan,
    session: NatsSession,
    address: &'a ServerAddress,
    ahead_ms: Option<i64>,
    /// True if a request of JetStream found nobody to answer it.
    is_alone: bool,
}

impl<'a> Examination<'a> {
    fn new(
        plan: &'a ExaminePlan,
        session: NatsSession,
        address: &'a ServerAddress,
    ) -> Examination<'a> {
        Examination { plan, session, address, ahead_ms: None, is_alone: false }
    }

    async fn run(mut self) -> Result<Examined, String> {
        let settings = &self.plan.stream;
        let mut denied = Vec::new();
        for permission in permissions::of_node(settings) {
            if !self.session.may(&permission).await? {
                denied.push(permission);
            }
        }
        let mut round_trips = Vec::new();
        for _ in 0..ROUND_TRIPS {
            round_trips.push(self.session.round_trip().await?);
        }
        let mut jetstream = self.jetstream().await?;
        let wanted = stream::config(settings);
        let stream = self.existing(&settings.name(), (&wanted, stream::parse)).await?;
        let StreamSettings { prefix, replicas, is_in_memory, .. } = settings;
        let wanted = bucket::config(prefix, *replicas, *is_in_memory);
        let bucket = self.existing(&bucket::stream(prefix), (&wanted, stream::parse)).await?;
        let mut tables = Vec::new();
        for table in &self.plan.tables {
            let (name, wanted) = table::wanted(settings, table);
            let found = self.existing(&name, (&wanted, table::parse)).await?;
            tables.push(ExaminedTable { table: table.clone(), name, found });
        }
        if self.is_alone && matches!(jetstream, JetStream::Unknown) {
            jetstream = JetStream::Disabled("nobody answers its requests".into());
        }
        let stored = match self.plan.store {
            Some(count) => Some(self.store(count).await),
            None => None,
        };
        let wanted = self.plan.followed.map_or(SUBSCRIPTIONS, |followed| {
            (followed + SUBSCRIPTIONS_OWN).clamp(SUBSCRIPTIONS, SUBSCRIPTIONS_MAX)
        });
        let subscriptions = self.session.room(wanted).await?;
        let access = (&self.plan.login, &self.plan.tls);
        let second = NatsSession::open(self.address, access, NAME, &self.plan.nonce).await.err();
        let info = self.session.info();
        Ok(Examined {
            subscriptions,
            is_full: second.is_some_and(|fault| fault.contains("connections exceeded")),
            address: self.address.to_string(),
            name: info.server_name.clone(),
            version: info.version.clone(),
            cluster: info.cluster.clone().map(|name| (name, info.announced().len())),
            max_payload: info.max_payload,
            is_loopback: is_loopback(self.address),
            is_tls: self.session.is_tls(),
            login: self.session.login(),
            jetstream,
            stream,
            bucket,
            tables,
            ahead_ms: self.ahead_ms,
            denied,
            round_trips,
            stored,
        })
    }

    async fn jetstream(&mut self) -> Result<JetStream, String> {
        let has_it = self.session.info().jetstream;
        let Some(reply) = self.session.request("$JS.API.INFO", b"", b"").await? else {
            return Ok(JetStream::Unknown);
        };
        if reply.is_nobody() {
            let which = if has_it { "this account" } else { "these servers" };
            return Ok(JetStream::Disabled(format!("not enabled for {which}")));
        }
        let answer: Value = serde_json::from_slice(&reply.payload).unwrap_or_default();
        let Some(error) = answer.get("error") else {
            return Ok(JetStream::Enabled(Account::of(&answer, self.plan.stream.replicas)));
        };
        Ok(match serde_json::from_value::<JetStreamError>(error.clone()) {
            Ok(error) if error.is_leaderless() => JetStream::Leaderless,
            Ok(error) => JetStream::Disabled(error.to_string()),
            Err(_) => JetStream::Disabled(error.to_string()),
        })
    }

    /// Looks for a stream, and takes the time of the server that answers.
    async fn existing(
        &mut self,
        name: &str,
        (wanted, parse): (&Value, Parse),
    ) -> Result<Existing, String> {
        let asked = unix_ms();
        let subject = format!("$JS.API.STREAM.INFO.{name}");
        let Some(reply) = self.session.request(&subject, b"", b"").await? else {
            return Ok(Existing::Unknown);
        };
        let now = unix_ms();
        if reply.is_nobody() {
            self.is_alone = true;
            return Ok(Existing::Unknown);
        }
        let answer: Value = serde_json::from_slice(&reply.payload).unwrap_or_default();
        if let Some(theirs) = answer["ts"].as_str().and_then(message::wall_ms) {
            let half_way = asked + (now - asked) / 2;
            self.ahead_ms = Some(theirs as i64 - half_way as i64);
        }
        Ok(match parse(&reply.payload, wanted) {
            Ok(info) => Existing::There(Box::new(ExistingStream::new(info, &answer))),
            Err(error) if error.is_no_stream() => Existing::Missing,
            Err(error) => Existing::Failed(error.to_string()),
        })
    }

    /// Publishes as a node does, one message after the other: to one channel until each is stored,
    /// to another one until each has been republished.
    async fn store(&mut self, count: usize) -> Result<StoreTimes, String> {
        let settings = self.plan.stream.clone();
        let subjects = Subjects::new(&settings.prefix, &settings.class);
        let mut found = StoreTimes::default();
        for is_followed in [false, true] {
            let name = format!("throng-doctor-{}-{is_followed}", self.plan.nonce);
            let publication = publication(&name);
            let suffix = subject::suffix(&publication.channel).unwrap_or_default();
            let (to, live) = (subjects.ingest(&suffix), subjects.live(&suffix));
            let live = if is_followed { self.session.subscribe(&live).await? } else { 0 };
            for number in 0..count {
                let id = format!("{name}-{number}");
                let headers = message::headers(&publication, &id, None);
                let (payload, began) = (publication.body.bytes(), Instant::now());
                if is_followed {
                    let wait = self.session.publish_and_wait(&to, (&headers, payload), live);
                    wait.await?.ok_or("the stream has not republished a message within 2 s")?;
                    found.delivered.push(began.elapsed());
                } else {
                    let reply = self.session.request(&to, &headers, payload).await?;
                    stored(&settings.name(), reply.map(|reply| reply.payload))?;
                    found.stored.push(began.elapsed());
                }
            }
        }
        Ok(found)
    }
}

fn publication(channel: &str) -> Publication {
    Publication::new(ChannelName::channel(channel), Body::Text("throng doctor".into()))
}

fn stored(stream: &str, answer: Option<Vec<u8>>) -> Result<(), String> {
    let answer = answer.ok_or("the stream has not answered a publication within 2 s")?;
    match ack::parse(stream, Headers::default(), &answer) {
        ack::Ack::Stored { .. } => Ok(()),
        ack::Ack::Refused(error) => Err(format!("the stream refuses a publication: {error}")),
        ack::Ack::Nobody | ack::Ack::Unreadable => {
            Err("no stream accepts publications: start a node first, which creates it".into())
        }
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.as_ref().map_or(0, Duration::as_millis) as u64
}

fn is_loopback(address: &ServerAddress) -> bool {
    let ip: Result<IpAddr, _> = address.host.parse();
    match ip {
        Ok(ip) => ip.is_loopback(),
        Err(_) => (&*address.host, address.port)
            .to_socket_addrs()
            .is_ok_and(|mut found| found.all(|one| one.ip().is_loopback())),
    }
}
