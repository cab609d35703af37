//! Plain requests on new connections while many connections arrive, plain ones or over TLS.

use std::time::Duration;

use throng_flood::plan::Transport;

use crate::context::{Abort, Context, Load, WITH_TLS};
use crate::flood::{hold, ramp};
use crate::requests::Requests;

/// Connections that arrive for each of the benchmark's: 20,000 for 15,000.
const ARRIVING: (usize, usize) = (4, 3);

/// Requests per second.
const RATE: f64 = 200.0;

/// The requests end with the last connection; before that, there are always some.
const TIME_MAX: Duration = Duration::from_secs(120);

/// How long the connections are held, so that the requests end before they close.
const HOLD: Duration = Duration::from_secs(2);

pub(super) fn run(context: &mut Context<'_>) -> Result<(), Abort> {
    let clients = (context.size.connections * ARRIVING.0).div_ceil(ARRIVING.1);
    for (key, is_tls) in [("health_plain", false), ("health_tls", true)] {
        let p99_ms = context.step(clients, |context| measure(context, is_tls))?;
        context.record(key, Some(p99_ms), clients);
    }
    Ok(())
}

/// The 99th percentile, from the time that a request is due.
fn measure(context: &mut Context<'_>, is_tls: bool) -> Result<f64, Abort> {
    context.serve(WITH_TLS)?;
    let load = Load { is_tls, ..Load::of(Transport::WebSocket) };
    let phases = vec![ramp(context.size.connections), hold(HOLD, None)];
    let requests = Requests::start_unkept(&format!("{}/health", context.url()), RATE, TIME_MAX);
    let flooded = context.flood_with(&load, phases, &mut |moment| {
        if moment.place.0 > 1 {
            requests.cut_short();
        }
    });
    requests.cut_short();
    let response = requests.end();
    flooded?;
    if response.failed > 0 {
        let failed = format!("{} requests for /health failed", response.failed);
        context.outcome.fail(failed);
    }
    Ok(response.p99_ms)
}
