//! User-space memory of a parked subscriber: the growth of the server's proportional set size from
//! few subscribers to many, without the memory of the process itself.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::session::{Publish, Server, Session, event_stream, own_user, websocket};
use crate::client::target::Target;
use crate::machine;
use crate::results::{Results, Side};
use crate::settings::{Settings, progress};

/// The proportional set size has settled if it did not change within this time.
const SETTLE_INTERVAL: Duration = Duration::from_millis(200);
/// The maximum time until it has settled.
const SETTLE_DEADLINE: Duration = Duration::from_secs(3);

const BROADCAST_PAYLOAD_BYTES: usize = 64;

/// Measures `settings.repeats` times.
pub(crate) fn measure(settings: &Settings, results: &mut Results) -> Result<()> {
    for run in 0..settings.repeats {
        progress(&format!("memory {} of {}", run + 1, settings.repeats));
        slab_of_raw(settings, results)?;
        if settings.is_raw_only {
            continue;
        }
        for (key, target) in [
            ("memory_websocket", websocket()),
            ("memory_sse", event_stream()),
            ("memory_users", own_user()),
        ] {
            slope(settings, key, &target, results).context(key)?;
        }
    }
    Ok(())
}

fn slope(
    settings: &Settings,
    key: &'static str,
    target: &Target,
    results: &mut Results,
) -> Result<()> {
    let mut session = Session::start(settings, Side::Throng, "0")?;
    let Server::Throng(process) = &session.server else { return Ok(()) };
    let pid = process.id();
    let further = settings.connections.saturating_sub(settings.connections_low).max(1);

    session.connect(target, settings.connections_low)?;
    let (low, slab_low) = (settled_pss_bytes(pid)?, machine::slab_bytes()?);
    session.connect(target, further)?;
    let (high, slab_high) = (settled_pss_bytes(pid)?, machine::slab_bytes()?);
    results.add(key, Side::Throng, growth(low, high, further));

    if key == "memory_websocket" {
        results.add("slab", Side::Throng, growth(slab_low, slab_high, further));
        session.round(Publish::Single, BROADCAST_PAYLOAD_BYTES)?;
        let after = settled_pss_bytes(pid)?;
        let connections = settings.connections_low + further;
        results.add("memory_broadcast", Side::Throng, growth(high, after, connections));
    }
    Ok(())
}

/// The raw loop has no memory for a subscriber in user space, so that only the kernel's is
/// measured.
fn slab_of_raw(settings: &Settings, results: &mut Results) -> Result<()> {
    let mut session = Session::start(settings, Side::Raw, "0")?;
    let before = machine::slab_bytes()?;
    session.connect(&Target::Raw, settings.connections)?;
    let after = machine::slab_bytes()?;
    results.add("slab", Side::Raw, growth(before, after, settings.connections));
    Ok(())
}

fn settled_pss_bytes(pid: u32) -> Result<u64> {
    let deadline = Instant::now() + SETTLE_DEADLINE;
    let mut last = machine::pss_bytes(pid)?;
    loop {
        thread::sleep(SETTLE_INTERVAL);
        let now = machine::pss_bytes(pid)?;
        if now == last || Instant::now() > deadline {
            return Ok(now);
        }
        last = now;
    }
}

fn growth(before: u64, after: u64, connections: usize) -> f64 {
    (after as f64 - before as f64) / connections as f64
}
