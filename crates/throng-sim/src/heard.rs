//! Checks that an application's events of connections and channels fit together.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use throng_core::ConnectionName;
use throng_core::events::{Event, EventSink};

use crate::{Check, ensure};

/// Follows the events: what begins has not begun yet, and what ends has begun.
#[derive(Debug, Default)]
pub(crate) struct Heard(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    connected: HashSet<ConnectionName>,
    occupied: HashSet<String>,
    /// Names of channels, and the keys of their members.
    members: HashSet<(String, String)>,
    /// The first event that does not fit.
    objection: Option<String>,
}

impl EventSink for Heard {
    fn notify(&self, _: u64, event: Event<'_>) {
        let mut state = self.state();
        let fits = match event {
            Event::Connected { connection, .. } => state.connected.insert(connection),
            Event::Disconnected { connection, .. } => state.connected.remove(&connection),
            Event::Occupied(name) => state.occupied.insert(name.key().to_owned()),
            Event::Vacated(name) => state.occupied.remove(name.key()),
            Event::MemberAdded(name, key) => {
                state.members.insert((name.name().to_owned(), key.to_owned()))
            }
            Event::MemberRemoved(name, key) => {
                state.members.remove(&(name.name().to_owned(), key.to_owned()))
            }
            _ => true,
        };
        if !fits {
            state.objection.get_or_insert_with(|| format!("{event:?} does not fit"));
        }
    }
}

impl Heard {
    /// Objects unless all events fit, and `streams` connections are there.
    pub(crate) fn check(&self, streams: u64) -> Check {
        let state = self.state();
        ensure!(state.objection.is_none(), "{}", state.objection.as_deref().unwrap_or_default());
        let connected = state.connected.len() as u64;
        ensure!(connected == streams, "{connected} connections are heard of, {streams} are there");
        Ok(())
    }

    /// Objects unless no channel is heard to be followed.
    pub(crate) fn check_vacated(&self) -> Check {
        let occupied = &self.state().occupied;
        ensure!(occupied.is_empty(), "{occupied:?} are heard to be followed, and are not");
        Ok(())
    }

    /// True if the application believes a connection to be there.
    pub(crate) fn is_connected(&self, name: u64) -> bool {
        self.state().connected.contains(&ConnectionName::numbered(name))
    }

    /// Objects unless these are the members that a channel is heard to have.
    pub(crate) fn check_members<'a>(
        &self,
        channel: &str,
        keys: impl Iterator<Item = &'a str>,
    ) -> Check {
        let state = self.state();
        let of_channel = state.members.iter().filter(|(name, _)| name == channel);
        let mut heard: Vec<_> = of_channel.map(|(_, key)| &**key).collect();
        heard.sort_unstable();
        let keys: Vec<_> = keys.collect();
        ensure!(heard == keys, "{heard:?} are heard to be members of {channel}, not {keys:?}");
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
