//! Runs random steps.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::json;
use throng_core::{ConnectionName, Kind, Later, Mark, MarkerKey, Mover, Ticket};

use super::World;
use super::seat::{Batch, TICK_MS};
use crate::client::plan::{Plan, Transport};
use crate::client::{Client, Leave};
use crate::model::Volatile;
use crate::pipe::{FakeSocket, Pipe};
use crate::topics::{BOUNDED, SQUARE};
use crate::{Check, ensure};

impl World {
    pub(super) fn step(&mut self) -> Check {
        // While the server drains, clients still connect and are refused.
        let has_capacity =
            self.clients.len() < self.kind.max_clients || self.stopped_accepting_ms.is_some();
        let arrivals = if has_capacity { 16 } else { 0 };
        let leaving = if self.kind.clients_stay { 0 } else { 2 };
        let answers = if self.terms.lateness.is_possible() { 14 } else { 0 };
        let stirs = if self.kind.stirs > 0 { 2 } else { 0 };
        let memory = if self.memory.is_scarce { 2 } else { 0 };
        let asking = if self.kind.asks_to_leave && self.drain.is_none() { 1 } else { 0 };
        let changes = if self.model.changing().is_empty() { 0 } else { 12 };
        let weights = [
            arrivals, 14, 16, 26, 4, 8, 2, 8, 3, leaving, 4, 2, 1, stirs, 5, answers, 1, memory,
            asking, 4, 1, changes,
        ];
        match self.random.weighted(&weights) {
            0 => self.connect(),
            1 => self.send_some(),
            2 => self.read_some(),
            3 => self.some_turn(),
            4 => {
                let at = self.random.below(self.seats.len());
                self.notes.trace(format!("work {at}"));
                self.work(at)
            }
            5 => self.publish(1),
            6 => {
                let count = self.random.between(2, 15);
                self.publish(count)
            }
            7 => self.talk(),
            8 => self.change_pace(),
            9 => self.leave_one(),
            10 => {
                let ticks = if self.drain.is_some() || self.random.percent(85) {
                    self.random.between(1, 10)
                } else {
                    self.random.between(10, 120)
                };
                self.pass(ticks as u64 * TICK_MS)
            }
            11 => {
                self.notes.trace("control".into());
                self.control_turn();
                Ok(())
            }
            13 => self.stir(),
            15 => {
                let decided = self.policy.answers().answer_some(&mut self.random);
                let fetched = self.recorder.fetches().answers().answer_some(&mut self.random);
                self.notes.trace(format!("{decided} decisions, {fetched} fetches"));
                if fetched > 0 {
                    self.notes.saw("fetch: answered later");
                }
                Ok(())
            }
            14 => {
                self.notes.trace("rival".into());
                self.toggle_rival();
                Ok(())
            }
            16 => self.freeze(),
            17 => self.change_memory(),
            18 => self.ask_to_leave(),
            19 => self.publish_volatile(),
            20 => self.move_marker(),
            21 => self.change(),
            _ if self.drain.is_none() && self.random.percent(40) => self.rest(),
            _ if self.drain.is_none() && self.random.percent(10) => self.pass(3_700_000),
            _ => Ok(()),
        }
    }

    pub(super) fn connect(&mut self) -> Check {
        let plan = self.plan();
        self.connect_as(plan)
    }

    /// A client that asks for what `plan` says.
    pub(super) fn connect_as(&mut self, plan: Plan) -> Check {
        let number = self.clients.len();
        let (capacity, low_water) = match self.random.below(10) {
            0..=5 => (1 << 16, 1),
            6..=7 => (self.random.between(1, 300), 1),
            _ => {
                let capacity = self.random.between(300, 3000);
                (capacity, capacity / 3)
            }
        };
        let worker = self.random.below(self.seats.len());
        let visits_control = self.random.percent(8);
        self.notes.trace(format!(
            "{number} connects to {worker}, {capacity}: {:?} {:?} {:?}",
            plan.transport, plan.targets, plan.start
        ));
        let pipe = Pipe::new(number, &self.stamp, capacity, low_water);
        let pipe = Rc::new(RefCell::new(pipe));
        let is_tls = self.random.percent(30);
        if let Some(tls) = self.tls.as_mut().filter(|_| is_tls) {
            self.notes.trace(format!("{number} speaks TLS"));
            pipe.borrow_mut().client_begins_tls(tls.client());
        }
        let client = Client::new(number, Rc::clone(&pipe), plan, visits_control, self.view());
        self.clients.push(client);
        self.clients[number].answers_pings = self.random.percent(90);
        self.clients[number].acknowledges = self.random.percent(85);
        if self.random.percent(70) {
            self.clients[number].send(usize::MAX);
            // Over TLS the request comes after the handshake.
            self.clients[number].is_prompt = pipe.borrow().tls.is_none();
        }
        if self.seats[worker].worker.is_ended() {
            pipe.borrow_mut().handoff_failed = true;
            drop(FakeSocket(pipe));
        } else {
            self.seats[worker].backlog.push_back(FakeSocket(pipe));
        }
        Ok(())
    }

    /// A random client that is fit.
    fn some(&mut self, is_fit: impl Fn(&Client) -> bool) -> Option<usize> {
        let fit: Vec<usize> = self
            .clients
            .iter()
            .filter(|client| is_fit(client))
            .map(|client| client.number)
            .collect();
        (!fit.is_empty()).then(|| self.random.pick(&fit))
    }

    fn send_some(&mut self) -> Check {
        for _ in 0..self.random.between(1, 3) {
            let goes_on = |client: &Client| client.has_unsent() && !client.is_halting;
            let Some(number) = self.some(goes_on) else { break };
            let count = match self.random.below(10) {
                0..=5 => usize::MAX,
                6..=7 => self.random.between(60, 2500),
                _ => self.random.between(1, 60),
            };
            self.notes.trace(format!("{number} sends {count}"));
            self.clients[number].send(count);
        }
        Ok(())
    }

    fn read_some(&mut self) -> Check {
        let most = if self.kind.is_crowd { 30 } else { 4 };
        for _ in 0..self.random.between(1, most) {
            let can_read = |client: &Client| {
                let pipe = client.pipe.borrow();
                client.is_reading
                    && (pipe.has_unread_outbound() || pipe.is_ended() && client.is_here())
            };
            let Some(number) = self.some(can_read) else { break };
            let most =
                if self.random.percent(60) { usize::MAX } else { self.random.between(1, 100) };
            let count = self.read(number, most)?;
            self.notes.trace(format!("{number} reads {count}"));
        }
        Ok(())
    }

    pub(super) fn some_turn(&mut self) -> Check {
        let at = self.random.below(self.seats.len());
        let batch = if self.random.percent(40) {
            Batch::ALL
        } else {
            Batch { events: self.random.below(5), sockets: self.random.below(3) }
        };
        self.notes.trace(format!("turn {at}, {} events", batch.events));
        self.turn(at, batch)?;
        // Connections seldom wait for the control plane, and not for long.
        if self.seats[at].worker.is_retrying() && self.random.percent(70) {
            return self.freeze();
        }
        Ok(())
    }

    fn publish(&mut self, count: usize) -> Check {
        for _ in 0..count {
            let topic = if self.kind.is_crowd && self.random.percent(80) {
                SQUARE
            } else if self.random.percent(15) {
                BOUNDED
            } else {
                self.random.below(self.model.lists)
            };
            self.publish_on(topic);
        }
        self.absorb()
    }

    pub(super) fn publish_on(&mut self, topic: usize) {
        let mut publication = self.publication(topic);
        let receipt = self.receipts.request();
        publication.receipt = receipt.as_ref().map(|(receipt, _)| Arc::clone(receipt));
        let excludes = publication.excluded.is_some();
        self.notes.trace(format!("publish on {:?}", publication.channel));
        if publication.excluded.is_some() {
            self.notes.saw("publish: not to its publisher");
        }
        self.stamp.touch(None);
        // A refusal is in the record.
        let mut issue = || Ticket::new(drop);
        let answer = self.engine.publish(self.now_ms(), publication, Later::new(&mut issue));
        let Some(Ok(published)) = answer.now() else { return };
        if let Some(receipt) = receipt {
            self.receipts.published(receipt, topic, excludes, published);
        }
    }

    fn publish_volatile(&mut self) -> Check {
        for _ in 0..self.random.between(1, 4) {
            let topic = if self.kind.is_crowd && self.random.percent(80) {
                SQUARE
            } else {
                self.random.below(self.model.lists)
            };
            let publication = self.volatile_publication(topic);
            self.notes.trace(format!("publish {:?} on {topic}", publication.body));
            self.stamp.touch(None);
            let posted = self.engine.publish_volatile(self.now_ms(), publication);
            ensure!(posted.is_ok(), "a memory refuses no volatile message");
            self.saw_in_fan_out("volatile: published in the middle of a fan-out");
        }
        self.absorb()
    }

    /// A device that may follow the inbox says that its user has read on, or the application does.
    fn move_marker(&mut self) -> Check {
        let topics = self.model.topics.iter().enumerate();
        let users: Vec<_> =
            topics.filter(|(_, it)| it.kind == Kind::User).map(|(at, _)| at).collect();
        if users.is_empty() {
            return Ok(());
        }
        let topic = self.random.pick(&users);
        let of = MarkerKey::inbox(self.model.topics[topic].channel_name().name());
        let inbox = of.log();
        let head = self.model.head(topic);
        let offset = self.random.between(0, head as usize + 1) as u64;
        let (id, may_go_back) = (self.model.id(topic, offset), self.random.percent(30));
        let id = id.parse().map_err(|error| format!("{id}: {error}"))?;
        let names: Vec<u64> = self.clients.iter().filter_map(|client| client.name()).collect();
        let is_known = !names.is_empty() && self.random.percent(70);
        let excluded = is_known.then(|| self.random.pick(&names));
        let mover = excluded.map(ConnectionName::numbered);
        let mover = mover.map(|connection| Mover { connection, is_follower: false });
        self.notes.trace(format!("read up to {id} of {topic}"));
        self.stamp.touch(None);
        let mut issue = || Ticket::new(drop);
        let (mark, later) = (Mark { id, may_go_back, mover }, Later::new(&mut issue));
        let marked = self.engine.read_marker(self.now_ms(), &of, Some(mark), later).now();
        let marker = marked.ok_or("a memory answers at once")?.map_err(|error| error.message)?;
        if marker.has_moved {
            let mut notice =
                json!({"type": "unread", "user": inbox.name(), "unread": marker.unread});
            if let Some(read) = marker.read {
                notice["read"] = read.to_string().into();
            }
            let (text, time_ms) = (notice.to_string(), self.now_ms());
            self.model.volatile.push(Volatile { topic, text, time_ms, head, excluded });
        }
        self.absorb()
    }

    fn talk(&mut self) -> Check {
        if let Some(number) = self.some(Client::may_poll)
            && self.random.percent(60)
        {
            self.notes.trace(format!("{number} polls again"));
            let mut random = self.random.clone();
            let (client, view) = self.client(number);
            client.poll_again(&mut random, view);
            self.random = random;
            return Ok(());
        }
        if let Some(number) = self.some(Client::may_acknowledge)
            && self.random.percent(60)
        {
            let most = self.random.between(1, 10) as u64;
            self.notes.trace(format!("{number} acknowledges {most}"));
            let (client, view) = self.client(number);
            client.acknowledge(most, view);
            return Ok(());
        }
        let Some(number) = self.some(Client::may_speak) else { return Ok(()) };
        let choice = self.random.below(100);
        self.notes.trace(format!("{number} speaks, {choice}"));
        let is_v1 = self.clients[number].plan.transport == Transport::V1;
        let may_be_refused = self.terms.lateness.is_possible() || self.terms.memory_varies;
        let is_unsure = may_be_refused && self.clients[number].awaits_subscription();
        // Some clients stop in the middle of a large message.
        let halts = self.random.percent(10);
        let body = if halts { self.large_body() } else { self.body() };
        let (key, topic) = (self.key(), self.random.below(self.model.lists));
        let is_echoed = self.random.percent(60);
        let may_end = !self.kind.clients_stay;
        let mut random = self.random.clone();
        let (client, view) = self.client(number);
        match choice {
            0..=2 if may_end => client.close_websocket(&mut random),
            3..=4 if may_end => client.violate(&mut random),
            5..=40 if is_v1 && !is_unsure => client.publish_v1(topic, body, key, is_echoed, view),
            _ if is_v1 => client.send_command(&mut random, view),
            // A client of several channels may not publish; it rarely tries.
            _ if client.plan.targets.len() < 2 || (choice < 8 && may_end) => {
                client.publish_plain(body, view);
            }
            _ => {}
        }
        self.random = random;
        if halts {
            self.halt(number);
        }
        Ok(())
    }

    /// The client sends all but the last bytes of its messages.
    fn halt(&mut self, number: usize) {
        let bytes = self.random.between(1, 60);
        let client = &mut self.clients[number];
        client.send_all_but(bytes);
        client.is_halting = true;
    }

    fn change_pace(&mut self) -> Check {
        let Some(number) = self.some(Client::is_here) else { return Ok(()) };
        let is_reading = !self.clients[number].is_reading;
        self.notes.trace(format!("{number} reads: {is_reading}"));
        self.clients[number].is_reading = is_reading;
        self.clients[number].is_halting = false;
        Ok(())
    }

    fn leave_one(&mut self) -> Check {
        if let Some(number) = self.some(Client::is_here) {
            self.leave(number);
        }
        Ok(())
    }

    pub(super) fn leave(&mut self, number: usize) {
        let how = self.random.pick(&[Leave::HalfClose, Leave::Vanish, Leave::Reset]);
        self.notes.trace(format!("{number} leaves: {how:?}"));
        self.notes.saw(match how {
            Leave::HalfClose => "leave: half-close",
            Leave::Vanish => "leave: vanish",
            Leave::Reset => "leave: reset",
        });
        self.saw_in_fan_out("leave: in the middle of a fan-out");
        let client = &mut self.clients[number];
        if client.pipe.borrow().has_unread_outbound() {
            self.notes.saw("leave: in the middle of a message");
        }
        if self.random.percent(50) {
            client.send(usize::MAX);
        }
        client.leave(how, &mut self.random);
    }

    /// Counts an event if a worker is fanning out.
    pub(super) fn saw_in_fan_out(&self, event: &'static str) {
        if self.seats.iter().any(|seat| seat.worker.is_fanning_out()) {
            self.notes.saw(event);
        }
    }

    /// Ticks all shards of the engine, so that the shard of a channel does not determine when it is
    /// forgotten.
    fn tick_engine(&self) {
        for _ in 0..64 {
            self.engine.tick(self.now_ms());
        }
    }

    /// Advances the time by `ms`, and gives each worker a turn.
    pub(super) fn pass(&mut self, ms: u64) -> Check {
        self.notes.trace(format!("{ms} ms pass"));
        self.stamp.set_now(self.now_ms() + ms);
        if ms > 0 {
            // A real worker holds a permit only for a short time.
            self.rival.release();
        }
        if self.terms.max_logs_bytes.is_some() {
            // Expire messages before the next publication, which may evict others.
            self.tick_engine();
        }
        for at in 0..self.seats.len() {
            self.turn(at, Batch { events: 2, sockets: 1 })?;
        }
        self.tick_engine();
        if self.engine.metrics().channels < self.model.topics.len() as u64 {
            self.notes.saw("engine: a channel is forgotten");
        }
        Ok(())
    }
}
