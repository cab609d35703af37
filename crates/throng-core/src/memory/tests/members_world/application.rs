//! The application that is told of what happens in all processes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use crate::events::{Event, EventSink, Standby};
use crate::members::tallies::{Tallies, TallyWant};
use crate::memory::MemoryEngine;
use crate::name::ChannelName;

/// A channel, or a member of one.
type Thing = (String, Option<String>);

/// What an application was told last of each: whether it is there.
#[derive(Debug, Default)]
pub(super) struct Known(BTreeMap<Thing, bool>);

pub(super) type Application = Arc<Mutex<Known>>;

impl Known {
    /// It knows whether somebody follows a channel, and the members.
    pub(super) fn check(&self, channel: &str, is_followed: bool, members: &BTreeSet<&str>) {
        let all = self.0.iter().filter(|((of, _), is_there)| of == channel && **is_there);
        let (known, of_channel): (Vec<_>, Vec<_>) =
            all.map(|((_, member), _)| member.as_deref()).partition(Option::is_some);
        assert_eq!(!of_channel.is_empty(), is_followed, "{channel}");
        let known: BTreeSet<_> = known.into_iter().flatten().collect();
        assert_eq!(&known, members, "{channel}");
    }
}

/// Tells the application what a process has to tell it.
#[derive(Debug)]
struct Hook {
    application: Application,
    standby: Mutex<Standby<(Thing, bool)>>,
    counts: Mutex<BTreeMap<String, u64>>,
}

impl Hook {
    fn tell(&self, told: impl IntoIterator<Item = (Thing, bool)>) {
        self.application.lock().unwrap().0.extend(told);
    }
}

impl EventSink for Hook {
    fn notify(&self, now_ms: u64, event: Event<'_>) {
        let of = |channel: &ChannelName, key: Option<&str>| {
            (channel.name().to_owned(), key.map(str::to_owned))
        };
        let mut standby = self.standby.lock().unwrap();
        let happened = match event {
            Event::Occupied(channel) => (of(channel, None), true),
            Event::Vacated(channel) => (of(channel, None), false),
            Event::MemberAdded(channel, key) => (of(channel, Some(key)), true),
            Event::MemberRemoved(channel, key) => (of(channel, Some(key)), false),
            Event::Counted(channel, count) => {
                self.counts.lock().unwrap().insert(channel.name().to_owned(), count);
                return;
            }
            Event::Leads(up_to_ms) => return self.tell(standby.leads(up_to_ms)),
            Event::Follows => return standby.follows(now_ms),
            _ => return,
        };
        self.tell(standby.take(now_ms, happened, usize::MAX).expect("there is room"));
    }
}

/// What counts the subscribers of all processes, and tells the application.
pub(super) struct Equipment {
    application: Application,
    hook: Arc<Hook>,
    pub(super) tallies: Arc<Tallies>,
}

impl Equipment {
    pub(super) fn new(application: &Application) -> Equipment {
        let hook = Arc::new(Hook {
            application: Arc::clone(application),
            standby: Mutex::default(),
            counts: Mutex::default(),
        });
        let want = TallyWant { prefix: "app/".into(), counts: true, members: true };
        let tallies = Arc::new(Tallies::new(vec![want], 0, None, Arc::clone(&hook) as _));
        Equipment { application: Arc::clone(application), hook, tallies }
    }

    /// The process ends in order.
    pub(super) fn end(&self) {
        self.hook.tell(self.hook.standby.lock().unwrap().end());
    }

    /// The process ends, and another one takes over.
    pub(super) fn renew(&mut self) {
        self.end();
        *self = Equipment::new(&self.application);
    }

    /// The engine is to tell it.
    pub(super) fn beneath(&self, engine: MemoryEngine) -> MemoryEngine {
        let engine = engine.with_events(Some(Arc::clone(&self.tallies) as _));
        engine.with_tallies(Some(Arc::clone(&self.tallies)))
    }

    /// So many follow a channel, and nothing else was told last.
    pub(super) fn check(&self, channel: &ChannelName, count: u64) {
        assert_eq!(self.tallies.total(channel), count);
        let told = self.hook.counts.lock().unwrap().get(channel.name()).copied();
        assert!(told.is_none_or(|told| told == count), "{told:?}");
    }
}
