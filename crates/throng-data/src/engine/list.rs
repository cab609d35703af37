//! Lists of the durable channels: by their numbers, and in the order of several processes.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use throng_core::{
    ChannelName, Kind, ListPart, ListPlace, ListQuery, ListStep, ListedChannel, NameIndex,
};

use super::shared::EngineShared;

/// Durable channels that one step looks at, at most: some hundred microseconds.
const STEP_CHANNELS: usize = 128;

pub(super) fn step(shared: &EngineShared, kind: Kind, after: u64) -> ListStep {
    let mut found = Vec::new();
    let mut each = |number, name| {
        found.push((number, name));
        if found.len() < STEP_CHANNELS { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let mut step = ListStep::default();
    if shared.logs.list(after, &mut each).is_err() {
        return step;
    }
    if found.len() == STEP_CHANNELS {
        step.next = found.last().map(|(number, _)| ListPlace(*number));
    }
    for (number, name) in found {
        if name.kind() == kind {
            let subscribers = shared.memory.audience(&name).subscribers;
            step.channels.extend(listed(shared, (number, name), subscribers));
        }
    }
    step
}

/// The entry of a durable channel with this number; `None` if it has nothing.
fn listed(
    shared: &EngineShared,
    (number, name): (u64, ChannelName),
    subscribers: u64,
) -> Option<ListedChannel> {
    shared.durable(&name)?;
    let bounds = shared.logs.bounds(&name).ok()?;
    let messages = usize::try_from(bounds.head.offset - bounds.floor).unwrap_or(usize::MAX);
    let older = if bounds.has_keys { shared.logs.state_row(&name).ok()? } else { None };
    let older = older.map_or(0, |row| usize::try_from(row.older).unwrap_or(usize::MAX));
    let messages = messages.saturating_add(older);
    let is_listed = messages > 0 || subscribers > 0 || bounds.has_record;
    let (place, head) = (ListPlace(number), bounds.head);
    is_listed.then_some(ListedChannel { place, name, subscribers, head, messages })
}

/// For how long the names of durable channels are kept after the last page, in milliseconds.
const KEPT_MS: u64 = 30_000;

#[derive(Default)]
struct KnownNames {
    channels: NameIndex<()>,
    users: NameIndex<()>,
    /// All channels up to this number are known.
    newest: u64,
    used_ms: u64,
}

impl KnownNames {
    fn of(&mut self, kind: Kind) -> Option<&mut NameIndex<()>> {
        match kind {
            Kind::Channel => Some(&mut self.channels),
            Kind::User => Some(&mut self.users),
            Kind::Internal => None,
        }
    }
}

/// The names of durable channels in the order of several processes, while these ask for lists: the
/// first page after a pause reads all names, and others those that came since.
#[derive(Default)]
pub(super) struct DurableNames {
    known: Mutex<KnownNames>,
    /// How many names were forgotten so far.
    forgotten: AtomicU64,
}

impl DurableNames {
    /// A part of a page of the list of several processes.
    pub(super) fn part(&self, shared: &EngineShared, now_ms: u64, query: &ListQuery) -> ListPart {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.used_ms = now_ms;
        let after = known.newest;
        let mut each = |number, name: ChannelName| {
            if let Some(names) = known.of(name.kind()) {
                names.entry(name.name());
            }
            known.newest = number;
            ControlFlow::Continue(())
        };
        // What cannot be read is found out by those who use it.
        let _ = shared.logs.list(after, &mut each);
        let Some(names) = known.of(query.kind) else { return ListPart::default() };
        let (found, reached) = names.page(query);
        let found: Vec<_> =
            found.into_iter().map(|(name, ())| ChannelName::new(query.kind, name)).collect();
        let mut channels = Vec::new();
        for name in found {
            match listed(shared, (0, name.clone()), 0) {
                Some(listed) => channels.push(listed),
                None => names.remove(name.name()),
            }
        }
        ListPart { channels, reached }
    }

    /// Forgets the names that nobody asks for any more.
    pub(super) fn tick(&self, now_ms: u64) {
        // While they are read, they are in use.
        if let Ok(mut known) = self.known.try_lock()
            && known.newest > 0
            && now_ms.saturating_sub(known.used_ms) >= KEPT_MS
        {
            let names = std::mem::take(&mut *known);
            let count = names.channels.len() + names.users.len();
            self.forgotten.fetch_add(count as u64, Ordering::Relaxed);
            // A million takes a moment. Without a thread they are dropped here, with the closure.
            let _ = std::thread::Builder::new().name("list".into()).spawn(move || drop(names));
        }
    }

    /// How many names were forgotten so far, whose memory is free now.
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::Relaxed)
    }
}
