//! Another process becomes a node, or does not.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::mem;

use throng_core::ChannelId;
use throng_nats::api::StreamSettings;
use throng_nats::api::table::TableKind;
use throng_nats::journal::{HeldState, JournalEvent, JournalSettings, Resume, StreamJournal};

use super::naming::KnownNames;
use super::nodes::Known;
use super::states::States;
use super::table::JournalTable;
use super::{Node, World, channel, table};

/// Steps in which the other process begins, in which the node comes to rest, and after that.
const STEPS: usize = 60;
const REST_STEPS: usize = 4_000;

impl World {
    /// Another process connects beside a node, which is held and comes to rest. The process becomes
    /// the node, or the node goes on.
    pub(super) fn succeed(&mut self, node: usize) {
        let at = self.nodes.len();
        self.next_token += 1;
        let (nonce, name) =
            (format!("next{}x{}", self.next_token, self.seed), format!("node{node}x{}", self.seed));
        self.nodes.push(Node::of_process(&self.stream, nonce, Some(name)));
        self.connect(at);
        // Seconds pass until all is answered: no replica lags for so long.
        self.broker.lag = 0;
        (0..STEPS).for_each(|_| self.step_beside(node));
        self.step(node, JournalEvent::Hold);
        assert!(self.nodes[node].held.is_some(), "it is held at once");
        for _ in 0..REST_STEPS {
            if self.nodes[node].is_at_rest() && self.nodes[at].is_open {
                break;
            }
            self.step_beside(node);
        }
        if self.random.percent(20) {
            self.expire();
        }
        // What lies in the other process is lost with it.
        let mut other = self.nodes.pop().expect("it was pushed");
        let can_succeed = self.nodes[node].can_be_replaced_by(&other);
        if !can_succeed || self.random.percent(20) {
            self.tally.gone_on += 1;
            self.nodes[node].held = None;
            return self.step(node, JournalEvent::GoOn);
        }
        self.tally.replaced += 1;
        self.disconnect_silently(node);
        let of = &mut self.nodes[node];
        mem::swap(of, &mut other);
        let questions = of.take_over(&mut other);
        let (_, held) = other.held.take().expect("it is held");
        let known = other.followed.iter();
        let channels = known.filter_map(|(index, position)| {
            Some((ChannelId(*index as u32), channel(*index), (*position)?.sequence))
        });
        let joining = other.followed.iter().filter(|(_, position)| position.is_none());
        let joining = joining.map(|(index, _)| (ChannelId(*index as u32), channel(*index)));
        let joining = JournalEvent::Follow(joining.collect());
        let epoch = other.epoch.expect("it was open");
        let resume = Resume { epoch, held, channels: channels.collect() };
        if self.random.percent(10) {
            // The connection is lost in between.
            self.disconnect(node);
        }
        self.step(node, JournalEvent::Resume(Box::new(resume)));
        self.step(node, joining);
        for (reply, question) in questions {
            self.question(node, reply, question);
        }
        self.step(node, JournalEvent::Describe(format!("{{{node}}}").into()));
    }

    /// Something happens beside a node that is about to be replaced, which publishes nothing more.
    fn step_beside(&mut self, node: usize) {
        let any = self.random.below(self.nodes.len());
        match self.random.below(100) {
            0..38 => self.carry_up(any),
            38..76 => self.carry_down(any),
            76..90 => {
                self.now_ms += 20;
                self.step(any, JournalEvent::Tick);
            }
            90..95 if any != node && self.nodes[any].early.is_none() => self.publish(any),
            95 if any != node && self.nodes[any].early.is_none() => self.ask(any),
            96 => self.disconnect(any),
            97 => self.connect(any),
            98 => self.lose_live(any),
            _ => {}
        }
    }

    /// The process has ended, and tells nobody.
    fn disconnect_silently(&mut self, node: usize) {
        let of = &mut self.nodes[node];
        of.is_connected = false;
        of.to_broker.clear();
        of.answers.clear();
        of.live.clear();
        of.subscriptions.clear();
    }
}

impl Node {
    /// A node that is not connected.
    pub(super) fn new(stream: &StreamSettings, seed: u64, index: usize) -> Node {
        Node::of_process(stream, format!("node{index}x{seed}"), None)
    }

    /// A process, which may be to be the node of this name.
    pub(super) fn of_process(
        stream: &StreamSettings,
        nonce: String,
        successor_of: Option<String>,
    ) -> Node {
        Node {
            early: successor_of.is_some().then(Vec::new),
            journal: StreamJournal::new(JournalSettings {
                stream: stream.clone(),
                nonce,
                successor_of,
                publish_ms: 5_000,
                tables: vec![
                    table("changes", TableKind::Changes),
                    table("states", TableKind::States),
                ],
            }),
            is_connected: false,
            to_broker: VecDeque::new(),
            answers: VecDeque::new(),
            live: VecDeque::new(),
            subscriptions: BTreeMap::new(),
            epoch: None,
            era: 0,
            is_open: false,
            is_stalled: false,
            has_lost: false,
            followed: BTreeMap::new(),
            publications: BTreeMap::new(),
            reads: BTreeMap::new(),
            state_reads: BTreeMap::new(),
            logs: BTreeMap::new(),
            facts: HashMap::new(),
            asks: BTreeMap::new(),
            names: KnownNames::default(),
            table: JournalTable::default(),
            states: States::default(),
            heard: BTreeSet::new(),
            others: 0,
            standing: Known::default(),
            order: HashMap::new(),
            held: None,
        }
    }

    pub(super) fn is_held(&mut self, held: HeldState) {
        self.held = Some((self.epoch, held));
    }

    fn is_at_rest(&self) -> bool {
        self.publications.is_empty()
            && self.reads.is_empty()
            && self.state_reads.is_empty()
            && self.logs.is_empty()
            && self.asks.is_empty()
            && self.table.is_at_rest()
            && self.states.is_at_rest()
    }

    fn can_be_replaced_by(&self, other: &Node) -> bool {
        let are_open =
            self.is_open && other.is_open && other.table.is_known && other.states.is_known;
        // What it knew means nothing in another epoch.
        let is_same = self.held.as_ref().is_some_and(|(epoch, _)| *epoch == self.epoch);
        self.is_at_rest()
            && are_open
            && is_same
            && self.epoch == other.epoch
            && self.era == other.era
    }

    /// Goes on with what followers and publishers of the process before have. Returns the questions
    /// that wait.
    fn take_over(&mut self, before: &mut Node) -> Vec<(String, Vec<u8>)> {
        self.followed.clone_from(&before.followed);
        self.order = mem::take(&mut before.order);
        self.heard = mem::take(&mut before.heard);
        self.early.take().unwrap_or_default()
    }
}
