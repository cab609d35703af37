//! The measurements of Throng and of the raw loop.
//!
//! # Layout
//!
//! - [`session`]: a new server, Throng or raw, with subscribed clients.
//! - [`fanout`]: fan-out, burst and connecting, in the same runs.
//! - [`memory`], [`responsiveness`], [`idle`], [`publish`]: one measurement each.
//!
//! Invariants: each run has new processes; raw and Throng alternate; a publish follows the last
//! delivery of the one before; every wait has a timeout.

mod fanout;
mod idle;
mod memory;
mod publish;
mod responsiveness;
mod session;

use anyhow::{Context, Result};

use crate::ledger::Ledger;
use crate::settings::{Measurement, Settings};

/// Runs the measurements. Each writes into `ledger` at once, so that results before an error can be
/// reported.
pub fn run(selected: &[Measurement], settings: &Settings, ledger: &mut Ledger) -> Result<()> {
    use Measurement::{Burst, Connect, Fanout, Idle, Memory, Publish, Responsiveness};
    let has = |measurement| selected.contains(&measurement);
    if has(Memory) {
        memory::measure(settings, ledger).context("memory")?;
    }
    let parts =
        fanout::Parts { has_fanout: has(Fanout), has_burst: has(Burst), has_connect: has(Connect) };
    if parts.has_fanout || parts.has_burst || parts.has_connect {
        fanout::measure(settings, &parts, ledger).context("fan-out")?;
    }
    if has(Responsiveness) {
        responsiveness::measure(settings, ledger).context("responsiveness")?;
    }
    if has(Publish) && !settings.is_raw_only {
        publish::measure(settings, ledger).context("publish")?;
    }
    if has(Idle) && !settings.is_raw_only {
        idle::measure(settings, ledger).context("idle")?;
    }
    Ok(())
}
