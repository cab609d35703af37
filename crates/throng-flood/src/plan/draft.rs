//! What flags and the file say, before it becomes a [`Plan`]: everything may be left out.
//!
//! Whatever is wrong is told with the key that it is about (`target.url`, `phases.1.publish.size`),
//! so that the file's reader can say where that stands, and the command line which flag it was.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use throng_host::proc;

use super::{
    Network, Pattern, Phase, Ping, Plan, PublishBy, PublishTarget, Publishing, Sources, Streams,
    Subscribed, Target, Transport,
};
use crate::assertions::Assertion;
use crate::listener::listeners;
use crate::profile::{Choice, Profile, ProfileError};
use crate::template::{Table, Template};

/// Something that is wrong with a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Objection {
    /// What it is about, as a path of keys.
    pub key: String,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl Objection {
    /// Something is wrong with the value of `key`.
    pub fn new(key: impl Into<String>, message: impl ToString) -> Objection {
        Objection { key: key.into(), message: message.to_string() }
    }
}

/// A plan in the making.
#[derive(Debug, Clone, Default)]
pub struct Draft {
    /// Names the run.
    pub name: Option<String>,
    /// The server, or a whole URL.
    pub url: Option<String>,
    /// Columns for templates.
    pub table: Option<Arc<Table>>,
    /// Which server it is; Throng unless given.
    pub profile: Option<Profile>,
    /// See [`Target::transport`].
    pub transport: Option<Transport>,
    /// The channel's name, a template.
    pub channel: Option<String>,
    /// See [`Target::ports`].
    pub ports: Vec<u16>,
    /// Besides those of the profile.
    pub headers: Vec<(String, String)>,
    /// See [`Target::subprotocol`].
    pub subprotocol: Option<String>,
    /// Instead of the profile's.
    pub hello: Option<Vec<String>>,
    /// Instead of the profile's.
    pub subscribed: Option<Subscribed>,
    /// Instead of the profile's.
    pub refused: Option<Vec<String>>,
    /// Instead of the profile's.
    pub pings: Option<Vec<Ping>>,
    /// See [`Target::handshake_timeout`].
    pub handshake_timeout: Option<Duration>,
    /// See [`Target::streams`].
    pub streams: Option<Streams>,
    /// How to publish.
    pub publish: DraftPublish,
    /// See [`Sources::addresses`].
    pub addresses: Vec<IpAddr>,
    /// See [`Sources::ports`].
    pub source_ports: Option<(u16, u16)>,
    /// See [`Plan::network`].
    pub network: Option<Network>,
    /// See [`Plan::threads`].
    pub threads: Option<usize>,
    /// See [`Plan::keep`].
    pub keep: bool,
    /// See [`Plan::seed`].
    pub seed: Option<u64>,
    /// What happens.
    pub phases: Phases,
    /// See [`Plan::assertions`].
    pub assertions: Vec<Assertion>,
    /// The server's processes.
    pub server: Option<ServerProcess>,
    /// See [`Plan::deadline`].
    pub deadline: Option<Duration>,
}

/// How to publish, in the making.
#[derive(Debug, Clone, Default)]
pub struct DraftPublish {
    /// Over a WebSocket (true) or by HTTP; the profile's way unless given.
    pub by_websocket: Option<bool>,
    /// See [`PublishBy::Http`].
    pub method: Option<String>,
    /// See [`PublishBy::Http`].
    pub url: Option<String>,
    /// Besides those of the profile.
    pub headers: Vec<(String, String)>,
    /// The body of a request, or the frame.
    pub body: Option<String>,
    /// See [`PublishTarget::connections`].
    pub connections: Option<usize>,
    /// See [`PublishTarget::pipeline`].
    pub pipeline: Option<usize>,
    /// Instead of the profile's.
    pub refused: Option<String>,
}

/// The server's processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerProcess {
    /// Whoever listens on the port.
    Auto,
    /// These.
    Ids(Vec<u32>),
}

/// What happens: listed, or as flags put it.
#[derive(Debug, Clone)]
pub enum Phases {
    /// From a file.
    Listed(Vec<Phase>),
    /// From flags.
    Simple(Simple),
}

/// The phases that flags can ask for: up in steps, each held; then perhaps a storm.
#[derive(Debug, Clone)]
pub struct Simple {
    /// Clients, one number for each step.
    pub steps: Vec<usize>,
    /// Connects a second.
    pub rate: Option<f64>,
    /// Connects under way at once.
    pub in_flight: usize,
    /// How long each step is held.
    pub hold: Duration,
    /// Messages a second; one where it costs nothing to say how, unless given.
    pub publish_rate: Option<f64>,
    /// See [`Publishing::count`].
    pub count: Option<u64>,
    /// See [`Publishing::size`].
    pub size: usize,
    /// See [`Publishing::to`].
    pub to: Option<Pattern>,
    /// Clients a second that come and go while a step is held.
    pub churn: Option<f64>,
    /// A storm at the end, with its timeout.
    pub storm: Option<Duration>,
    /// This share of the clients does not read for as long as a step is held.
    pub slow: Option<f64>,
}

/// Connects under way at once: below the accept queue of most servers, which is 511 or 1024.
pub const IN_FLIGHT: usize = 256;

/// What is drawn at random is the same in each run, unless said otherwise.
pub const SEED: u64 = 1;

/// Bytes of a message, unless said otherwise.
pub const SIZE: usize = 128;

impl Default for Simple {
    fn default() -> Simple {
        Simple {
            steps: vec![1000],
            rate: None,
            in_flight: IN_FLIGHT,
            hold: Duration::from_secs(10),
            publish_rate: None,
            count: None,
            size: SIZE,
            to: None,
            churn: None,
            storm: None,
            slow: None,
        }
    }
}

impl Default for Phases {
    fn default() -> Phases {
        Phases::Simple(Simple::default())
    }
}

/// To which streams messages go, unless said otherwise.
pub fn usual_pattern(streams: Streams) -> Pattern {
    match streams {
        Streams::One => Pattern::One,
        Streams::Spread(_) | Streams::Own | Streams::Friends { .. } => Pattern::InTurn,
    }
}

impl Draft {
    /// The plan, checked.
    pub fn into_plan(self) -> Result<Plan, Vec<Objection>> {
        let mut objections = Vec::new();
        let Some(target) = self.target(&mut objections) else { return Err(objections) };
        let phases = match &self.phases {
            Phases::Listed(phases) => phases.clone(),
            Phases::Simple(simple) => simple.phases(&target),
        };
        let server_pids = self.server_pids(&target, &mut objections);
        let plan = Plan {
            name: self.name.unwrap_or_else(|| "flood".to_owned()),
            profile: self.profile.unwrap_or(Profile::Throng),
            deadline: self.deadline.unwrap_or_else(|| usual_deadline(&phases)),
            target,
            sources: Sources { addresses: self.addresses, ports: self.source_ports },
            network: self.network.unwrap_or_default(),
            threads: self.threads,
            keep: self.keep,
            seed: self.seed.unwrap_or(SEED),
            phases,
            assertions: self.assertions,
            server_pids,
        };
        objections.extend(plan.objections());
        if objections.is_empty() { Ok(plan) } else { Err(objections) }
    }

    fn target(&self, objections: &mut Vec<Objection>) -> Option<Target> {
        let profile = self.profile.unwrap_or(Profile::Throng);
        let Some(url) = &self.url else {
            let message = "no URL is given: which server is to be loaded?";
            objections.push(Objection::new("target.url", message));
            return None;
        };
        let choice = Choice {
            url: &spelt_out(url),
            table: self.table.as_ref(),
            transport: self.transport,
            channel: self.channel.as_deref(),
            streams: self.streams.unwrap_or(Streams::One),
        };
        let mut target = match profile.target(&choice) {
            Ok(target) => target,
            Err(error) => {
                let key = match error {
                    ProfileError::Template(_) | ProfileError::Url(_) => "target.url",
                    ProfileError::Transport { .. } => "target.transport",
                    ProfileError::Channel(_) => "target.channel",
                };
                objections.push(Objection::new(key, error));
                return None;
            }
        };
        target.ports.clone_from(&self.ports);
        target.headers.extend(self.headers("target.headers", &self.headers, objections));
        if self.subprotocol.is_some() {
            target.subprotocol.clone_from(&self.subprotocol);
        }
        if let Some(hello) = &self.hello {
            target.hello = hello
                .iter()
                .filter_map(|text| self.template("target.hello", text, objections))
                .collect();
        }
        if let Some(subscribed) = &self.subscribed {
            target.subscribed.clone_from(subscribed);
        }
        if let Some(refused) = &self.refused {
            target.refused.clone_from(refused);
        }
        if let Some(pings) = &self.pings {
            target.pings.clone_from(pings);
        }
        if let Some(timeout) = self.handshake_timeout {
            target.handshake_timeout = timeout;
        }
        target.publish = self.publish_target(profile, target.publish.take(), objections);
        Some(target)
    }

    /// How to publish: as the profile does, or as was said.
    fn publish_target(
        &self,
        profile: Profile,
        usual: Option<PublishTarget>,
        objections: &mut Vec<Objection>,
    ) -> Option<PublishTarget> {
        let said = &self.publish;
        let is_said = said.by_websocket.is_some() || said.url.is_some() || !said.headers.is_empty();
        // Without a key or token every publish would be refused.
        let usual = usual.filter(|_| is_said || profile.publish_needs().is_none());
        let mut headers = self.headers("publish.headers", &said.headers, objections);
        let body = said.body.as_deref();
        let mut body = body.and_then(|text| self.template("publish.body", text, objections));
        let url = said.url.as_deref().map(spelt_out);
        let mut url = url.and_then(|text| self.template("publish.url", &text, objections));
        let by_websocket = match (said.by_websocket, &url, &usual) {
            (Some(by_websocket), ..) => by_websocket,
            (None, Some(_), _) => false,
            (None, None, Some(usual)) => matches!(usual.by, PublishBy::WebSocket { .. }),
            (None, None, None) => return None,
        };
        let (connections, pipeline) =
            usual.as_ref().map_or((1, 1), |usual| (usual.connections, usual.pipeline));
        let usual_refused = usual.as_ref().and_then(|usual| usual.refused.clone());
        match usual.map(|usual| usual.by) {
            Some(PublishBy::Http {
                url: usual_url,
                headers: usual_headers,
                body: usual_body,
                ..
            }) if !by_websocket => {
                url.get_or_insert(usual_url);
                body.get_or_insert(usual_body);
                headers.splice(0..0, usual_headers);
            }
            Some(PublishBy::WebSocket { frame }) if by_websocket => {
                body.get_or_insert(frame);
            }
            _ => {}
        }
        let body = match body {
            Some(body) => body,
            None => self.template("publish.body", "{payload}", objections)?,
        };
        let by = match (by_websocket, url) {
            (true, None) => PublishBy::WebSocket { frame: body },
            (true, Some(_)) => {
                let message = "a WebSocket publisher connects as subscribers do, to their URL";
                objections.push(Objection::new("publish.url", message));
                return None;
            }
            (false, Some(url)) => {
                let method = said.method.clone().unwrap_or_else(|| "POST".to_owned());
                PublishBy::Http { method, url, headers, body }
            }
            (false, None) => {
                let message = "no URL to publish at is given";
                objections.push(Objection::new("publish.url", message));
                return None;
            }
        };
        Some(PublishTarget {
            by,
            connections: said.connections.unwrap_or(connections),
            pipeline: said.pipeline.unwrap_or(pipeline),
            refused: said.refused.clone().or(usual_refused),
        })
    }

    fn headers(
        &self,
        key: &str,
        headers: &[(String, String)],
        objections: &mut Vec<Objection>,
    ) -> Vec<(String, Template)> {
        let read = |(name, value): &(String, String)| {
            let key = format!("{key}.{name}");
            Some((name.clone(), self.template(&key, value, objections)?))
        };
        headers.iter().filter_map(read).collect()
    }

    fn template(&self, key: &str, text: &str, objections: &mut Vec<Objection>) -> Option<Template> {
        Template::with_table(text, self.table.as_ref())
            .map_err(|error| objections.push(Objection::new(key, error)))
            .ok()
    }

    fn server_pids(&self, target: &Target, objections: &mut Vec<Objection>) -> Vec<u32> {
        let found = match &self.server {
            None => Ok(Vec::new()),
            Some(ServerProcess::Ids(pids)) => match pids.iter().find(|&&pid| !proc::exists(pid)) {
                Some(pid) => Err(format!("there is no process {pid} on this machine")),
                None => Ok(pids.clone()),
            },
            Some(ServerProcess::Auto) => {
                let port = target.ports.first().copied().or_else(|| super::check::port(target));
                port.ok_or_else(|| "the URL names no port".to_owned())
                    .and_then(|port| listeners(port).map_err(|error| error.to_string()))
            }
        };
        found.unwrap_or_else(|message| {
            objections.push(Objection::new("server-pid", message));
            Vec::new()
        })
    }
}

impl Simple {
    fn phases(&self, target: &Target) -> Vec<Phase> {
        let usual_rate = if target.publish.is_some() { 1.0 } else { 0.0 };
        let rate = self.publish_rate.unwrap_or(usual_rate);
        let publish = (rate > 0.0).then(|| Publishing {
            rate,
            count: self.count,
            size: self.size,
            to: self.to.unwrap_or_else(|| usual_pattern(target.streams)),
        });
        let mut phases = Vec::new();
        for &to in &self.steps {
            phases.push(Phase::Ramp { to, rate: self.rate, in_flight: self.in_flight });
            let (time, publish) = (self.hold, publish.clone());
            let hold = match (self.slow, self.churn) {
                _ if time.is_zero() => continue,
                (Some(share), _) => Phase::Slow { share, time, publish },
                (None, Some(rate)) => Phase::Churn { time, rate, publish },
                (None, None) => Phase::Hold { time, publish },
            };
            phases.push(hold);
        }
        if let Some(timeout) = self.storm {
            phases.push(Phase::Storm { timeout, publish });
        }
        phases
    }
}

/// Far more than the phases ask for: a run that has got stuck must end some time.
fn usual_deadline(phases: &[Phase]) -> Duration {
    const ROOM: Duration = Duration::from_secs(600);
    let ramps = phases.iter().map(|phase| match phase {
        Phase::Ramp { to, rate: Some(rate), .. } if *rate > 0.0 => {
            Duration::try_from_secs_f64(*to as f64 / rate).unwrap_or(ROOM)
        }
        // Slower than any server that can be used.
        Phase::Ramp { to, rate: None, .. } => Duration::from_millis(*to as u64),
        _ => Duration::ZERO,
    });
    let times = phases.iter().map(super::check::time_of);
    ROOM + 2 * (ramps.sum::<Duration>() + times.sum::<Duration>())
}

/// The URL of an address such as `:8080`; any other text, which may hold places, stays as it is.
fn spelt_out(url: &str) -> String {
    throng_units::url(url).unwrap_or_else(|_| url.to_owned())
}
