//! Answers questions for the stream's part of a list.

use std::sync::MutexGuard;

use throng_core::{
    Answer, ChannelName, Kind, Later, ListPart, ListPlace, ListQuery, ListedChannel, MessageId,
};

use super::shared::{NodeShared, unanswered};
use super::stored_names::{
    CountedPage, KINDS, NAMES_MAX, NamesOfKind, Run, StoredState, WAITING_MAX, WaitingPage, place,
};
use crate::journal::{CountedLog, JournalEvent, LogCount, NamedLog, Naming};

impl NodeShared {
    /// The stream's part of a page of a list.
    pub(super) fn list_stored(
        &self,
        query: &ListQuery,
        later: Later<'_, ListPart>,
    ) -> Answer<ListPart> {
        let Some(place) = place(query.kind) else { return ListPart::default().into() };
        if !self.link.is_open() {
            return unanswered(later);
        }
        let mut state = self.stored.lock();
        let kind = &mut state.kinds[place];
        if kind.waiting.len() >= WAITING_MAX {
            drop(state);
            return unanswered(later);
        }
        let (ticket, answer) = later.ticket();
        let since_ms = (self.now_ms)();
        kind.used_ms = since_ms;
        kind.waiting.push(WaitingPage { query: query.clone(), since_ms, ticket });
        self.learn_names(kind, query.kind);
        answer
    }

    /// Has the names of a kind learnt for the pages that wait, unless that is going on.
    fn learn_names(&self, names: &mut NamesOfKind, kind: Kind) {
        if names.run.is_none() && !names.waiting.is_empty() {
            let pages = std::mem::take(&mut names.waiting);
            self.begin_run(names, kind, pages);
        }
    }

    fn begin_run(&self, names: &mut NamesOfKind, kind: Kind, pages: Vec<WaitingPage>) {
        let (token, is_anew) = (self.token(), !names.is_known);
        if is_anew {
            self.stored.forget_kind(names);
        }
        names.run = Some(Run { token, is_anew, pages });
        // Under the lock, so that there is a run when it is answered.
        self.tell(JournalEvent::Name { token, kind, is_anew });
    }

    /// Names of channels in the stream were learnt.
    pub(super) fn were_named(&self, token: u64, logs: Vec<NamedLog>, naming: Naming) {
        let mut state = self.stored.lock();
        let is_run = |kind: &NamesOfKind| kind.run.as_ref().is_some_and(|run| run.token == token);
        let Some(place) = state.kinds.iter().position(is_run) else { return };
        let (kind, names) = (KINDS[place], &mut state.kinds[place]);
        let first = match naming {
            Naming::End { first } => Some(first),
            Naming::More | Naming::Failed(_) => None,
        };
        names.learn(logs, first);
        if first.is_none() && naming == Naming::More && names.index.len() <= NAMES_MAX {
            return;
        }
        let Some(Run { is_anew, pages, .. }) = names.run.take() else { return };
        if first.is_some() {
            let begun: Vec<_> = pages.into_iter().map(|page| self.select(names, page)).collect();
            self.learn_names(names, kind);
            return self.count_pages(state, begun);
        }
        self.stored.forget_kind(names);
        let mut unknown = Vec::new();
        match naming {
            // The consumer is gone, or its server.
            Naming::Failed(None) if !is_anew => self.begin_run(names, kind, pages),
            // Dropped, their tickets say that there is no answer.
            _ => unknown.extend(pages.into_iter().chain(names.waiting.drain(..))),
        }
        drop(state);
        drop(unknown);
        match naming {
            Naming::Failed(Some(reason)) => self.trouble(&reason),
            Naming::More => self.trouble(&format!(
                "lists lack the channels of the stream: there are more than {NAMES_MAX}"
            )),
            _ => {}
        }
    }

    /// Selects the channels of a page.
    fn select(&self, names: &NamesOfKind, page: WaitingPage) -> (CountedPage, Vec<CountedLog>) {
        let WaitingPage { query, ticket, .. } = page;
        let (found, reached) = names.index.page(&query);
        let (mut channels, mut most, mut logs) = (Vec::new(), Vec::new(), Vec::new());
        let epoch = self.epoch();
        for (name, ends) in found {
            let name = ChannelName::new(query.kind, name);
            // The messages of a channel whose rule has changed are not the channel's any more.
            if !self.memory.is_in_listed(&name) {
                continue;
            }
            let retention = self.memory.rule(&name).retention;
            most.push(retention.max_messages);
            logs.push(CountedLog {
                channel: name.clone(),
                max_age_ms: retention.max_age_ms,
                may_be_kept: ends.beside > 0,
            });
            let head = MessageId { epoch, offset: ends.message };
            let (place, subscribers, messages) = (ListPlace(0), 0, 0);
            channels.push(ListedChannel { place, name, subscribers, head, messages });
        }
        let part = ListPart { channels: Vec::new(), reached };
        (CountedPage { channels, most, part, ticket }, logs)
    }

    /// Has the messages of the channels of pages counted.
    fn count_pages(
        &self,
        mut state: MutexGuard<'_, StoredState>,
        pages: Vec<(CountedPage, Vec<CountedLog>)>,
    ) {
        let mut empty = Vec::new();
        for (page, logs) in pages {
            if logs.is_empty() {
                empty.push(page);
                continue;
            }
            let token = self.token();
            state.counted.insert(token, page);
            self.tell(JournalEvent::Count { token, logs });
        }
        drop(state);
        empty.into_iter().for_each(|page| page.ticket.answer(page.part));
    }

    /// The messages of the channels of a page were counted.
    pub(super) fn were_counted(&self, token: u64, counts: Option<Vec<LogCount>>) {
        let Some(page) = self.stored.lock().counted.remove(&token) else { return };
        // Dropped, the ticket says that there is no answer.
        let Some(counts) = counts else { return };
        let CountedPage { channels, most, mut part, ticket } = page;
        for ((mut listed, most), count) in channels.into_iter().zip(most).zip(counts) {
            listed.messages = usize::try_from(count.messages).unwrap_or(usize::MAX).min(most);
            listed.head.offset = listed.head.offset.max(count.head);
            if listed.messages > 0 || count.is_kept {
                part.channels.push(listed);
            }
        }
        ticket.answer(part);
    }
}
