//! User-space bytes of a parked subscriber: the slope of the server's Pss between few and many
//! subscribers of the same process, so that what the process costs by itself drops out.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::session::{Publish, Server, Session, event_stream, own_user, websocket};
use crate::client::target::Target;
use crate::ledger::{Ledger, Side};
use crate::machine;
use crate::settings::{Settings, progress};

/// Pss has settled when it did not change from one reading to the next.
const SETTLE_INTERVAL: Duration = Duration::from_millis(200);
const SETTLE_DEADLINE: Duration = Duration::from_secs(3);

const BROADCAST_PAYLOAD_BYTES: usize = 64;

/// Measures `settings.repeats` times.
pub fn measure(settings: &Settings, ledger: &mut Ledger) -> Result<()> {
    for run in 0..settings.repeats {
        progress(&format!("memory {} of {}", run + 1, settings.repeats));
        slab_of_raw(settings, ledger)?;
        if settings.is_raw_only {
            continue;
        }
        for (key, target) in [
            ("memory_websocket", websocket()),
            ("memory_sse", event_stream()),
            ("memory_users", own_user()),
        ] {
            slope(settings, key, &target, ledger).context(key)?;
        }
    }
    Ok(())
}

fn slope(
    settings: &Settings,
    key: &'static str,
    target: &Target,
    ledger: &mut Ledger,
) -> Result<()> {
    let mut session = Session::start(settings, Side::Throng, "0")?;
    let Server::Throng(process) = &session.server else { return Ok(()) };
    let pid = process.id();
    let further = settings.connections.saturating_sub(settings.connections_low).max(1);

    session.connect(target, settings.connections_low)?;
    let (low, slab_low) = (settled_pss_bytes(pid)?, machine::slab_bytes()?);
    session.connect(target, further)?;
    let (high, slab_high) = (settled_pss_bytes(pid)?, machine::slab_bytes()?);
    ledger.add(key, Side::Throng, growth(low, high, further));

    if key == "memory_websocket" {
        ledger.add("slab", Side::Throng, growth(slab_low, slab_high, further));
        session.round(Publish::Single, BROADCAST_PAYLOAD_BYTES)?;
        let after = settled_pss_bytes(pid)?;
        let connections = settings.connections_low + further;
        ledger.add("memory_broadcast", Side::Throng, growth(high, after, connections));
    }
    Ok(())
}

/// The raw server's user space holds little but descriptors; the kernel's share is the same thing.
fn slab_of_raw(settings: &Settings, ledger: &mut Ledger) -> Result<()> {
    let mut session = Session::start(settings, Side::Raw, "0")?;
    let before = machine::slab_bytes()?;
    session.connect(&Target::Raw, settings.connections)?;
    let after = machine::slab_bytes()?;
    ledger.add("slab", Side::Raw, growth(before, after, settings.connections));
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
