//! All connections of a worker.
//!
//! # Invariants
//!
//! * A new connection gets a place as long as one head is unfinished: if none is free, the oldest
//!   unfinished head gives way. So heads that never end cannot keep out a client whose head comes
//!   at once.
//! * An id stays valid for the rest of the turn in which it was found, unless the connection is
//!   [taken](Connections::take) out to go on elsewhere: connections are added between turns, and
//!   [condemned](Connections::condemn) ones are freed there.
//! * A state that counts as parked is entered and left here only, so that the counters of parked
//!   connections are right.
//! * The counts agree with the connections in the table ([`Connections::check_invariants`]), and
//!   other threads see the counts of the last change.

use std::net::IpAddr;
use std::ops::{Index, IndexMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use throng_access::{Clients, CountedAddress};
use throng_core::slab::Slab;
use throng_core::{ConnectionName, NodeTag, Reader, WorkerId};
use throng_dialect::Encoding;

use super::acceptances::Acceptances;
use super::addresses::Addresses;
use super::behind::BehindList;
use super::buffers::BufferQuota;
use super::condemned::CondemnedList;
use super::flags::Flags;
use super::id::{ConnectionId, Generation, SideIndex, Token};
use super::pending::Pending;
use super::places::Places;
use super::side_table::SideTable;
use super::state::{Connection, Phase, State};
use super::unfinished_heads::UnfinishedHeads;
use crate::counters::Parked;
use crate::limits::Limits;
use crate::metrics::{Metrics, WorkerMetrics};

#[derive(Debug)]
pub(crate) struct Connections<S> {
    worker: WorkerId,
    node: NodeTag,
    /// Shows other threads how many places are taken.
    metrics: Metrics,
    table: Slab<Connection<S>>,
    /// State that only some of them have.
    side: SideTable,
    /// The addresses of their clients, where they are kept.
    addresses: Addresses,
    /// The generation of the newest connection.
    newest_generation: u32,
    acceptances: Acceptances,
    places: Places,
    /// Those whose sockets have not taken everything.
    behind: BehindList,
    /// Those that end with the turn.
    condemned: CondemnedList,
    /// The memory that all of them buffer.
    quota: BufferQuota,
    unfinished_heads: UnfinishedHeads,
    /// The index at which the timer scan goes on.
    scan_index: u32,
}

impl<S> Connections<S> {
    /// No connections. The first one has the generation after `generation`.
    pub(crate) fn new(
        node: NodeTag,
        worker: WorkerId,
        metrics: Metrics,
        limits: Limits,
        clients: Arc<Clients>,
        generation: u32,
    ) -> Connections<S> {
        let workers = metrics.workers().len().max(1);
        let quota = BufferQuota::new(limits.max_buffered_bytes / workers, limits.held_bytes_floor);
        let places = Places::new(metrics.worker(worker).capacity, limits);
        Connections {
            worker,
            node,
            metrics,
            table: Slab::default(),
            side: SideTable::new(Arc::clone(&clients)),
            addresses: Addresses::new(clients),
            newest_generation: generation,
            acceptances: Acceptances::default(),
            places,
            behind: BehindList::default(),
            condemned: CondemnedList::default(),
            quota,
            unfinished_heads: UnfinishedHeads::default(),
            scan_index: 0,
        }
    }

    /// The connection in a place that may have none.
    pub(crate) fn get(&self, id: ConnectionId) -> Option<&Connection<S>> {
        self.table.get(id.index())
    }

    /// The place of the token's connection, if it is still there.
    pub(crate) fn find(&self, token: Token) -> Option<ConnectionId> {
        let connection = self.get(token.id())?;
        (connection.generation == token.generation()).then_some(token.id())
    }

    /// The place of a connection by its public name, if it is still there.
    pub(crate) fn find_name(&self, name: ConnectionName) -> Option<ConnectionId> {
        let id = ConnectionId::new(name.index());
        let connection = self.get(id)?;
        (self.name_of(id, connection) == name).then_some(id)
    }

    pub(crate) fn token(&self, id: ConnectionId) -> Token {
        self[id].token(id)
    }

    pub(crate) fn name(&self, id: ConnectionId) -> ConnectionName {
        self.name_of(id, &self[id])
    }

    /// The public name of the connection in this place.
    pub(crate) fn name_of(&self, id: ConnectionId, connection: &Connection<S>) -> ConnectionName {
        let generation = connection.generation.number();
        ConnectionName::new(self.worker, generation, id.index()).on(self.node)
    }

    /// The connection in this place, as a reader of messages.
    pub(crate) fn reader_of(&self, id: ConnectionId, connection: &Connection<S>) -> Reader {
        let has_notices = connection.encoding().has_notices();
        Reader { name: self.name_of(id, connection), has_notices }
    }

    /// Number of connections, closing ones included.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All connections have indices below this.
    pub(crate) fn extent(&self) -> u32 {
        self.table.extent()
    }

    /// The next place of the timer scan, which passes all places again and again. Not every place
    /// has a connection.
    pub(crate) fn next_scanned(&mut self) -> ConnectionId {
        if self.scan_index >= self.extent() {
            self.scan_index = 0;
        }
        self.scan_index += 1;
        ConnectionId::new(self.scan_index - 1)
    }

    /// Adds a connection that awaits its head until the tick `due`. It is `now_ms`, in milliseconds
    /// since 1970. Its address is kept if it counts.
    pub(crate) fn insert(
        &mut self,
        socket: S,
        flags: Flags,
        due: u32,
        now_ms: u64,
        client: Option<CountedAddress>,
    ) -> ConnectionId {
        // Places are reused: only the generation tells an event of the last owner from one of this
        // connection.
        let generation = Generation::after(self.newest_generation);
        self.newest_generation = generation.number();
        self.acceptances.record(generation.number(), now_ms);
        let index = self.table.insert(Connection {
            socket,
            generation,
            due,
            side: SideIndex::NONE,
            newest_subscription: None,
            io: None,
            phase: Phase::default(),
            flags,
        });
        self.publish_load();
        let id = ConnectionId::new(index);
        self.addresses.put(id, client);
        id
    }

    /// The clients that connections count for.
    pub(crate) fn clients(&self) -> &Clients {
        self.addresses.clients()
    }

    /// The address of the connection's client, if it is kept.
    pub(crate) fn address(&self, id: ConnectionId) -> Option<IpAddr> {
        self.addresses.get(id)
    }

    /// Keeps another address of the connection's client, or none. The one before counts no longer.
    pub(crate) fn set_address(&mut self, id: ConnectionId, client: Option<CountedAddress>) {
        self.addresses.put(id, client);
    }

    /// Parks a connection that subscribes: sets state, encoding and flags, and counts it by its
    /// kind.
    pub(crate) fn park(
        &mut self,
        id: ConnectionId,
        state: State,
        encoding: Encoding,
        flags: Flags,
    ) {
        let connection = &mut self[id];
        debug_assert!(connection.state() == State::Head, "{:?} is parked", connection.state());
        (connection.phase, connection.flags) = (Phase::new(state, encoding), flags);
        let parked = connection.parked();
        debug_assert!(parked.is_some(), "{state:?} is no parked state");
        if let Some(parked) = parked {
            self.load().counters.park(parked);
        }
        self.publish_load();
    }

    /// Ends a long-poll: the connection awaits its next request until the tick `due`.
    pub(crate) fn await_request(&mut self, id: ConnectionId, due: u32) {
        let connection = &mut self.table[id.index()];
        debug_assert!(connection.state() == State::LongPolling);
        self.side.end_session(connection);
        let parked = connection.parked();
        connection.set_state(State::Head);
        connection.due = due;
        // The canary has no place of its own to keep.
        connection.flags.set(Flags::SERVED, !connection.has(Flags::CANARY));
        self.count_unparked(parked);
    }

    fn count_unparked(&self, parked: Option<Parked>) {
        if let Some(parked) = parked {
            self.load().counters.unpark(parked);
        }
    }

    /// The number of parked connections with places: all but the canary's.
    pub(crate) fn parked(&self) -> u64 {
        let kinds = Parked::ALL.into_iter().filter(|&parked| parked != Parked::Canary);
        kinds.map(|parked| self.load().counters.parked(parked)).sum()
    }

    /// Takes a connection out, with all that counts for it. Its address still counts.
    pub(crate) fn take(&mut self, id: ConnectionId) -> (Connection<S>, Option<CountedAddress>) {
        let mut connection = self.table.remove(id.index()).expect("the id is valid in this turn");
        debug_assert!(connection.state() != State::Condemned, "it ends with the turn");
        self.side.free(&mut connection);
        self.quota.release(id, connection.buffered());
        self.behind.catch_up(id);
        self.count_unparked(connection.parked());
        match connection.state() {
            State::Closing => self.places.end_closing(),
            _ => self.places.give_up(connection.flags),
        }
        self.publish_load();
        (connection, self.addresses.take(id))
    }

    /// Puts a connection back that was [taken](Connections::take) in this turn, and is not closing.
    pub(crate) fn put_back(
        &mut self,
        id: ConnectionId,
        mut connection: Connection<S>,
        client: Option<CountedAddress>,
    ) {
        debug_assert!(connection.state() != State::Closing && !connection.side.is_some());
        if let Some(io) = &mut connection.io {
            io.buffered = Default::default();
        }
        self.places.take(connection.flags);
        let is_put = self.table.insert_at(id.index(), connection).is_ok();
        debug_assert!(is_put, "no connection is added in a turn");
        self.addresses.put(id, client);
        self.update_buffered(id);
        self.publish_load();
    }

    /// Adds a connection of another worker, whose index it keeps. What it may do ends at the tick
    /// `expires`, if there is one; its address is kept if there is one. Returns it if the index is
    /// taken.
    pub(crate) fn put_at(
        &mut self,
        id: ConnectionId,
        connection: Connection<S>,
        expires: Option<u32>,
        client: Option<CountedAddress>,
    ) -> Result<(), Connection<S>> {
        debug_assert!(!connection.side.is_some(), "an entry of another worker's side table");
        let (state, flags, parked) = (connection.state(), connection.flags, connection.parked());
        // Before anything is counted, so that a place that is taken leaves no trace.
        self.table.insert_at(id.index(), connection)?;
        self.addresses.put(id, client);
        // One that closes has given up its place already, in the worker that it comes from.
        if state == State::Closing {
            self.places.resume_closing();
        } else {
            self.places.take(flags);
        }
        if let Some(parked) = parked {
            self.load().counters.park(parked);
        }
        if let Some(expires) = expires {
            self.limit(id, expires);
        }
        self.update_buffered(id);
        self.publish_load();
        Ok(())
    }

    /// When the connection was accepted, to about a second, in milliseconds since 1970; `None` if
    /// that is not known any more.
    pub(crate) fn accepted_ms(&self, connection: &Connection<S>) -> Option<u64> {
        self.acceptances.at_ms(connection.generation.number(), self.newest_generation)
    }

    /// When which generations were given, as far as that is known: number and time in milliseconds
    /// since 1970, the oldest first.
    pub(crate) fn acceptances(&self) -> impl ExactSizeIterator<Item = (u32, u64)> {
        self.acceptances.marks()
    }

    /// Goes on with what another worker knows, as [`Connections::acceptances`] gives it.
    pub(crate) fn resume_acceptances(&mut self, marks: impl Iterator<Item = (u32, u64)>) {
        self.acceptances.resume(marks);
    }

    /// The number of the newest connection's generation.
    pub(crate) fn newest_generation(&self) -> u32 {
        self.newest_generation
    }

    /// Goes on with the generations of another worker, and remembers the unfinished heads that it
    /// had, the oldest first.
    pub(crate) fn resume_generations(&mut self, newest: u32) {
        self.newest_generation = newest;
        let mut heads: Vec<_> = self
            .table
            .iter()
            .filter(|(_, connection)| connection.is_head_unfinished())
            .map(|(index, connection)| (connection.generation.number(), ConnectionId::new(index)))
            .collect();
        heads.sort_unstable_by_key(|&(number, _)| std::cmp::Reverse(newest.wrapping_sub(number)));
        heads.into_iter().for_each(|(_, id)| self.watch_head(id));
    }

    /// Gives a connection that subscribes its place, unless it has one from an earlier request.
    pub(crate) fn admit_subscriber(&mut self, id: ConnectionId, is_in_reserve: bool) {
        let connection = &mut self[id];
        if !connection.has(Flags::SERVED) {
            connection.flags.set(Flags::SERVED, true);
            connection.flags.set(Flags::IN_RESERVE, is_in_reserve);
            let flags = connection.flags;
            self.places.take(flags);
        }
        self.publish_load();
    }

    /// Sets the state `Closing` and gives up the place. Returns whether there is room for the
    /// connection to linger until its peer has closed, too.
    pub(crate) fn begin_closing(&mut self, id: ConnectionId) -> bool {
        let connection = &mut self.table[id.index()];
        debug_assert!(!connection.is_ending());
        self.behind.catch_up(id);
        self.side.free(connection);
        // A lingering connection is not served any more, and its client may come back at once.
        drop(self.addresses.take(id));
        let parked = connection.parked();
        connection.set_state(State::Closing);
        let flags = connection.flags;
        self.count_unparked(parked);
        let lingers = self.places.begin_closing(flags);
        self.publish_load();
        lingers
    }

    /// True if the connection belongs to the server's own canary.
    pub(crate) fn is_canary(&self, id: ConnectionId) -> bool {
        self[id].has(Flags::CANARY)
    }

    /// The number of connections that subscribe or have subscribed, without those that close.
    pub(crate) fn admitted(&self) -> u32 {
        self.places.admitted()
    }

    /// True if there is no place left for a subscriber.
    pub(crate) fn is_full(&self) -> bool {
        self.room() == 0
    }

    /// The number of places left for new connections, if each that has not subscribed yet will.
    pub(crate) fn room_for_new(&self) -> u32 {
        self.room().saturating_sub(self.heads())
    }

    /// The number of connections that have not subscribed, without those that close.
    fn heads(&self) -> u32 {
        (self.table.len() as u32).saturating_sub(self.places.admitted() + self.places.closing())
    }

    /// The number of places left for subscribers, without those kept for handoffs.
    pub(crate) fn room(&self) -> u32 {
        self.places.room(self.load().places_kept())
    }

    /// True if the connection may subscribe: it has a place, or can have one. Only a connection
    /// that was handed off may take a place that is kept.
    pub(crate) fn has_place(&self, id: ConnectionId) -> bool {
        let connection = &self[id];
        if connection.has(Flags::SERVED) {
            return true;
        }
        let is_handoff = connection.has(Flags::HANDED_OFF);
        if is_handoff { self.places.room(0) > 0 } else { !self.is_full() }
    }

    /// True if the reserve has a place for another viewer.
    pub(crate) fn has_viewer_place(&self) -> bool {
        self.places.has_viewer_place()
    }

    /// True if there is a place for a new connection, even if only in the reserve.
    pub(crate) fn has_room_for_head(&self) -> bool {
        self.places.has_room_for_head(self.table.len() as u32)
    }

    fn load(&self) -> &WorkerMetrics {
        self.metrics.worker(self.worker)
    }

    /// Shows other threads how many connections there are, and how many places are taken.
    pub(crate) fn publish_load(&self) {
        let open = self.table.len() as u32 - self.places.closing();
        // The canary is no client.
        let canary = self.load().counters.parked(Parked::Canary) as u32;
        self.load().connections.store(open.saturating_sub(canary), Ordering::Relaxed);
        self.load().taken.store(self.places.taken(), Ordering::Relaxed);
        self.load().heads.store(self.heads(), Ordering::Relaxed);
        self.publish_behind();
    }

    /// Counts the bytes that the connection buffers now.
    pub(crate) fn update_buffered(&mut self, id: ConnectionId) {
        let connection = &mut self.table[id.index()];
        let pending_bytes = self.side.pending(connection).map_or(0, Pending::bytes);
        // An idle one buffers nothing.
        let Some(io) = &mut connection.io else { return };
        let bytes = io.buffered_bytes() + pending_bytes;
        self.quota.set(id, &mut io.buffered, bytes);
    }

    /// Counts the memory that the connection takes below the worker.
    pub(crate) fn set_held(&mut self, id: ConnectionId, bytes: usize) {
        let connection = &mut self.table[id.index()];
        if bytes == 0 && connection.io.as_ref().is_none_or(|io| io.held_bytes == 0) {
            return;
        }
        connection.io_mut().held_bytes = bytes;
        self.trim_buffers(id);
    }

    /// Frees the buffers that the connection no longer needs, and counts the others.
    pub(crate) fn trim_buffers(&mut self, id: ConnectionId) {
        let connection = &mut self.table[id.index()];
        let is_waiting = self.side.pending(connection).is_some();
        match &connection.io {
            Some(io) if io.is_idle() && !is_waiting => {
                let buffered = connection.buffered();
                connection.io = None;
                self.quota.release(id, buffered);
            }
            Some(_) => self.update_buffered(id),
            None => {}
        }
    }

    /// Limits the bytes that all connections of the worker buffer.
    pub(crate) fn set_max_buffered_bytes(&mut self, max_bytes: usize) {
        self.quota.set_max_bytes(max_bytes);
    }

    /// The connection to evict next; `None` unless all together buffer too much.
    pub(crate) fn to_evict(&self) -> Option<ConnectionId> {
        self.quota.excess()
    }

    /// Lets the connection give way to new ones while its head is unfinished.
    pub(crate) fn watch_head(&mut self, id: ConnectionId) {
        let connection = &self[id];
        if !connection.is_head_unfinished() {
            return;
        }
        let token = connection.token(id);
        let mut heads = std::mem::take(&mut self.unfinished_heads);
        heads.push(token, |token| self.is_head_unfinished(token));
        self.unfinished_heads = heads;
    }

    /// Takes the connection whose head has been unfinished for longest, if there is one.
    pub(crate) fn take_oldest_unfinished_head(&mut self) -> Option<ConnectionId> {
        let mut heads = std::mem::take(&mut self.unfinished_heads);
        let oldest = heads.pop(|token| self.is_head_unfinished(token));
        self.unfinished_heads = heads;
        oldest.map(Token::id)
    }

    fn is_head_unfinished(&self, token: Token) -> bool {
        self.find(token).is_some_and(|id| self[id].is_head_unfinished())
    }

    /// Panics unless the counts fit the connections in the table. For tests: it visits all of them.
    pub(crate) fn check_invariants(&self) {
        assert!(self.condemned.is_at_rest(), "a connection is condemned and not freed");
        let all = || (0..self.extent()).filter_map(|index| self.table.get(index));
        let is_closing = |connection: &&Connection<S>| connection.state() == State::Closing;
        let open = all().filter(|connection| !is_closing(connection));
        let closing = all().filter(is_closing).count() as u32;
        self.places.check_invariants(open.map(|connection| connection.flags), closing);
        let buffered: usize = all().map(|connection| connection.buffered().bytes()).sum();
        assert_eq!(self.quota.bytes(), buffered, "buffered bytes");
        let taken = self.load().taken.load(Ordering::Relaxed);
        assert_eq!(taken, self.places.taken(), "published load");
        let heads = self.load().heads.load(Ordering::Relaxed);
        assert_eq!(heads, self.heads(), "published heads");
        for kind in Parked::ALL {
            let counted = self.load().counters.parked(kind);
            let count = all().filter(|connection| connection.parked() == Some(kind)).count();
            assert_eq!(counted, count as u64, "parked connections: {kind:?}");
        }
        let place = |(index, connection)| (ConnectionId::new(index), connection);
        self.addresses.check_invariants(self.table.iter().map(place));
        self.side.check_invariants(self.table.iter().map(place));
        for (id, connection) in self.table.iter().map(place) {
            // Blocked ones are behind, and whoever is behind is blocked or waits for its turn.
            let waits = connection.has(Flags::BLOCKED)
                || connection.has(Flags::DELIVERY_DEFERRED)
                || connection.holds_for_acks();
            let is_blocked = connection.has(Flags::BLOCKED) && connection.state() != State::Closing;
            let is_behind = self.behind.since(id).is_some();
            assert!(!is_blocked || is_behind, "{id:?} is blocked");
            assert!(!is_behind || (waits && connection.state() != State::Closing), "{id:?}");
            let holds = connection.holds_for_acks() && connection.is_parked();
            assert!(!holds || is_behind, "{id:?} holds messages");
        }
    }
}

impl<S> Index<ConnectionId> for Connections<S> {
    type Output = Connection<S>;

    /// A connection that was found in this turn.
    #[track_caller]
    fn index(&self, id: ConnectionId) -> &Connection<S> {
        &self.table[id.index()]
    }
}

impl<S> IndexMut<ConnectionId> for Connections<S> {
    #[track_caller]
    fn index_mut(&mut self, id: ConnectionId) -> &mut Connection<S> {
        &mut self.table[id.index()]
    }
}

mod behind;
mod condemned;
mod side;
#[cfg(test)]
mod tests;
