//! A process that is to be the node which another process is.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use throng_core::MemoryEngine;
use throng_nats::engine::{NodeSuccessor, NodeThaw};

use super::node::{NO_THREAD, opened, settings};
use crate::journals::interface::{JournalSetup, Opened, Succeeding, Successor};

/// How long NATS may take to answer before the process gives up that is to take over.
const OPEN_PATIENCE: Duration = Duration::from_secs(15);

/// The longest name of a node.
const NAME_BYTES_MAX: u64 = 64;

/// See the module.
struct Joining {
    successor: NodeSuccessor,
    thaw: NodeThaw,
}

/// Connects as the successor of the node whose name is in a pipe; `None` if neither it nor the
/// settings are a node's.
///
/// # Errors
///
/// One of the two is a node, and the other is not.
pub(super) fn succeed(setup: &JournalSetup<'_>, name: Option<OwnedFd>) -> Result<Succeeding> {
    let name = match (setup.settings.engine.0, name) {
        (false, None) => return Ok(None),
        (true, Some(name)) => name,
        (true, None) => bail!(
            "the running server has engine = memory, and this one engine = nats; restart instead"
        ),
        (false, Some(_)) => bail!(
            "the running server has engine = nats, and this one engine = memory; restart instead"
        ),
    };
    let mut text = String::new();
    File::from(name).take(NAME_BYTES_MAX).read_to_string(&mut text).context("its name")?;
    let successor = NodeSuccessor::connect(settings(setup, Some(text))).context(NO_THREAD)?;
    Ok(Some(Box::new(Joining { successor, thaw: NodeThaw::default() })))
}

impl Successor for Joining {
    fn wait(&self) -> Result<()> {
        match self.successor.wait_until_open(OPEN_PATIENCE) {
            Ok(()) => Ok(()),
            Err(reason) => bail!("NATS cannot be used: {reason}"),
        }
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn record(&mut self, record: &[u8]) -> Result<()> {
        self.thaw.record(record).context("the node")
    }

    fn take_over(
        self: Box<Self>,
        memory: MemoryEngine,
        setup: &JournalSetup<'_>,
    ) -> Result<Opened> {
        let Joining { successor, thaw } = *self;
        let thawed = successor.thaw(thaw, setup.events.clone(), memory.with_all_listed());
        let thawed = thawed.context("the node")?;
        // Before anything is told: what other nodes have asked meanwhile is about users, too.
        let opened = opened(thawed.journal(), setup)?;
        ensure!(thawed.begin(), "NATS can no longer be used");
        Ok(opened)
    }
}
