//! What processes that serve the same channels tell each other of their members.
//!
//! Each process has a *part* of a channel's members: those by connections of its own. It numbers
//! the changes of its parts, of all channels together, and tells all others each change. Whoever
//! has followers or members of a channel keeps the parts of the others beside its own, and asks
//! for them when that begins. A number that is missing shows that news was lost; then it asks
//! again. Once a second each says which number it has come to, so that the last change cannot be
//! lost unnoticed.
//!
//! Numbers of a process begin with its time of start, so that the next process of the same name,
//! after an upgrade, is one that has lost news: it is asked again, and nothing is forgotten
//! meanwhile.
//!
//! Invariants:
//!
//! * A change is told in the order of the numbers, and a part is as of a number. So a part and the
//!   changes beyond its number make the next part, in whatever order they come.
//! * What cannot be told is dropped and its number skipped: the others notice.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::wants::{Base, Want, Wants};
use crate::later::Ticket;
use crate::name::ChannelName;
use crate::rules::JournalId;

/// Changes that wait to be told, at most. Beyond, others have to ask.
const QUEUE_MAX: usize = 16_384;

/// Changes that come within this time are told together, in milliseconds.
const TOGETHER_MS: u64 = 20;

/// How often a process says which number it has come to, in milliseconds.
const BEAT_MS: u64 = 1_000;

/// After this time without news of another process, its members are not known for certain.
const FRESH_MS: u64 = 3_000;

/// The bytes of changes that are told in one message, and of a part that is sent as an answer:
/// less than any server of a journal carries.
pub(crate) const MESSAGE_BYTES: usize = 32 << 10;

/// Channels that one question is about, at most.
const WANTS_MAX: usize = 64;

/// Questions to all others that are under way, at most.
const ASKS_MAX: usize = 4;

/// After this time a process is asked again that has not answered, in milliseconds.
const RETRY_MS: u64 = 2_000;

/// For how long a list waits for the other processes at first, in milliseconds.
const READY_MS: u64 = 1_500;

/// Other processes that are known, at most: whoever may tell could invent any number.
const PEERS_MAX: usize = 1_000;

/// The longest name of another process, in bytes.
const PEER_NAME_BYTES_MAX: usize = 64;

/// News that is older than what is known, until it counts as another process's: one whose clock was
/// set back.
const LATE_MAX: u32 = 8;

/// After this silence a process is gone, in milliseconds. Longer than it takes to notice that the
/// own connection is silent: whoever is cut off must not take all others for gone.
pub(crate) const GONE_MS: u64 = 7_500;

/// A process that has not looked for so long was halted itself, in milliseconds: it has not read
/// what others have sent.
const HALTED_MS: u64 = 2_500;

/// What a member shows, and when it was said: the newest word counts, and of two at the same time
/// the greater text. What a client has not said itself has the stamp 0.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemberValue {
    pub stamp: u64,
    /// The member as a JSON object on one line.
    pub object: Box<str>,
}

/// A change of a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberChange {
    pub channel: ChannelName,
    pub key: Box<str>,
    /// `None` if the process has it no more.
    pub value: Option<MemberValue>,
}

impl MemberChange {
    fn bytes(&self) -> usize {
        let value = self.value.as_ref().map_or(0, |value| value.object.len());
        self.channel.name().len() + self.key.len() + value + 64
    }
}

/// The part of a channel that is asked for, behind a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberWant {
    pub channel: ChannelName,
    pub after: Option<Box<str>>,
}

/// A question for parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberAsk {
    /// Comes back with the answers.
    pub id: u64,
    /// The process that is asked; `None`: all others.
    pub only: Option<Box<str>>,
    pub wants: Vec<MemberWant>,
}

/// The members of a process by keys behind `after` up to `next`, or all if that is `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberPart {
    pub channel: ChannelName,
    pub after: Option<Box<str>>,
    /// The number of its last change.
    pub as_of: u64,
    /// In the order of the keys.
    pub members: Vec<(Box<str>, MemberValue)>,
    pub next: Option<Box<str>>,
}

/// Carries news and questions to the other processes.
pub trait MemberLink: Send + Sync {
    /// Tells all others the changes from number `first` on, or that the next will have it. Called
    /// under a lock: it must not call the engine.
    fn tell(&self, first: u64, changes: &[MemberChange]);

    /// Asks, and answers through
    /// [`MemoryEngine::members_answered`](crate::MemoryEngine::members_answered) in any case.
    fn ask(&self, ask: MemberAsk);
}

/// Another process, for as long as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PeerId(u32);

#[cfg(test)]
impl PeerId {
    pub(crate) fn numbered(number: u32) -> PeerId {
        PeerId(number)
    }
}

#[derive(Debug)]
struct Peer {
    id: PeerId,
    /// Counts the times at which its news may have been lost. Parts from before are incomplete.
    generation: u32,
    /// The number of its next news.
    next: Option<u64>,
    /// When it was heard since this process is connected.
    heard_ms: Option<u64>,
    /// When it was known to be there.
    there_ms: u64,
    /// News in succession that is older than what is known.
    late: u32,
    wants: Wants,
    is_asked: bool,
    retry_ms: u64,
}

impl Peer {
    fn is_heard(&self, now_ms: u64) -> bool {
        self.heard_ms.is_some_and(|heard_ms| now_ms < heard_ms + FRESH_MS)
    }
}

/// A question under way.
#[derive(Debug)]
pub(crate) struct OpenAsk {
    pub(crate) only: Option<Box<str>>,
    pub(crate) wants: Vec<Want>,
    /// The others that were known, with their generations.
    generations: BTreeMap<Box<str>, u32>,
}

/// A list that waits for the other processes.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) channel: ChannelName,
    due_ms: u64,
    pub(crate) ticket: Ticket<bool>,
}

/// What becomes of news.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Hearing {
    /// It is known, or of nobody.
    Nothing,
    /// It is another process's with the same name: the one before is gone.
    Another,
    /// All but the first `skip` changes are new. If some before them are lost, all parts of the
    /// process have to be asked for.
    Taken { peer: PeerId, skip: usize, is_lost: bool },
}

#[derive(Debug, Default)]
pub(crate) struct ExchangeState {
    /// Of the last change of this process.
    number: u64,
    /// The changes up to there that have to be told.
    queue: Vec<MemberChange>,
    told_ms: u64,
    beat_ms: u64,
    is_connected: bool,
    looked_ms: u64,
    peers: BTreeMap<Box<str>, Peer>,
    next_peer: u32,
    wants: Wants,
    asks: BTreeMap<u64, OpenAsk>,
    next_ask: u64,
    waiting: Vec<Waiting>,
    /// Times at which news was lost.
    pub(crate) losses: u64,
    /// Processes that have become silent for good.
    gone: u64,
}

/// How well the others are known. It changes whenever they may have changed without this process
/// being told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Contact {
    is_connected: bool,
    are_all_heard: bool,
    others: usize,
    losses: u64,
    /// Processes that have become silent for good.
    pub(crate) gone: u64,
}

/// The exchange of members with the other processes.
pub(crate) struct Exchange {
    /// The journal whose channels others serve, too.
    pub(crate) journal: JournalId,
    link: Box<dyn MemberLink>,
    state: Mutex<ExchangeState>,
}

impl fmt::Debug for Exchange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Exchange").field("journal", &self.journal).finish_non_exhaustive()
    }
}

impl Exchange {
    /// The first change has the number behind `number`.
    pub(crate) fn new(journal: JournalId, number: u64, link: Box<dyn MemberLink>) -> Exchange {
        let state = ExchangeState { number, ..ExchangeState::default() };
        Exchange { journal, link, state: Mutex::new(state) }
    }

    /// Taken after the lock of any channel's members.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ExchangeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells a change of this process, at once or with others that come soon.
    pub(crate) fn push(&self, now_ms: u64, change: MemberChange) {
        let mut state = self.lock();
        state.push(change);
        if now_ms >= state.told_ms + TOGETHER_MS {
            self.tell(&mut state, now_ms);
        }
    }

    /// Tells what waits, and which number this process has come to.
    pub(crate) fn tick(&self, now_ms: u64) {
        let mut state = self.lock();
        self.tell(&mut state, now_ms);
        if state.is_connected && now_ms >= state.beat_ms {
            state.beat_ms = now_ms + BEAT_MS;
            self.link.tell(state.number + 1, &[]);
        }
    }

    fn tell(&self, state: &mut ExchangeState, now_ms: u64) {
        if state.queue.is_empty() {
            return;
        }
        (state.told_ms, state.beat_ms) = (now_ms, now_ms + BEAT_MS);
        let queue = std::mem::take(&mut state.queue);
        let (mut first, mut begin, mut bytes) = (state.number + 1 - queue.len() as u64, 0, 0);
        for (at, change) in queue.iter().enumerate() {
            let length = change.bytes();
            if at > begin && bytes + length > MESSAGE_BYTES {
                self.link.tell(first, &queue[begin..at]);
                (first, begin, bytes) = (first + (at - begin) as u64, at, 0);
            }
            bytes += length;
        }
        self.link.tell(first, &queue[begin..]);
    }

    /// Asks what there is to ask. Call it without a lock.
    pub(crate) fn ask(&self, now_ms: u64) {
        loop {
            let Some(ask) = self.lock().next_ask(now_ms) else { return };
            self.link.ask(ask);
        }
    }
}

impl ExchangeState {
    /// The number of the last change of this process.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    fn push(&mut self, change: MemberChange) {
        self.number += 1;
        if !self.is_connected || self.queue.len() >= QUEUE_MAX {
            self.queue.clear();
        } else {
            self.queue.push(change);
        }
    }

    /// Some changes are not told: others have to find them out.
    pub(crate) fn skip(&mut self) {
        self.number += 1;
        self.queue.clear();
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.is_connected
    }

    pub(crate) fn contact(&self, now_ms: u64) -> Contact {
        let are_all_heard = self.peers.values().all(|peer| peer.is_heard(now_ms));
        let &ExchangeState { is_connected, losses, gone, .. } = self;
        Contact { is_connected, are_all_heard, others: self.peers.len(), losses, gone }
    }

    /// Others can be reached, or not any more. Returns what waits for them in vain.
    pub(crate) fn connected(&mut self, now_ms: u64, is_connected: bool) -> Vec<Waiting> {
        (self.is_connected, self.beat_ms) = (is_connected, now_ms);
        self.queue.clear();
        for peer in self.peers.values_mut() {
            // Nobody could be heard meanwhile. Whoever was lost says nothing any more.
            (peer.heard_ms, peer.there_ms) = (None, now_ms);
        }
        if is_connected { Vec::new() } else { std::mem::take(&mut self.waiting) }
    }

    fn peer(&mut self, now_ms: u64, node: &str) -> Option<&mut Peer> {
        if !self.peers.contains_key(node) {
            if self.peers.len() >= PEERS_MAX || node.len() > PEER_NAME_BYTES_MAX {
                return None;
            }
            let peer = Peer {
                id: PeerId(self.next_peer),
                generation: 0,
                next: None,
                heard_ms: None,
                there_ms: now_ms,
                late: 0,
                wants: Wants::default(),
                is_asked: false,
                retry_ms: 0,
            };
            self.next_peer += 1;
            self.peers.insert(node.into(), peer);
        }
        self.peers.get_mut(node)
    }

    /// Another process is there, and may have members.
    pub(crate) fn is_there(&mut self, now_ms: u64, node: &str) {
        if let Some(peer) = self.peer(now_ms, node) {
            peer.there_ms = now_ms;
        }
    }

    /// Another process has told `count` changes from number `first` on.
    pub(crate) fn hear(&mut self, now_ms: u64, node: &str, first: u64, count: usize) -> Hearing {
        // No process comes so far: whoever says so would have the numbers overflow.
        let end = first.checked_add(count as u64).filter(|end| *end < u64::MAX);
        let (Some(end), Some(peer)) = (end, self.peer(now_ms, node)) else {
            return Hearing::Nothing;
        };
        if peer.next.is_some_and(|next| end < next) {
            peer.late += 1;
            return if peer.late > LATE_MAX { Hearing::Another } else { Hearing::Nothing };
        }
        // Of what it has told before its first news here nothing is known.
        let is_lost = peer.next.is_none_or(|next| first > next);
        let skip = peer.next.map_or(0, |next| next.saturating_sub(first) as usize);
        (peer.next, peer.heard_ms) = (Some(end), Some(now_ms));
        (peer.late, peer.there_ms) = (0, now_ms);
        let id = peer.id;
        if is_lost {
            peer.generation += 1;
            self.losses += 1;
        }
        Hearing::Taken { peer: id, skip, is_lost }
    }

    /// A process has ended in order.
    pub(crate) fn left(&mut self, node: &str) -> Option<PeerId> {
        self.peers.remove(node).map(|peer| peer.id)
    }

    /// The processes that were silent for so long that they are gone, and whether this one was
    /// halted. Called about once a second, after what has come was taken.
    pub(crate) fn take_gone(&mut self, now_ms: u64) -> (Vec<PeerId>, bool) {
        let was_halted = now_ms >= self.looked_ms + HALTED_MS;
        self.looked_ms = now_ms;
        if was_halted {
            self.peers.values_mut().for_each(|peer| peer.there_ms = now_ms);
        }
        if !self.is_connected {
            return (Vec::new(), was_halted);
        }
        let gone = self.peers.extract_if(.., |_, peer| now_ms >= peer.there_ms + GONE_MS);
        let gone: Vec<_> = gone.map(|(_, peer)| peer.id).collect();
        self.gone += gone.len() as u64;
        (gone, was_halted)
    }

    /// When any other process was heard last; `None` if this is the only one.
    pub(crate) fn contact_ms(&self) -> Option<u64> {
        let heard = self.peers.values().map(|peer| peer.heard_ms.unwrap_or_default());
        heard.max()
    }

    /// True if the parts of all others are known, where those of one channel are `parts`.
    pub(crate) fn is_whole(&self, now_ms: u64, parts: &[(PeerId, Base)]) -> bool {
        let is_known = |peer: &Peer| {
            let is_part =
                |(id, base): &(PeerId, Base)| *id == peer.id && base.generation == peer.generation;
            peer.is_heard(now_ms) && parts.iter().any(is_part)
        };
        self.is_connected && self.peers.values().all(is_known)
    }

    /// True if a process that is heard has a part which is not known here. All questions for it
    /// may have been in vain.
    pub(crate) fn lacks_part(&self, now_ms: u64, parts: &[(PeerId, Base)]) -> bool {
        let is_known = |peer: &Peer| {
            parts.iter().any(|(id, base)| *id == peer.id && base.generation == peer.generation)
        };
        self.is_connected
            && self.peers.values().any(|peer| peer.is_heard(now_ms) && !is_known(peer))
    }

    /// Asks all others for their parts of a channel.
    pub(crate) fn want(&mut self, channel: ChannelName) {
        self.wants.add(Want::all(channel));
    }

    /// Asks a process for its parts of all these channels.
    pub(crate) fn want_all_of(&mut self, peer: PeerId, channels: Vec<ChannelName>) {
        if let Some(peer) = self.peers.values_mut().find(|it| it.id == peer) {
            peer.wants = Wants::default();
            channels.into_iter().for_each(|channel| peer.wants.add(Want::all(channel)));
        }
    }

    /// Asks a process for more.
    pub(crate) fn want_of(&mut self, node: &str, want: Want) {
        if let Some(peer) = self.peers.get_mut(node) {
            peer.wants.add(want);
        }
    }

    fn next_ask(&mut self, now_ms: u64) -> Option<MemberAsk> {
        if !self.is_connected {
            return None;
        }
        let open = self.asks.values().filter(|ask| ask.only.is_none()).count();
        let (only, wants) = if !self.wants.is_empty() && open < ASKS_MAX {
            (None, &mut self.wants)
        } else {
            let is_due =
                |peer: &Peer| !peer.wants.is_empty() && !peer.is_asked && now_ms >= peer.retry_ms;
            let (node, peer) = self.peers.iter_mut().find(|(_, peer)| is_due(peer))?;
            peer.is_asked = true;
            (Some(node.clone()), &mut peer.wants)
        };
        let wants = wants.take(WANTS_MAX);
        let id = self.next_ask;
        self.next_ask += 1;
        let wanted =
            |want: &Want| MemberWant { channel: want.channel.clone(), after: want.after.clone() };
        let ask = MemberAsk { id, only: only.clone(), wants: wants.iter().map(wanted).collect() };
        let known =
            self.peers.iter().filter(|(node, _)| only.as_ref().is_none_or(|it| it == *node));
        let generations = known.map(|(node, peer)| (node.clone(), peer.generation)).collect();
        self.asks.insert(id, OpenAsk { only, wants, generations });
        Some(ask)
    }

    /// A question is over. Those that have not answered are asked again.
    pub(crate) fn answered(&mut self, now_ms: u64, id: u64, nodes: &[&str]) -> Option<OpenAsk> {
        let open = self.asks.remove(&id)?;
        for node in open.generations.keys() {
            let Some(peer) = self.peers.get_mut(node) else { continue };
            if open.only.is_some() {
                peer.is_asked = false;
            }
            if !nodes.contains(&&**node) {
                open.wants.iter().for_each(|want| peer.wants.add(want.clone()));
                peer.retry_ms = now_ms + RETRY_MS;
            }
        }
        Some(open)
    }

    /// The process that has answered a question, and its generation at that time.
    pub(crate) fn answerer(
        &mut self,
        now_ms: u64,
        open: &OpenAsk,
        node: &str,
    ) -> Option<(PeerId, u32)> {
        let peer = self.peer(now_ms, node)?;
        (peer.heard_ms, peer.there_ms) = (Some(now_ms), now_ms);
        Some((peer.id, open.generations.get(node).copied().unwrap_or(peer.generation)))
    }

    /// A list waits until all others have said who is there.
    pub(crate) fn wait(&mut self, now_ms: u64, channel: ChannelName, ticket: Ticket<bool>) {
        self.waiting.push(Waiting { channel, due_ms: now_ms + READY_MS, ticket });
    }

    /// Those that have waited long enough, or wait for one of these channels.
    pub(crate) fn take_waiting(&mut self, now_ms: u64, ready: &[ChannelName]) -> Vec<Waiting> {
        let is_over = |it: &mut Waiting| now_ms >= it.due_ms || ready.contains(&it.channel);
        self.waiting.extract_if(.., is_over).collect()
    }

    /// True if a list waits for others.
    pub(crate) fn is_awaited(&self) -> bool {
        !self.waiting.is_empty()
    }
}
