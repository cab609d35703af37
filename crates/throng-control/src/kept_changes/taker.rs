//! Makes what several servers share of the channels that users follow: in memory, and on the
//! connections that are open here.

use std::iter;
use std::sync::{Arc, Weak};

use throng_access::kept::{KeptTaken, SharedKept};
use throng_core::Channels;

use super::live;

/// The record of one user that the servers share.
#[derive(Debug)]
pub struct KeptState {
    /// The name of the user.
    pub user: String,
    /// All channels that the user follows.
    pub channels: Vec<String>,
    /// The place of its entry in the table of the servers.
    pub sequence: u64,
}

/// See the module.
pub struct KeptTaker {
    shared: Arc<SharedKept>,
    engine: Weak<Channels>,
}

impl KeptTaker {
    /// Makes states of `shared`, about which the workers of `engine` are told.
    pub fn new(shared: Arc<SharedKept>, engine: Weak<Channels>) -> KeptTaker {
        KeptTaker { shared, engine }
    }

    /// Makes states, in their order. When it returns, they hold here, and the workers have been
    /// told. It waits for the engine, if connections here are to follow channels that it has to
    /// fetch: do not call it where the engine's answers come from.
    pub fn take(&self, states: Vec<KeptState>) {
        let Some(engine) = self.engine.upgrade() else { return };
        let engine = &*engine;
        let take = |state: KeptState| {
            let taken = self.shared.take(&state.user, &state.channels, state.sequence);
            let is_live = live::has_connections(engine, &taken.inbox);
            (is_live && !(taken.added.is_empty() && taken.removed.is_empty())).then_some(taken)
        };
        let taken: Vec<KeptTaken> = states.into_iter().filter_map(take).collect();
        // Ends do not wait for beginnings.
        for KeptTaken { inbox, removed, .. } in taken.iter().filter(|one| !one.removed.is_empty()) {
            drop(live::announce(engine, inbox, removed.clone(), &live::Held::default()));
        }
        let begin: Vec<_> = taken.into_iter().filter(|taken| !taken.added.is_empty()).collect();
        if begin.is_empty() {
            return;
        }
        // All of them at once: each takes a way to the servers and back.
        let added = begin.iter().flat_map(|taken| taken.added.iter().cloned());
        let held = live::fetch(engine, added);
        for (KeptTaken { inbox, added, .. }, held) in begin.into_iter().zip(iter::repeat(&held)) {
            drop(live::announce(engine, &inbox, added, held));
        }
    }
}
