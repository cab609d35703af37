//! Options become a plan: the profile makes the target, and options override what it says.

use std::sync::Arc;
use std::time::Duration;

use throng_host::proc;
use throng_units::url;

use super::check;
use super::model::{Phase, Plan, PlanError, PublishBy, PublishTarget, Sources, Target};
use super::options::{Options, PublishOptions};
use super::profile::{ProfileError, ProfileInput};
use super::server_process::{ServerProcess, listeners};
use super::values::{Header, PublishTransport};
use crate::template::{ColumnTable, Template};

/// What a run may take beyond its phases before the default deadline ends it.
const DEADLINE_MARGIN: Duration = Duration::from_secs(600);

impl Options {
    /// The plan, checked; or all errors in it.
    pub fn into_plan(self) -> Result<Plan, Vec<PlanError>> {
        let options = self.with_url_of_table();
        let mut errors = Vec::new();
        let Some(target) = options.target(&mut errors) else { return Err(errors) };
        let phases = options.phases.clone().unwrap_or_else(|| options.load.phases(&target));
        let addresses = options.sources.addresses.iter().flatten();
        let plan = Plan {
            name: options.name(),
            profile: options.target.profile(),
            deadline: options.deadline.map_or_else(|| default_deadline(&phases), |time| time.0),
            server_pids: options.server_pids(&target, &mut errors),
            target,
            sources: Sources {
                addresses: addresses.flat_map(|addresses| addresses.0.clone()).collect(),
                ports: options.sources.ports.map(|range| range.0),
            },
            network: options.network(),
            threads: options.threads.map(|count| count.0),
            keep: options.keep.is_some_and(|keep| keep.0),
            seed: options.seed().0 as u64,
            phases,
            assertions: options.assertions.unwrap_or_default(),
        };
        errors.extend(check::errors(&plan));
        if errors.is_empty() { Ok(plan) } else { Err(errors) }
    }

    fn target(&self, errors: &mut Vec<PlanError>) -> Option<Target> {
        let options = &self.target;
        let Some(given_url) = &options.url else {
            let message = "no URL is given: which server is the target?";
            errors.push(PlanError::new("target.url", message));
            return None;
        };
        let choice = ProfileInput {
            url: &with_scheme(given_url),
            table: self.table(),
            transport: options.transport,
            channel: options.channel.as_deref(),
            streams: options.streams(),
        };
        let mut target = match options.profile().target(&choice) {
            Ok(target) => target,
            Err(error) => {
                let key = match error {
                    ProfileError::Template(_) | ProfileError::Url(_) => "target.url",
                    ProfileError::Transport { .. } => "target.transport",
                    ProfileError::Channel(_) => "target.channel",
                };
                errors.push(PlanError::new(key, error));
                return None;
            }
        };
        let given_ports = options.ports.iter().flatten();
        target.ports = given_ports.flat_map(|ports| ports.0.clone()).collect();
        target.headers.extend(self.headers("target.headers", &options.headers, errors));
        target.subprotocol = options.subprotocol.clone().or(target.subprotocol);
        if let Some(hello) = &options.hello {
            let template = |text: &String| self.template("target.hello", text, errors);
            target.hello = hello.iter().filter_map(template).collect();
        }
        target.subscribed = options.subscribed.clone().unwrap_or(target.subscribed);
        target.refused = options.refused.clone().unwrap_or(target.refused);
        target.pings = options.pings.clone().unwrap_or(target.pings);
        target.handshake_timeout = options.handshake_timeout().0;
        target.publish = self.publish_target(target.publish.take(), errors);
        Some(target)
    }

    /// How to publish: as the profile does, unless options say otherwise.
    fn publish_target(
        &self,
        of_profile: Option<PublishTarget>,
        errors: &mut Vec<PlanError>,
    ) -> Option<PublishTarget> {
        let options = &self.publish;
        let is_given = options.by.is_some() || options.url.is_some() || options.headers.is_some();
        // A profile that needs a key or token cannot publish unless one is given.
        let needs = self.target.profile().publish_needs();
        let of_profile = of_profile.filter(|_| is_given || needs.is_none());
        let refused = of_profile.as_ref().and_then(|publish| publish.refused.clone());
        let by = self.publish_by(of_profile.map(|publish| publish.by), options, errors)?;
        Some(PublishTarget {
            by,
            connections: options.connections().0,
            pipeline: options.pipeline().0,
            refused: options.refused.clone().or(refused),
        })
    }

    fn publish_by(
        &self,
        of_profile: Option<PublishBy>,
        options: &PublishOptions,
        errors: &mut Vec<PlanError>,
    ) -> Option<PublishBy> {
        let mut headers = self.headers("publish.headers", &options.headers, errors);
        let mut template = |key, text: &str| self.template(key, text, errors);
        let mut body = options.body.as_ref().and_then(|text| template("publish.body", text));
        let given_url = options.url.as_deref().map(with_scheme);
        let mut url = given_url.and_then(|text| template("publish.url", &text));
        let by = match (options.by, &url, &of_profile) {
            (Some(by), ..) => by,
            (None, None, Some(PublishBy::WebSocket { .. })) => PublishTransport::WebSocket,
            (None, None, None) => return None,
            _ => PublishTransport::Http,
        };
        match (by, of_profile) {
            (
                PublishTransport::Http,
                Some(PublishBy::Http { url: default_url, headers: first, body: default, .. }),
            ) => {
                url.get_or_insert(default_url);
                body.get_or_insert(default);
                headers.splice(0..0, first);
            }
            (PublishTransport::WebSocket, Some(PublishBy::WebSocket { frame })) => {
                body.get_or_insert(frame);
            }
            _ => {}
        }
        let body = match body {
            Some(body) => body,
            None => template("publish.body", "{payload}")?,
        };
        let message = match (by, url) {
            (PublishTransport::WebSocket, None) => {
                return Some(PublishBy::WebSocket { frame: body });
            }
            (PublishTransport::Http, Some(url)) => {
                return Some(PublishBy::Http { method: options.method(), url, headers, body });
            }
            (PublishTransport::WebSocket, Some(_)) => {
                "a WebSocket publisher connects like a subscriber, to the same URL"
            }
            (PublishTransport::Http, None) => "no URL to publish at is given",
        };
        errors.push(PlanError::new("publish.url", message));
        None
    }

    fn headers(
        &self,
        key: &str,
        headers: &Option<Vec<Header>>,
        errors: &mut Vec<PlanError>,
    ) -> Vec<(String, Template)> {
        let read = |Header(name, value): &Header| {
            Some((name.clone(), self.template(&format!("{key}.{name}"), value, errors)?))
        };
        headers.iter().flatten().filter_map(read).collect()
    }

    fn template(&self, key: &str, text: &str, errors: &mut Vec<PlanError>) -> Option<Template> {
        Template::with_table(text, self.table())
            .map_err(|error| errors.push(PlanError::new(key, error)))
            .ok()
    }

    fn table(&self) -> Option<&Arc<ColumnTable>> {
        let urls = self.target.urls.as_ref().map(|urls| &urls.0);
        urls.or(self.target.data.as_ref().map(|data| &data.0))
    }

    fn server_pids(&self, target: &Target, errors: &mut Vec<PlanError>) -> Vec<u32> {
        let found = match &self.server_pid {
            None => Ok(Vec::new()),
            Some(ServerProcess::Ids(pids)) => match pids.iter().find(|&&pid| !proc::exists(pid)) {
                Some(pid) => Err(format!("there is no process {pid} on this machine")),
                None => Ok(pids.clone()),
            },
            Some(ServerProcess::Auto) => {
                let port = target.ports.first().copied().or_else(|| check::port(target));
                port.ok_or_else(|| "the URL names no port".to_owned())
                    .and_then(|port| listeners(port).map_err(|error| error.to_string()))
            }
        };
        found.unwrap_or_else(|message| {
            errors.push(PlanError::new("server-pid", message));
            Vec::new()
        })
    }
}

/// Far more than the phases need, so that only a run that is stuck reaches it.
fn default_deadline(phases: &[Phase]) -> Duration {
    let ramps = phases.iter().map(|phase| match phase {
        Phase::Ramp { to, rate: Some(rate), .. } if *rate > 0.0 => {
            Duration::try_from_secs_f64(*to as f64 / rate).unwrap_or(DEADLINE_MARGIN)
        }
        // 1,000 a second is slower than any usable server.
        Phase::Ramp { to, rate: None, .. } => Duration::from_millis(*to as u64),
        _ => Duration::ZERO,
    });
    let times = phases.iter().map(Phase::time);
    DEADLINE_MARGIN + 2 * (ramps.sum::<Duration>() + times.sum::<Duration>())
}

/// The URL of an address such as `:8080`. Any other text, which may be a template, stays as it is.
fn with_scheme(text: &str) -> String {
    url(text).unwrap_or_else(|_| text.to_owned())
}
