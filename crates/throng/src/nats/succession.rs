//! A process that is to be the node which another process is.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use throng_access::{AccessControl, Policy};
use throng_core::events::EventSink;
use throng_core::{Channels, MemoryEngine};
use throng_nats::engine::{NatsEngine, NodeSuccessor, NodeThaw};

use crate::access::RevocationSettings;
use crate::settings::Settings;

/// How long NATS may take to answer before the process gives up that is to take over.
const OPEN_PATIENCE: Duration = Duration::from_secs(15);

/// The longest name of a node.
const NAME_BYTES_MAX: u64 = 64;

/// A pipe with the name of the node, for a process that takes over.
pub(crate) fn pass_name(node: &NatsEngine) -> io::Result<OwnedFd> {
    let (near, far) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // So few bytes have room in it.
    File::from(far).write_all(node.name().as_bytes())?;
    Ok(near)
}

/// See the module.
pub(crate) struct Joining {
    successor: NodeSuccessor,
    events: Option<Arc<dyn EventSink>>,
    /// How revocations are kept, if there is anything to revoke.
    pub(crate) revocations: Option<RevocationSettings>,
}

impl Joining {
    /// Connects as the successor of the node whose name is in a pipe; `None` if neither it nor the
    /// settings are a node's.
    ///
    /// # Errors
    ///
    /// One of the two is a node, and the other is not.
    pub(crate) fn new(
        (settings, policy): (&Settings, &Policy),
        room: (usize, usize),
        events: Option<Arc<dyn EventSink>>,
        name: Option<OwnedFd>,
    ) -> Result<Option<Joining>> {
        let name = match (settings.engine.0, name) {
            (false, None) => return Ok(None),
            (true, Some(name)) => name,
            (true, None) => bail!(
                "the running server has engine = memory, and this one engine = nats; restart \
                 instead"
            ),
            (false, Some(_)) => {
                bail!(
                    "the running server has engine = nats, and this one engine = memory; restart \
                     instead"
                )
            }
        };
        let mut text = String::new();
        File::from(name).take(NAME_BYTES_MAX).read_to_string(&mut text).context("its name")?;
        let node = super::node((settings, policy), room, Some(text))?;
        let successor = NodeSuccessor::connect(node).context(super::NO_THREAD)?;
        Ok(Some(Joining { successor, events, revocations: None }))
    }

    /// Waits until NATS can be used.
    ///
    /// # Errors
    ///
    /// Why it cannot.
    pub(crate) fn wait(&self) -> Result<()> {
        match self.successor.wait_until_open(OPEN_PATIENCE) {
            Ok(()) => Ok(()),
            Err(reason) => bail!("NATS cannot be used: {reason}"),
        }
    }

    /// Becomes the node, over the engine that was frozen beside it.
    ///
    /// # Errors
    ///
    /// The state is no node's, or NATS can no longer be used.
    pub(crate) fn take_over(
        self,
        thaw: NodeThaw,
        memory: MemoryEngine,
        access: &AccessControl,
    ) -> Result<(Arc<NatsEngine>, Arc<Channels>)> {
        let Joining { successor, events, revocations } = self;
        let thawed = successor.thaw(thaw, events, memory.with_all_listed()).context("the node")?;
        let node = Arc::clone(thawed.engine());
        // Before anything is told: what other nodes have asked meanwhile is about users, too.
        let channels = super::channels(&node);
        let file = super::join(Some((&node, &channels)), access, revocations)?;
        debug_assert!(file.is_none());
        ensure!(thawed.begin(), "NATS can no longer be used");
        Ok((node, channels))
    }
}
