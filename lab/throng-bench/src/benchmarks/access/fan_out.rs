//! Messages to many subscribers of one channel, with tokens and without.

use throng_flood::plan::Transport;

use super::super::values::{Deliveries, mean, share};
use crate::context::{Abort, Context, Load, QUIET};
use crate::flood::{hold, ramp, to_all};
use crate::keys::{Algorithm, Keys};

/// Subscribers, at most.
const SUBSCRIBERS: usize = 15_000;

/// Messages per second.
const RATE: u64 = 10;

const MESSAGE_BYTES: usize = 128;

/// Whether clients have tokens: both orders, so that a drift of the machine cancels.
const RUNS: [bool; 4] = [false, true, true, false];

/// Results of a run.
struct Values {
    has_tokens: bool,
    /// The server's processor time per delivery.
    cpu_ms: Option<f64>,
    /// Median over all messages of the time until the last client has the message.
    last_ms: Option<f64>,
}

pub(super) fn run(
    context: &mut Context<'_>,
    keys: &Keys,
    deliveries: &mut Deliveries,
) -> Result<(), Abort> {
    let clients = context.size.connections.min(SUBSCRIBERS);
    let mut found = Vec::new();
    for has_tokens in RUNS {
        found
            .push(context.step(clients, |context| measure(context, keys, has_tokens, deliveries))?);
    }
    let of = |has_tokens: bool, value: fn(&Values) -> Option<f64>| {
        mean(found.iter().filter(|values| values.has_tokens == has_tokens).map(value))
    };
    let cpu = |has_tokens| of(has_tokens, |values| values.cpu_ms);
    let last = |has_tokens| of(has_tokens, |values| values.last_ms);
    context.record_all(
        [
            ("fan_out_open", cpu(false)),
            ("fan_out_share", share(cpu(true), cpu(false))),
            ("last_open", last(false)),
            ("last_share", share(last(true), last(false))),
        ],
        clients,
    );
    Ok(())
}

fn measure(
    context: &mut Context<'_>,
    keys: &Keys,
    has_tokens: bool,
    deliveries: &mut Deliveries,
) -> Result<Values, Abort> {
    let tokens = if has_tokens {
        let settings = keys.settings(Algorithm::Hs256, "").map_err(Abort::Failed)?;
        context.serve_with(&settings, QUIET)?;
        Some(keys.tokens(Algorithm::Hs256).map_err(Abort::Failed)?)
    } else {
        context.serve(QUIET)?;
        None
    };
    let time = context.size.time;
    let messages = RATE * time.as_secs().max(1);
    let load = Load { tokens: tokens.as_ref(), ..Load::of(Transport::WebSocket) };
    let publishing = to_all(messages, MESSAGE_BYTES, time);
    let phases = vec![ramp(context.size.connections), hold(time, Some(publishing))];
    let report = context.flood(&load, phases)?;
    deliveries.add(&report);
    let totals = report.phases.last().map(|hold| &hold.totals);
    let cpu_us = totals.and_then(|totals| totals.server.as_ref()?.cpu_us_per_delivery);
    Ok(Values {
        has_tokens,
        cpu_ms: cpu_us.map(|us| us / 1e3),
        last_ms: totals.and_then(|totals| totals.last.as_ref()).map(|last| last.p50),
    })
}
