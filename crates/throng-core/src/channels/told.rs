//! Tells the followers of an inbox in a journal that its read marker has moved, on all nodes.

use std::sync::Arc;

use crate::journal::Journal;
use crate::later::{Answer, Later, Ticket};
use crate::memory::MemoryEngine;
use crate::name::ChannelName;
use crate::publication::VolatilePublication;
use crate::read_marker::{Marked, Mover};

/// Those that are to be told.
#[derive(Clone)]
pub(super) struct Told {
    memory: Arc<MemoryEngine>,
    journal: Arc<dyn Journal>,
    now_ms: u64,
    inbox: ChannelName,
    mover: Option<Mover>,
}

impl Told {
    pub(super) fn of(
        memory: &Arc<MemoryEngine>,
        journal: &Arc<dyn Journal>,
        (now_ms, inbox, mover): (u64, &ChannelName, Option<Mover>),
    ) -> Told {
        let (memory, journal) = (Arc::clone(memory), Arc::clone(journal));
        Told { memory, journal, now_ms, inbox: inbox.clone(), mover }
    }

    /// Moves a marker, and tells of it before the mover has the answer, who may be gone by then.
    pub(super) fn after(
        self,
        later: Later<'_, Marked>,
        moves: impl FnOnce(Later<'_, Marked>) -> Answer<Marked>,
    ) -> Answer<Marked> {
        let (asker, mut later) = (later.asker(), Some(later));
        let told = self.clone();
        let mut issue = || {
            let ticket = later.take().map(|later| later.ticket().0);
            let told = told.clone();
            Ticket::new(move |answer| {
                if let (Some(answer), Some(ticket)) = (answer, ticket) {
                    told.tell(&answer);
                    ticket.answer(answer);
                }
            })
        };
        let answer = moves(Later::new(&mut issue).of(asker));
        if let Answer::Now(marked) = &answer {
            self.tell(marked);
        }
        answer
    }

    fn tell(&self, marked: &Marked) {
        let Some(marker) = marked.as_ref().ok().filter(|marker| marker.has_moved) else { return };
        if let Some(cluster) = self.journal.cluster() {
            let notice = VolatilePublication::unread(self.inbox.clone(), marker, self.mover);
            // Who cannot be reached now reads the marker on return.
            let _ = cluster.pass_on(&notice);
        }
        self.memory.tell_unread(self.now_ms, &self.inbox, marker, self.mover);
    }
}
