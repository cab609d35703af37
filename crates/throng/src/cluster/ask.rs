//! Asks the nodes, and the servers about the stream.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::Value;
use throng_nats::api::StreamSettings;
use throng_nats::client::{Login, NatsSession, NatsTls, ServerAddress, SessionReply, Source};
use throng_nats::engine::{ClusterView, question_of_nodes};
use throng_nats::subject::Subjects;

use super::found::{ClusterFound, StreamFound};

/// The name that the servers' monitoring shows.
const NAME: &str = "throng cluster";

/// How long nodes have to answer. One that is well does so within milliseconds.
const ANSWERS: Duration = Duration::from_millis(1_500);

/// Once all have answered that anybody knows, how long to wait for one that nobody knows: the node
/// that answers first may have been cut off from the others, and the others from it.
const UNKNOWN: Duration = Duration::from_millis(300);

/// Whom to ask, and how.
pub(super) struct AskPlan {
    pub(super) servers: Vec<ServerAddress>,
    pub(super) login: Source<Login>,
    pub(super) tls: NatsTls,
    pub(super) stream: StreamSettings,
    /// Letters and digits that no other program has.
    pub(super) nonce: String,
}

/// Asks through the first server that can be reached.
pub(super) async fn ask(plan: &AskPlan) -> Result<ClusterFound> {
    let mut faults = Vec::new();
    for address in &plan.servers {
        let access = (&plan.login, &plan.tls);
        match NatsSession::open(address, access, NAME, &plan.nonce).await {
            Ok(session) => return ask_through(plan, address, session).await,
            Err(fault) => faults.push(format!("{address}: {fault}")),
        }
    }
    bail!("no server of NATS can be used: {}", faults.join("; "))
}

async fn ask_through(
    plan: &AskPlan,
    address: &ServerAddress,
    mut session: NatsSession,
) -> Result<ClusterFound> {
    let lost = |fault: String| anyhow::anyhow!("{address}: {fault}");
    let subjects = Subjects::new(&plan.stream.prefix, &plan.stream.class);
    if !session.has_inbox() {
        bail!("{address}: this user may not subscribe to _INBOX.>, as nodes may");
    }
    let (headers, question) = question_of_nodes(&plan.nonce);
    let request = (subjects.ask(), &*headers, &*question);
    let times = (ANSWERS, UNKNOWN);
    let replies = session.gather(request, times, have_all_answered).await.map_err(lost)?;
    let Some(replies) = replies else {
        bail!("{address}: this user may not publish to {}, as nodes may", subjects.ask());
    };
    let views = views(&replies);
    if views.is_empty() {
        let prefix = &plan.stream.prefix;
        bail!(
            "{address}: no node answers, of those with nats-prefix = {prefix:?}; is one running?"
        );
    }
    let stream = stream(plan, &mut session).await.map_err(lost)?;
    let server = (address.to_string(), session.info().version.clone());
    Ok(ClusterFound::new(server, views, stream))
}

fn views(replies: &[SessionReply]) -> Vec<ClusterView> {
    let messages = replies.iter().filter(|reply| reply.status.is_none());
    messages.filter_map(|reply| serde_json::from_slice(&reply.payload).ok()).collect()
}

/// True if nobody is missing of those that are known to anybody.
fn have_all_answered(replies: &[SessionReply]) -> bool {
    let views = views(replies);
    let answered: BTreeSet<&str> = views.iter().map(|view| &*view.id).collect();
    let mut known = views.iter().flat_map(|view| &view.others);
    !views.is_empty() && known.all(|other| answered.contains(&*other.id))
}

async fn stream(plan: &AskPlan, session: &mut NatsSession) -> Result<StreamFound, String> {
    let name = plan.stream.name();
    let subject = format!("$JS.API.STREAM.INFO.{name}");
    let reply = session.request(&subject, b"", b"").await?;
    let reply = reply.filter(|reply| reply.status.is_none());
    let Some(answer) = reply.and_then(|reply| serde_json::from_slice(&reply.payload).ok()) else {
        return Ok(StreamFound::silent(name));
    };
    let answer: Value = answer;
    Ok(StreamFound::of(name, &answer))
}
