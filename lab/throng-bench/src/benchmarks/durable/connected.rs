//! Inboxes whose users are there, and the channels that they follow beside them.

use std::time::Duration;

use throng_flood::plan::{Phase, Streams, Transport};

use super::super::users;
use super::super::values::{median, more, share};
use super::directory::Directory;
use crate::context::{Abort, Context, Load, QUIET};
use crate::flood::{bytes_per_client, hold, ramp};

/// How long clients are held before they lose their connections.
const HOLD: Duration = Duration::from_secs(2);

/// Time limit for all clients to be back.
const RETURN_TIMEOUT: Duration = Duration::from_secs(300);

/// Channels of each user who comes back.
const FEW: u32 = 15;

/// Channels of each user whose memory is measured, and how many such users there are.
const MANY: u32 = 150;
const MANY_PART: usize = 10;

/// More than [`MANY`].
const MAX_CHANNELS: &str = "200";

/// How many times all clients connect.
pub(super) const ROUNDS: u32 = CASES.len() as u32;

/// What a user follows beside the inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Channels {
    None,
    /// This many, that the server keeps.
    Kept(u32),
    /// This many, that the client names.
    Named(u32),
}

/// One kind of server and clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Case {
    /// Whether inboxes are durable, and have a message.
    is_durable: bool,
    channels: Channels,
    /// Whether clients are few, so that channels outweigh connections.
    are_few: bool,
}

const PLAIN: Case = Case { is_durable: false, channels: Channels::None, are_few: false };
const DURABLE: Case = Case { is_durable: true, ..PLAIN };
const KEPT: Case = Case { channels: Channels::Kept(FEW), ..PLAIN };
const NAMED: Case = Case { channels: Channels::Named(FEW), ..PLAIN };
const FEW_PLAIN: Case = Case { are_few: true, ..PLAIN };
const FEW_KEPT: Case = Case { channels: Channels::Kept(MANY), ..FEW_PLAIN };
const FEW_NAMED: Case = Case { channels: Channels::Named(MANY), ..FEW_PLAIN };

/// All cases, then in the opposite order, so that a drift of the machine cancels. What is timed is
/// in the middle, too: of three times, one may be another's load.
const CASES: [Case; 17] = [
    PLAIN, DURABLE, KEPT, NAMED, FEW_PLAIN, FEW_KEPT, FEW_NAMED, KEPT, PLAIN, NAMED, FEW_NAMED,
    FEW_KEPT, FEW_PLAIN, NAMED, KEPT, DURABLE, PLAIN,
];

/// Results of a case.
#[derive(Debug, Clone, Copy, Default)]
struct Values {
    clients: usize,
    /// Memory of the server per connection.
    memory: Option<f64>,
    /// Time until all clients are back.
    return_ms: Option<f64>,
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), Abort> {
    let mut found = Vec::new();
    for case in CASES {
        let part = if case.are_few { MANY_PART } else { 1 };
        let clients = (context.size.connections / part).max(1);
        found.push((case, context.step(clients, |context| measure(context, case))?));
    }
    record(context, &found);
    Ok(())
}

fn measure(context: &mut Context<'_>, case: Case) -> Result<Values, Abort> {
    let clients = context.size.connections;
    let directory = Directory::make()?;
    let more = ["--max-channels-per-connection", MAX_CHANNELS];
    if case.is_durable {
        directory.serve(context, &more)?;
        users::fill(&context.url(), 0..clients)?;
    } else {
        context.serve(&[QUIET, &more[..]].concat())?;
    }
    if let Channels::Kept(count) = case.channels {
        users::keep(&context.url(), 0..clients, |user| users::friends(clients, user, count))?;
    }
    let (path, streams) = request(case.channels);
    let load = Load { streams, path: Some(path), ..Load::of(Transport::WebSocket) };
    let storm = Phase::Storm { timeout: RETURN_TIMEOUT, publish: None };
    let report = context.flood(&load, vec![ramp(clients), hold(HOLD, None), storm])?;
    let Some([ramp, _, storm]) = report.phases.first_chunk::<3>() else {
        return Ok(Values::default());
    };
    Ok(Values {
        clients,
        memory: bytes_per_client(ramp),
        return_ms: storm.recovered_s.map(|seconds| seconds * 1e3),
    })
}

/// What clients request, and how many streams the load generator thinks that each has.
fn request(channels: Channels) -> (&'static str, Streams) {
    match channels {
        Channels::None | Channels::Kept(_) => ("/users/user-{i}", Streams::Own),
        Channels::Named(count) => (
            "/subscribe?user=user-{i}&channel={streams:&channel=}",
            Streams::Friends { edges: count },
        ),
    }
}

fn record(context: &mut Context<'_>, found: &[(Case, Values)]) {
    let of = |case: Case, value: fn(&Values) -> Option<f64>| {
        median(found.iter().filter(|(each, _)| *each == case).map(|(_, values)| value(values)))
    };
    let memory = |case| of(case, |values| values.memory);
    let back = |case| of(case, |values| values.return_ms);
    // Nobody has more friends than there are others.
    let few = found.iter().find(|(case, _)| case.are_few).map_or(1, |(_, values)| values.clients);
    let each = f64::from(MANY).min(few as f64 - 1.0).max(1.0);
    let per_channel = |case| more(memory(case), memory(FEW_PLAIN)).map(|bytes| bytes / each);
    context.record_all(
        [
            ("inbox", memory(PLAIN)),
            ("inbox_durable_more", more(memory(DURABLE), memory(PLAIN))),
            ("named", per_channel(FEW_NAMED)),
            ("kept", per_channel(FEW_KEPT)),
            ("return", back(PLAIN)),
            ("return_kept_share", share(back(KEPT), back(PLAIN))),
            ("return_named_share", share(back(NAMED), back(PLAIN))),
        ],
        context.size.connections,
    );
    let columns = [
        "clients",
        "durable inboxes (1)",
        "kept channels each",
        "named channels each",
        "memory per connection",
        "all back after, ms",
    ];
    let row = |(case, values): &(Case, Values)| {
        let (kept, named) = match case.channels {
            Channels::None => (0, 0),
            Channels::Kept(count) => (count, 0),
            Channels::Named(count) => (0, count),
        };
        vec![
            Some(values.clients as f64),
            Some(f64::from(u8::from(case.is_durable))),
            Some(f64::from(kept)),
            Some(f64::from(named)),
            values.memory,
            values.return_ms,
        ]
    };
    context.table("Connections, each run", &columns, found.iter().map(row).collect());
}
