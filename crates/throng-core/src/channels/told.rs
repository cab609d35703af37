//! Tells the followers of a user's inbox that a read marker in a journal has moved, on all nodes.

use std::sync::Arc;

use crate::journal::Journal;
use crate::later::{Answer, Later, Ticket};
use crate::memory::MemoryEngine;
use crate::publication::VolatilePublication;
use crate::read_marker::{Marked, MarkerKey, Mover};

/// Those that are to be told.
#[derive(Clone)]
pub(super) struct Told {
    memory: Arc<MemoryEngine>,
    journal: Arc<dyn Journal>,
    now_ms: u64,
    of: MarkerKey,
    mover: Option<Mover>,
    /// True if other nodes may have followers of the inbox that the marker means something to.
    is_passed_on: bool,
}

impl Told {
    /// Prepares to tell of the marker `of`, kept by `journal`. The inbox may be in another journal.
    pub(super) fn of(
        memory: &Arc<MemoryEngine>,
        journal: &Arc<dyn Journal>,
        (now_ms, of, mover): (u64, &MarkerKey, Option<Mover>),
    ) -> Told {
        let is_passed_on = memory.rule(of.log()).journal == memory.rule(&of.told()).journal;
        let (memory, journal) = (Arc::clone(memory), Arc::clone(journal));
        Told { memory, journal, now_ms, of: of.clone(), mover, is_passed_on }
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
        self.memory.note_marked(marked);
        let Some(marker) = marked.as_ref().ok().filter(|marker| marker.has_moved) else { return };
        if let Some(cluster) = self.journal.cluster().filter(|_| self.is_passed_on) {
            let notice = VolatilePublication::unread(&self.of, marker, self.mover);
            // Who cannot be reached now reads the marker on return.
            let _ = cluster.pass_on(&notice);
        }
        self.memory.tell_unread(self.now_ms, &self.of, marker, self.mover);
    }
}
