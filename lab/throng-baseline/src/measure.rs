//! The measurements of Throng and of the raw loop.
//!
//! # Layout
//!
//! - [`session`]: a new server, Throng or the raw loop, with its clients.
//! - [`fanout`]: fan-outs, bursts and connects, in the same runs.
//! - [`memory`], [`responsiveness`], [`idle`], [`publish`]: one measurement each.
//!
//! Invariants: each run has new processes; the sides alternate; a publish follows the last delivery
//! of the one before; each wait has a timeout.

mod fanout;
mod idle;
mod memory;
mod publish;
mod responsiveness;
mod session;

use anyhow::{Context, Result};

use crate::results::Results;
use crate::settings::{Group, Settings};

/// Makes the measurements. Each is added to `results` at once, so that an error loses none.
pub(crate) fn run(selected: &[Group], settings: &Settings, results: &mut Results) -> Result<()> {
    use Group::{Burst, Connect, Fanout, Idle, Memory, Publish, Responsiveness};
    let has = |group| selected.contains(&group);
    if has(Memory) {
        memory::measure(settings, results).context("memory")?;
    }
    let parts =
        fanout::Parts { has_fanout: has(Fanout), has_burst: has(Burst), has_connect: has(Connect) };
    if parts.has_fanout || parts.has_burst || parts.has_connect {
        fanout::measure(settings, &parts, results).context("fan-out")?;
    }
    if has(Responsiveness) {
        responsiveness::measure(settings, results).context("responsiveness")?;
    }
    if has(Publish) && !settings.is_raw_only {
        publish::measure(settings, results).context("publish")?;
    }
    if has(Idle) && !settings.is_raw_only {
        idle::measure(settings, results).context("idle")?;
    }
    Ok(())
}
