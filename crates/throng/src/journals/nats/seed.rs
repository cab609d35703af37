//! The secret that all nodes share. From it come the keys by which limits know a client, so that
//! nodes can tell each other of one.
//!
//! It is in the bucket of epochs. A node reads it before it serves, also if it has no limits yet:
//! it may get some with an upgrade. The first one makes it. A node that cannot read it has a secret
//! of its own until it is started again, since the tags of its clients' sessions come from it, too.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use throng_access::session::Tagger;
use throng_nats::api::StreamSettings;
use throng_nats::api::bucket::{self, SeedRecord};
use throng_nats::client::NatsSession;
use throng_nats::protocol::headers::HeaderWriter;
use tokio::runtime::Runtime;
use tokio::time::{Instant, sleep, timeout_at};

use super::access::NatsAccess;
use super::stream::{nonce, stream};
use crate::settings::{self, Settings};

/// How long the start waits for it.
const PATIENCE: Duration = Duration::from_secs(3);

/// The time between two attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// Requests until it is known: the bucket and the entry may have to be made, at the same time as by
/// other nodes.
const REQUESTS_MAX: usize = 8;

/// Only the first node writes it.
const EXPECTED: &str = "Nats-Expected-Last-Subject-Sequence";

/// Makes the tags and keys of all nodes, or those of this one if there is no common secret now;
/// `None` without nodes. A process that takes over goes on with those that have `arrived`.
pub(crate) fn tagger(
    runtime: &Runtime,
    settings: &Settings,
    arrived: Option<Tagger>,
) -> Option<Tagger> {
    let uses: Vec<_> = uses(settings).collect();
    if !settings.engine.0 || (arrived.is_some() && uses.is_empty()) {
        return arrived;
    }
    let own = arrived.clone().or_else(Tagger::random)?;
    let found = runtime.block_on(shared_soon(settings, own.seed(), arrived.is_none()));
    let reason = match found.map(Tagger::from_seed) {
        Ok(found) if arrived.is_none_or(|arrived| arrived == found) => return Some(found),
        Ok(_) => anyhow!("the process before had another one"),
        Err(reason) => reason,
    };
    for lacking in uses {
        tracing::warn!(
            "{lacking} until this node is started again, because it does not have the secret of \
             all nodes: {reason:#}"
        );
    }
    Some(own)
}

/// What needs the secret, and how it is without.
fn uses(settings: &Settings) -> impl Iterator<Item = &'static str> {
    let apps = "`socket_id` excludes no connection of this node from what other nodes publish, nor \
                the reverse,";
    [
        (settings::has_limits(settings), "limits count the clients of this node alone"),
        (!settings.apps.is_empty(), apps),
    ]
    .into_iter()
    .filter_map(|(is_used, lacking)| is_used.then_some(lacking))
}

/// The same as [`shared`], which NATS may not answer for ever. It is asked again if `retries`: it
/// may just be starting, too.
async fn shared_soon(settings: &Settings, own: [u8; 16], retries: bool) -> Result<[u8; 16]> {
    let until = Instant::now() + PATIENCE;
    loop {
        let found = timeout_at(until, shared(settings, own)).await;
        let found = found.context("NATS does not answer").and_then(|found| found);
        if found.is_ok() || !retries || Instant::now() + PAUSE >= until {
            return found;
        }
        sleep(PAUSE).await;
    }
}

/// The secret of all nodes, through the first server that can be reached. It is `own` if there is
/// none yet.
async fn shared(settings: &Settings, own: [u8; 16]) -> Result<[u8; 16]> {
    let (access, wanted) = (NatsAccess::of(settings), stream(settings, &settings::rules(settings)));
    let mut faults = Vec::new();
    for address in settings.nats.addresses() {
        let credentials = (&access.login(), &access.tls());
        match NatsSession::open(&address, credentials, "throng", &nonce()).await {
            Ok(mut session) => return agree(&mut session, &wanted, own).await,
            Err(fault) => faults.push(format!("{address}: {fault}")),
        }
    }
    bail!("no server of NATS can be used: {}", faults.join("; "))
}

async fn agree(
    session: &mut NatsSession,
    wanted: &StreamSettings,
    own: [u8; 16],
) -> Result<[u8; 16]> {
    let StreamSettings { prefix, replicas, is_in_memory, .. } = wanted;
    let (name, key) = (bucket::stream(prefix), bucket::seed_subject(prefix));
    for _ in 0..REQUESTS_MAX / 2 {
        let read = format!("$JS.API.STREAM.MSG.GET.{name}");
        let answer = request(session, (&read, b""), &bucket::read(&key)).await?;
        match bucket::parse::<SeedRecord>(&answer) {
            Ok((Some(record), _)) => return seed(&record).context("the secret cannot be read"),
            Ok((None, revision)) => {
                let headers = HeaderWriter::default().field(EXPECTED, revision).finish();
                let record = serde_json::to_vec(&SeedRecord { seed: text(own) })?;
                request(session, (&key, &headers), &record).await?;
            }
            Err(error) if error.is_no_stream() => {
                let create = format!("$JS.API.STREAM.CREATE.{name}");
                let config = bucket::config(prefix, *replicas, *is_in_memory).to_string();
                request(session, (&create, b""), config.as_bytes()).await?;
            }
            Err(error) => bail!("{error}"),
        }
    }
    bail!("NATS does not store it")
}

async fn request(
    session: &mut NatsSession,
    (subject, headers): (&str, &[u8]),
    payload: &[u8],
) -> Result<Vec<u8>> {
    let reply = session.request(subject, headers, payload).await.map_err(anyhow::Error::msg)?;
    match reply.filter(|reply| reply.status.is_none()) {
        Some(reply) => Ok(reply.payload),
        None => bail!("NATS does not answer to {subject}"),
    }
}

fn text(seed: [u8; 16]) -> String {
    seed.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn seed(record: &SeedRecord) -> Option<[u8; 16]> {
    let is_text = record.seed.len() == 32 && record.seed.bytes().all(|it| it.is_ascii_hexdigit());
    let number = is_text.then(|| u128::from_str_radix(&record.seed, 16).ok()).flatten();
    number.map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_is_read_as_it_is_written() {
        let own: [u8; 16] = std::array::from_fn(|at| at as u8 * 17);
        let record = SeedRecord { seed: text(own) };
        assert_eq!(seed(&record), Some(own));
        for bad in ["", "00", "+1112233445566778899aabbccddeeff0", &"g".repeat(32)] {
            assert_eq!(seed(&SeedRecord { seed: bad.into() }), None, "{bad}");
        }
    }
}
