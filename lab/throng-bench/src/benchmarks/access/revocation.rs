//! A user among many is revoked while messages go to all.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use throng_flood::plan::Transport;
use throng_flood::report::PhaseReport;
use ureq::Agent;

use super::super::values::{Deliveries, more};
use crate::context::{Abort, Context, Load, QUIET};
use crate::flood::{hold, ramp, to_all};
use crate::keys::{Algorithm, Keys};

/// Messages in each of the two phases, at most.
const MESSAGES: u64 = 20;

/// Deliveries per second, at most: a server that is busy all the time would hide what the
/// revocation takes.
const DELIVERIES_PER_S: u64 = 60_000;

const MESSAGE_BYTES: usize = 128;

/// The user who is revoked.
const USER: &str = "revoked";

/// The number of the phase, from 1, in which the user is revoked.
const REVOKING: usize = 3;

/// Time limit of the revocation and of its effect.
const TIMEOUT: Duration = Duration::from_secs(30);

pub(super) fn run(
    context: &mut Context<'_>,
    keys: &Keys,
    deliveries: &mut Deliveries,
) -> Result<(), Abort> {
    let settings = keys.settings(Algorithm::Hs256, "").map_err(Abort::Failed)?;
    context.serve_with(&settings, QUIET)?;
    let tokens = keys.tokens(Algorithm::Hs256).map_err(Abort::Failed)?;
    let time = context.size.time;
    let messages = DELIVERIES_PER_S * time.as_secs() / context.size.connections.max(1) as u64;
    let publishing = || Some(to_all(messages.clamp(1, MESSAGES), MESSAGE_BYTES, time));
    let phases =
        vec![ramp(context.size.connections), hold(time, publishing()), hold(time, publishing())];
    let (start, started) = channel();
    let user = revoke(&context.url(), keys, started).map_err(Abort::Failed)?;
    let load = Load { tokens: Some(&tokens), ..Load::of(Transport::WebSocket) };
    let report = context.flood_with(&load, phases, &mut |moment| {
        if moment.place.0 == REVOKING {
            // Only the first message counts; nothing reads the others.
            let _ = start.send(());
        }
    })?;
    deliveries.add(&report);
    drop(start);
    let gone = user.join().unwrap_or_else(|_| Err("the revoked client panicked".to_owned()));
    let slowest = |phase: Option<&PhaseReport>| Some(phase?.totals.last.as_ref()?.max);
    let delay = more(slowest(report.phases.get(2)), slowest(report.phases.get(1)));
    context.record_all(
        [
            ("revoked", Some(gone.map_err(Abort::Failed)?.as_secs_f64() * 1e3)),
            ("revocation_delay", delay.map(|ms| ms.max(0.0))),
        ],
        context.size.connections,
    );
    Ok(())
}

/// Connects the user, who is revoked after a message on `started`. The thread returns the time from
/// the request until the connection is closed.
fn revoke(
    url: &str,
    keys: &Keys,
    started: Receiver<()>,
) -> Result<JoinHandle<Result<Duration, String>>, String> {
    let fault = |error: std::io::Error| format!("the user to be revoked cannot connect: {error}");
    let token = keys.token(USER);
    let address = url.strip_prefix("http://").unwrap_or(url);
    let mut stream = TcpStream::connect(address).map_err(fault)?;
    let request = format!(
        "GET /channels/quiet HTTP/1.1\r\nHost: {address}\r\nAccept: text/event-stream\r\n\
         Authorization: Bearer {token}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).map_err(fault)?;
    let request = format!("{url}/revocations/users/{USER}");
    let authorization = format!("Bearer {}", keys.server_key);
    Ok(thread::spawn(move || {
        started.recv().map_err(|_| "the user was not revoked".to_owned())?;
        let config = Agent::config_builder().proxy(None).timeout_global(Some(TIMEOUT));
        let agent: Agent = config.build().into();
        let begun = Instant::now();
        agent
            .post(&request)
            .header("Authorization", &authorization)
            .send_empty()
            .map_err(|error| format!("the user was not revoked: {error}"))?;
        stream.set_read_timeout(Some(TIMEOUT)).map_err(|error| error.to_string())?;
        let mut rest = Vec::new();
        match stream.read_to_end(&mut rest) {
            Ok(_) => Ok(begun.elapsed()),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(begun.elapsed()),
            Err(error) => Err(format!("the revoked user is still connected: {error}")),
        }
    }))
}
