//! The streams that a client follows, and the audit of what it gets of them.

use super::client::State;
use super::start::Start;
use super::thread::Thread;
use crate::audit::{Arrival, Audit, Track};
use crate::marker::Mark;

impl Thread {
    /// The client is subscribed from now on.
    pub(super) fn join(&mut self, position: usize, now: u64) {
        let number = self.setting.number(self.index, position);
        self.set_state(position, State::Active);
        self.tally.subscribed += 1;
        let since = std::mem::replace(&mut self.clients[position].since_ns, now);
        self.tally.connecting.note(now);
        self.measured.connect(now.saturating_sub(since), &self.setting.ledger);
        let board = &self.setting.board;
        let client = &mut self.clients[position];
        client.returns = false;
        // One that goes on keeps its audit, with what it missed meanwhile.
        let is_new = !std::mem::replace(&mut client.is_tracked, true);
        if is_new {
            client.start = if board.is_behind() { Start::New } else { Start::Known };
        }
        if is_new && client.start == Start::New {
            self.starts.push(position);
        }
        if let Some(stream) = self.setting.stream(number) {
            if is_new {
                client.track = Track::begin(board.last_published(stream));
            }
            board.joined(stream);
            return;
        }
        if is_new {
            let streams = self.setting.streams(number).into_iter();
            let begin = |stream| (stream, Track::begin(board.last_published(stream)));
            client.extra().tracks = streams.map(begin).collect();
        }
        let tracks = client.extra.as_ref().map_or(&[][..], |extra| &extra.tracks);
        tracks.iter().for_each(|&(stream, _)| board.joined(stream));
    }

    /// The client is not subscribed any more.
    pub(super) fn leave(&self, position: usize) {
        let number = self.setting.number(self.index, position);
        let board = &self.setting.board;
        match self.setting.stream(number) {
            Some(stream) => board.left(stream),
            None => {
                let extra = self.clients[position].extra.as_ref();
                let tracks = extra.map_or(&[][..], |extra| &extra.tracks);
                tracks.iter().for_each(|&(stream, _)| board.left(stream));
            }
        }
    }

    /// Ends the client's audit. What may be on the way is expected unless the end `is_asked` for.
    pub(super) fn settle(&mut self, position: usize, is_asked: bool) {
        let board = std::sync::Arc::clone(&self.setting.board);
        let audit =
            self.due(
                position,
                |stream, track| {
                    if is_asked { track.last() } else { board.last_published(stream) }
                },
            );
        self.settled += audit;
        let client = &mut self.clients[position];
        client.is_tracked = false;
        client.start = Start::Known;
        self.ids.release(&mut client.resume);
        if let Some(extra) = &mut client.extra {
            extra.tracks = Box::default();
        }
    }

    /// The audit of all clients up to now.
    pub(super) fn audit(&self, sent: &[u64]) -> Audit {
        let last = |stream: u32, _: &Track| {
            let last = sent.get(stream as usize).copied().unwrap_or_default();
            u32::try_from(last).unwrap_or(u32::MAX)
        };
        let mut audit = self.settled;
        (0..self.clients.len()).for_each(|position| audit += self.due(position, last));
        audit.without(self.missed)
    }

    /// The server says that a client, which goes on where it was, may have missed something.
    pub(super) fn tell_gap(&mut self, position: usize) {
        let client = &mut self.clients[position];
        client.track.tell_gap();
        let tracks = client.extra.as_mut().map(|extra| &mut extra.tracks[..]);
        tracks.unwrap_or_default().iter_mut().for_each(|(_, track)| track.tell_gap());
    }

    /// What was due to a client until the last sequence that `last` says for each stream.
    fn due(&self, position: usize, last: impl Fn(u32, &Track) -> u32) -> Audit {
        let client = &self.clients[position];
        let mut audit = Audit::default();
        if !client.is_tracked {
            return audit;
        }
        let mut add = |stream, track: &Track| {
            if client.start != Start::Known && track.is_empty() {
                return;
            }
            let last = last(stream, track);
            let to = last.max(track.last());
            let refused = self.setting.board.refused_between(stream, track.expected_from(), to);
            audit += track.settle(last, refused);
        };
        match self.setting.stream(self.setting.number(self.index, position)) {
            Some(stream) => add(stream, &client.track),
            None => {
                let extra = client.extra.as_ref();
                let tracks = extra.map_or(&[][..], |extra| &extra.tracks);
                tracks.iter().for_each(|(stream, track)| add(*stream, track));
            }
        }
        audit
    }

    /// A marked message has come.
    pub(super) fn deliver(&mut self, position: usize, mark: &Mark, now: u64) {
        let stream = self.setting.stream(self.setting.number(self.index, position));
        let client = &mut self.clients[position];
        if !client.is_tracked {
            self.tally.early += 1;
            return;
        }
        let track = match stream {
            Some(stream) => (stream == mark.stream).then_some(&mut client.track),
            None => client.extra.as_mut().and_then(|extra| {
                let found = extra.tracks.binary_search_by_key(&mark.stream, |&(stream, _)| stream);
                found.ok().map(|found| &mut extra.tracks[found].1)
            }),
        };
        let Some(track) = track else {
            self.tally.stray += 1;
            return;
        };
        if client.is_unsure || client.start != Start::Known {
            track.begin_later(mark.sequence.saturating_sub(1));
            client.is_unsure = false;
            // Of one that follows many streams, each has its first message.
            if stream.is_some() {
                client.start = Start::Known;
            }
        }
        match track.arrive(mark.sequence) {
            Arrival::Before => {
                self.tally.early += 1;
                return;
            }
            Arrival::Again => {
                self.settled.duplicated += 1;
                return;
            }
            Arrival::Late => self.settled.reordered += 1,
            Arrival::AfterGap(missed) => {
                let (from, to) = (mark.sequence - missed, mark.sequence - 1);
                let refused = self.setting.board.refused_between(mark.stream, from, to);
                self.missed += u64::from(missed).saturating_sub(refused);
            }
            Arrival::New => {}
        }
        self.tally.received += 1;
        let latency_ns = self.setting.latency_ns(mark.intended_ns, now);
        self.measured.delivery(mark, latency_ns, &self.setting.ledger);
    }
}
