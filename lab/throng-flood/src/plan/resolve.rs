//! Options become a plan: laid over those of the profile and the defaults, then compiled.

use std::sync::Arc;
use std::time::Duration;

use throng_host::proc;
use throng_units::Time;

use super::check;
use super::model::{Plan, PlanError, PublishBy, PublishTarget, Sources, Target, TlsSettings};
use super::option_table::Table;
use super::options::{Options, PublishOptions, TargetOptions, TokenOptions};
use super::phases::{self, Phase};
use super::server_process::{ServerProcess, listeners};
use super::values::{Header, Profile, PublishTransport, with_scheme};
use crate::template::{ColumnTable, Template};

/// Time beyond the phases until the default deadline.
const DEADLINE_MARGIN: Duration = Duration::from_secs(600);

impl Plan {
    /// The plan as a file. What its profile has filled in is written out.
    pub(crate) fn toml(&self) -> String {
        let mut text = String::new();
        self.options.write(&mut text);
        self.phases.iter().for_each(|phase| phases::write(phase, &mut text));
        text
    }
}

impl Options {
    /// The plan, checked; or all errors in it.
    pub fn into_plan(self) -> Result<Plan, Vec<PlanError>> {
        let profile = self.target.profile();
        let options = self.filled().map_err(|error| vec![error])?;
        let mut templates = Templates { columns: options.columns(), errors: Vec::new() };
        let target = options.compiled_target(&mut templates);
        let mut errors = templates.errors;
        let (Some(target), true) = (target, errors.is_empty()) else { return Err(errors) };
        let of_flags = || options.load.phases(target.streams, target.publish.is_some());
        let phases = options.phases.clone().unwrap_or_else(of_flags);
        let server_pids = options.server_pids(&target).unwrap_or_else(|message| {
            errors.push(PlanError::new("server-pid", message));
            Vec::new()
        });
        let addresses = options.sources.addresses.iter().flatten();
        let mut plan = Plan {
            name: options.name(),
            profile,
            deadline: options.deadline.map_or_else(|| default_deadline(&phases), |time| time.0),
            sources: Sources {
                addresses: addresses.flat_map(|addresses| addresses.0.clone()).collect(),
                ports: options.sources.ports,
            },
            network: options.network(),
            threads: options.threads.map(|count| count.0),
            keep: options.keep.is_some_and(|keep| keep.0),
            seed: options.seed().0 as u64,
            assertions: options.assertions.clone().unwrap_or_default(),
            options: options.shown(&phases, &server_pids),
            server_pids,
            target,
            phases,
        };
        errors.extend(check::errors(&plan));
        errors.extend(options.add_tokens(&mut plan.target).err());
        if errors.is_empty() { Ok(plan) } else { Err(errors) }
    }

    /// These options, with what the profile fills in and the defaults.
    fn filled(self) -> Result<Options, PlanError> {
        let mut given = self.with_url_of_table();
        if given.target.url.is_none() {
            let message = "no URL is given: which server is the target?";
            return Err(PlanError::new("target.url", message));
        }
        let profile = given.target.profile();
        let mut filled = profile.options(&given.target, given.columns())?;
        let publish = &mut given.publish;
        let has_key = publish.headers.is_some() || publish.token_file.is_some();
        let is_given = publish.by.is_some() || publish.url.is_some() || has_key;
        // A profile that needs a key or token cannot publish unless one is given.
        if profile.publish_needs().is_some() && !is_given {
            filled.publish = PublishOptions::default();
        }
        publish.url = publish.url.take().map(|url| with_scheme(&url));
        let by_url = publish.url.as_ref().map(|_| PublishTransport::Http);
        publish.by = publish.by.or(by_url).or(filled.publish.by);
        if publish.by != filled.publish.by {
            let refused = filled.publish.refused;
            filled.publish = PublishOptions { refused, ..PublishOptions::default() };
        }
        match publish.by {
            Some(by) => {
                filled.publish.body.get_or_insert_with(|| "{payload}".to_owned());
                if by == PublishTransport::WebSocket {
                    (publish.method, publish.headers) = (None, None);
                }
            }
            None => given.publish = PublishOptions::default(),
        }
        // The profile has completed the URL.
        given.target.url = filled.target.url.take();
        Ok(given.or(filled))
    }

    /// These complete options as a file that makes the same plan wherever it is read.
    fn shown(&self, phases: &[Phase], server_pids: &[u32]) -> Options {
        let mut shown = self.clone().or(Options::defaults());
        shown.deadline.get_or_insert_with(|| Time(default_deadline(phases)));
        let is_known = !server_pids.is_empty();
        shown.server_pid = is_known.then(|| ServerProcess::Ids(server_pids.to_vec()));
        shown.target = TargetOptions {
            profile: Some(Profile::Custom),
            channel: None,
            urls: None,
            data: None,
            ..shown.target
        };
        if !self.have_tokens() {
            shown.tokens = TokenOptions::default();
        }
        match self.publish.by {
            Some(PublishTransport::Http) => {}
            Some(PublishTransport::WebSocket) => shown.publish.method = None,
            None => shown.publish = PublishOptions::default(),
        }
        shown
    }

    pub(super) fn columns(&self) -> Option<&Arc<ColumnTable>> {
        let urls = self.target.urls.as_ref().map(|urls| &urls.content);
        urls.or(self.target.data.as_ref().map(|data| &data.content))
    }

    /// The target of options that are complete; `None` after an error.
    fn compiled_target(&self, templates: &mut Templates<'_>) -> Option<Target> {
        let options = self.target.clone();
        let hello = options.hello.iter().flatten();
        Some(Target {
            transport: options.transport?,
            url: templates.read("target.url", options.url.as_deref()?)?,
            ports: options.ports.into_iter().flatten().flat_map(|ports| ports.0).collect(),
            nodes: options.nodes.unwrap_or_default(),
            failover: options.failover.unwrap_or_default(),
            headers: templates.headers("target.headers", &options.headers),
            deflate: self.target.deflate().0,
            hello: hello.filter_map(|text| templates.read("target.hello", text)).collect(),
            handshake_timeout: self.target.handshake_timeout().0,
            publish: self.compiled_publish(templates),
            streams: self.target.followed(),
            streams_each: self.target.channels_per_client().0.try_into().unwrap_or(u32::MAX),
            subprotocol: options
                .subprotocol
                .and_then(|text| templates.read("target.subprotocol", &text)),
            subscribed: options.subscribed?,
            refused: options.refused.unwrap_or_default(),
            pings: options.pings.unwrap_or_default(),
            tls: TlsSettings {
                authorities: options.authorities,
                is_insecure: options.insecure.is_some_and(|insecure| insecure.0),
                sni: options.sni,
                resumes: options.resume.is_some_and(|resume| resume.0),
            },
        })
    }

    fn compiled_publish(&self, templates: &mut Templates<'_>) -> Option<PublishTarget> {
        let options = &self.publish;
        let body = templates.read("publish.body", options.body.as_deref()?)?;
        let by = match (options.by?, options.url.as_deref()) {
            (PublishTransport::WebSocket, None) => PublishBy::WebSocket { frame: body },
            (PublishTransport::Http, Some(url)) => PublishBy::Http {
                method: options.method(),
                url: templates.read("publish.url", url)?,
                headers: templates.headers("publish.headers", &options.headers),
                body,
            },
            (PublishTransport::WebSocket, Some(_)) => {
                let message = "a WebSocket publisher connects like a subscriber, to the same URL";
                return templates.refuse("publish.url", message);
            }
            (PublishTransport::Http, None) => {
                return templates.refuse("publish.url", "no URL to publish at is given");
            }
        };
        // Each node is published to.
        let nodes = 1 + self.target.nodes.as_ref().map_or(0, Vec::len);
        let connections = match options.connections().0 {
            0 => 0,
            connections => connections.max(nodes),
        };
        let pipeline = options.pipeline().0;
        Some(PublishTarget { by, connections, pipeline, refused: options.refused.clone() })
    }

    fn server_pids(&self, target: &Target) -> Result<Vec<u32>, String> {
        match &self.server_pid {
            None => Ok(Vec::new()),
            Some(ServerProcess::Ids(pids)) => match pids.iter().find(|&&pid| !proc::exists(pid)) {
                Some(pid) => Err(format!("there is no process {pid} on this machine")),
                None => Ok(pids.clone()),
            },
            Some(ServerProcess::Auto) => {
                let port = target.port().ok_or("the URL names no port")?;
                listeners(port).map_err(|error| error.0)
            }
        }
    }
}

/// Compiles texts that may use the columns of a file, and collects the errors.
struct Templates<'a> {
    columns: Option<&'a Arc<ColumnTable>>,
    errors: Vec<PlanError>,
}

impl Templates<'_> {
    fn read(&mut self, key: &str, text: &str) -> Option<Template> {
        let template = Template::with_table(text, self.columns);
        template.map_err(|error| self.errors.push(PlanError::new(key, error))).ok()
    }

    fn headers(&mut self, key: &str, headers: &Option<Vec<Header>>) -> Vec<(String, Template)> {
        let read = |Header(name, value): &Header| {
            Some((name.clone(), self.read(&format!("{key}.{name}"), value)?))
        };
        headers.iter().flatten().filter_map(read).collect()
    }

    fn refuse<T>(&mut self, key: &str, message: impl ToString) -> Option<T> {
        self.errors.push(PlanError::new(key, message));
        None
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
