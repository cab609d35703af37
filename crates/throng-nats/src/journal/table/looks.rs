//! What is read of a table on demand: an entry, or how many there are. And what is removed of it.

use std::collections::BTreeMap;

use crate::api::get;
use crate::api::table::{self, TableNames};
use crate::journal::outbox::{Outbox, Question};
use crate::journal::report::{JournalReport, TableId};
use crate::protocol::headers::Headers;

/// After this time it is not known what a table has.
const LOOK_MS: u64 = 4_000;

/// Entries that are read at a time, at most: clients that come back ask for one each.
const LOOKS_MAX: usize = 65_536;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Entry,
    Match { removes: bool },
}

#[derive(Debug, Clone, Copy)]
struct Look {
    token: u64,
    since_ms: u64,
    what: What,
}

impl Look {
    /// The report that nothing is known.
    fn unknown(self) -> JournalReport {
        match self.what {
            What::Entry => JournalReport::Looked { token: self.token, found: None },
            What::Match { .. } => JournalReport::Matched(self.token, None),
        }
    }
}

pub(super) struct Looks {
    table: TableId,
    /// Those that are not answered, by place.
    pending: BTreeMap<u64, Look>,
}

impl Looks {
    pub(super) fn new(table: TableId) -> Looks {
        Looks { table, pending: BTreeMap::new() }
    }

    pub(super) fn disconnected(&mut self, outbox: &mut Outbox) {
        for look in std::mem::take(&mut self.pending).into_values() {
            outbox.report(look.unknown());
        }
    }

    /// Reads the last entry of a key. Without `names` the table is not there.
    pub(super) fn look(
        &mut self,
        now_ms: u64,
        (names, key): (Option<&TableNames>, &str),
        token: u64,
        outbox: &mut Outbox,
    ) {
        let look = Look { token, since_ms: now_ms, what: What::Entry };
        self.ask(look, names, outbox, |names| {
            let request = get::last(&format!("{}{key}", names.keys));
            (format!("$JS.API.DIRECT.GET.{}", names.stream), request)
        });
    }

    /// Counts entries, or removes them: those whose keys are like this one.
    pub(super) fn match_keys(
        &mut self,
        now_ms: u64,
        (names, keys): (Option<&TableNames>, &str),
        (token, removes): (u64, bool),
        outbox: &mut Outbox,
    ) {
        let look = Look { token, since_ms: now_ms, what: What::Match { removes } };
        self.ask(look, names, outbox, |names| {
            let subject = if removes { purge(names) } else { info(names) };
            (subject, table::match_keys(&format!("{}{keys}", names.keys), removes))
        });
    }

    fn ask(
        &mut self,
        look: Look,
        names: Option<&TableNames>,
        outbox: &mut Outbox,
        request: impl FnOnce(&TableNames) -> (String, Vec<u8>),
    ) {
        let Some(names) = names.filter(|_| self.pending.len() < LOOKS_MAX) else {
            return outbox.report(look.unknown());
        };
        let place = outbox.token();
        self.pending.insert(place, look);
        let (subject, request) = request(names);
        outbox.ask_again(place, Question::Entry(self.table), subject, ([].into(), request.into()));
    }

    /// Takes an answer.
    pub(super) fn answered(
        &mut self,
        names: &TableNames,
        place: u64,
        (headers, payload): (Headers<'_>, &[u8]),
        outbox: &mut Outbox,
    ) {
        outbox.answered(place);
        let Some(Look { token, what, .. }) = self.pending.remove(&place) else { return };
        if let What::Match { removes } = what {
            let count = headers.status().is_none().then(|| table::matched(payload, removes));
            return outbox.report(JournalReport::Matched(token, count.flatten()));
        }
        let found = match headers.status() {
            None => names.entry(headers, payload).map(Some),
            Some(404) => Some(None),
            Some(_) => None,
        };
        outbox.report(JournalReport::Looked { token, found });
    }

    /// This user may not publish to a subject: no answer comes.
    pub(super) fn denied(&mut self, names: &TableNames, subject: &str, outbox: &mut Outbox) {
        if subject == purge(names) {
            self.end(outbox, |look| look.what == What::Match { removes: true });
        }
    }

    pub(super) fn tick(&mut self, now_ms: u64, outbox: &mut Outbox) {
        self.end(outbox, |look| now_ms.saturating_sub(look.since_ms) >= LOOK_MS);
    }

    /// No answer comes to some of them.
    fn end(&mut self, outbox: &mut Outbox, which: impl Fn(&Look) -> bool) {
        for (place, look) in self.pending.extract_if(.., |_, look| which(look)) {
            outbox.answered(place);
            outbox.report(look.unknown());
        }
    }
}

fn purge(names: &TableNames) -> String {
    format!("$JS.API.STREAM.PURGE.{}", names.stream)
}

fn info(names: &TableNames) -> String {
    format!("$JS.API.STREAM.INFO.{}", names.stream)
}
