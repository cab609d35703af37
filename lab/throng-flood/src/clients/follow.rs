//! The streams that a client follows, and the audit of what it receives.

use super::client::{AuditStart, Client, ClientState};
use super::reader::READERS_MAX;
use super::resume::MessageId;
use super::thread::ClientThread;
use crate::audit::{Audit, SequenceOrder, Track};
use crate::counts::ReaderAge;
use crate::marker::{Mark, now_ns};

impl ClientThread {
    /// The client is subscribed from now on.
    pub(super) fn join(&mut self, position: usize, now: u64) {
        let number = self.shared.number(self.index, position);
        self.set_state(position, ClientState::Active);
        if self.shared.publisher.is_some() {
            return;
        }
        self.counts.subscribed += 1;
        let since = std::mem::replace(&mut self.clients[position].since_ns, now);
        self.counts.connecting.note(now);
        self.latencies.connect(now.saturating_sub(since), &self.shared.accumulator);
        let counters = &self.shared.counters;
        let client = &mut self.clients[position];
        client.returns = false;
        // A client that resumes keeps its audit, with what it missed meanwhile.
        let is_new = !std::mem::replace(&mut client.is_tracked, true);
        if is_new {
            client.start = if counters.is_behind() { AuditStart::New } else { AuditStart::Known };
        }
        if is_new && client.start == AuditStart::New {
            self.starts.push(position);
        }
        let stream = self.shared.stream(number);
        if is_new && stream.is_none() {
            let streams = self.shared.streams(number);
            if self.shared.measures_readers() && position < READERS_MAX {
                let reader = client.extra().reader.get_or_insert_default();
                reader.subscribe(streams.len(), now);
            }
            let tracks = streams.into_iter().map(|stream| (stream, Track::default()));
            client.extra().tracks = tracks.collect();
        }
        for (stream, track) in client.tracks_mut(stream) {
            if is_new {
                *track = Track::begin(counters.last_published(stream));
            }
            counters.joined(stream);
        }
    }

    /// The stream that a client follows; `None` if it follows several.
    pub(super) fn stream(&self, position: usize) -> Option<u32> {
        self.shared.stream(self.shared.number(self.index, position))
    }

    /// The client is no longer subscribed.
    pub(super) fn leave(&self, position: usize) {
        for (stream, _) in self.clients[position].tracks(self.stream(position)) {
            self.shared.counters.left(stream);
        }
    }

    /// Ends the client's audit. Messages in transit are expected unless the end `is_asked` for.
    pub(super) fn finish_audit(&mut self, position: usize, is_asked: bool) {
        let counters = std::sync::Arc::clone(&self.shared.counters);
        let audit = self.due(position, |stream, track| {
            if is_asked { track.last() } else { counters.last_published(stream) }
        });
        self.finished_audit += &audit;
        let client = &mut self.clients[position];
        client.is_tracked = false;
        client.start = AuditStart::Known;
        client.resume = MessageId::default();
        if let Some(extra) = &mut client.extra {
            extra.tracks = Box::default();
            extra.skipped.clear();
        }
    }

    /// The audit of all clients until now.
    pub(super) fn audit(&self, sent: &[u64]) -> Audit {
        let last = |stream: u32, _: &Track| {
            let last = sent.get(stream as usize).copied().unwrap_or_default();
            u32::try_from(last).unwrap_or(u32::MAX)
        };
        let mut audit = self.finished_audit;
        (0..self.clients.len()).for_each(|position| audit += &self.due(position, last));
        audit.without(self.missed)
    }

    /// The server has announced a gap to a client that resumed.
    pub(super) fn announce_gap(&mut self, position: usize) {
        let stream = self.stream(position);
        let tracks = self.clients[position].tracks_mut(stream);
        tracks.for_each(|(_, track)| track.announce_gap());
    }

    /// The deliveries that a client was due, up to the last sequence that `last` returns for each
    /// stream.
    fn due(&self, position: usize, last: impl Fn(u32, &Track) -> u32) -> Audit {
        let client = &self.clients[position];
        let mut audit = Audit::default();
        if !client.is_tracked {
            return audit;
        }
        for (stream, track) in client.tracks(self.stream(position)) {
            if client.start == AuditStart::Known || !track.is_empty() {
                let last = last(stream, track);
                let (from, to) = (track.expected_from(), last.max(track.last()));
                audit += &track.audit(last, self.shared.counters.refused_between(stream, from, to));
            }
        }
        audit
    }

    /// Handles a message with a mark. `are_told` says that the server has told of those that it has
    /// skipped before this one.
    pub(super) fn deliver(&mut self, position: usize, mark: &Mark, are_told: bool, now: u64) {
        let stream = self.stream(position);
        let client = &mut self.clients[position];
        if !client.is_tracked {
            self.counts.early += 1;
            return;
        }
        let found = match stream {
            Some(stream) => (stream == mark.stream).then_some((0, &mut client.track)),
            None => client.extra.as_mut().and_then(|extra| {
                let found = extra.tracks.binary_search_by_key(&mark.stream, |&(stream, _)| stream);
                found.ok().map(|place| (place, &mut extra.tracks[place].1))
            }),
        };
        let Some((place, track)) = found else {
            self.counts.stray += 1;
            return;
        };
        if client.is_unsure || client.start != AuditStart::Known {
            track.begin_later(mark.sequence.saturating_sub(1));
            client.is_unsure = false;
            // With several streams, each has a first message of its own.
            if stream.is_some() {
                client.start = AuditStart::Known;
            }
        }
        if are_told {
            track.announce_gap();
        }
        match track.arrive(mark.sequence) {
            SequenceOrder::Before => {
                self.counts.early += 1;
                return;
            }
            SequenceOrder::Again => {
                self.finished_audit.duplicated += 1;
                return;
            }
            SequenceOrder::Late => self.finished_audit.reordered += 1,
            SequenceOrder::AfterGap(missed) => {
                let (from, to) = (mark.sequence - missed, mark.sequence - 1);
                let refused = self.shared.counters.refused_between(mark.stream, from, to);
                self.missed += u64::from(missed).saturating_sub(refused);
            }
            SequenceOrder::New => {}
        }
        self.counts.received += 1;
        let latency_ns = self.shared.latency_ns(mark.intended_ns, now);
        self.latencies.delivery(mark, latency_ns, &self.shared.accumulator);
        let extra = self.clients[position].extra.as_mut();
        if let Some(reader) = extra.and_then(|extra| extra.reader.as_mut()) {
            reader.record(place, mark.intended_ns, latency_ns);
        }
    }

    /// The ages of each subscribed client's messages so far, and how far it is behind now.
    pub(super) fn reader_ages(&self) -> Vec<ReaderAge> {
        if !self.shared.measures_readers() {
            return Vec::new();
        }
        let readers = self.clients.iter().take(READERS_MAX);
        let readers = readers.filter(|client| client.state == ClientState::Active);
        readers.filter_map(|client| self.reader_age(client)).collect()
    }

    fn reader_age(&self, client: &Client) -> Option<ReaderAge> {
        let reader = client.extra.as_ref()?.reader.as_ref()?;
        let tracks = client.tracks(None).enumerate();
        let behind = tracks.map(|(place, (stream, track))| {
            self.behind_ns(stream, track.last(), reader.newest_ns(place))
        });
        Some(reader.ages(behind.max().unwrap_or_default()))
    }

    /// For how long a client has missed the message after its last one: 0 if there is none. The
    /// messages between its last one and the last that is published count as evenly spaced.
    fn behind_ns(&self, stream: u32, last: u32, newest_ns: u64) -> u64 {
        let counters = &self.shared.counters;
        let missing = counters.last_published(stream).saturating_sub(last);
        if missing == 0 {
            return 0;
        }
        let passed = |until_ns| self.shared.latency_ns(newest_ns, until_ns);
        let spacing_ns = passed(counters.last_published_ns(stream)) / u64::from(missing);
        passed(now_ns()).saturating_sub(spacing_ns)
    }
}
