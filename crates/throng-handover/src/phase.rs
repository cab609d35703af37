//! The order of messages, and who serves when. No I/O and no clock: both sides feed in what they
//! receive, and ask what they may do.
//!
//! ```text
//! predecessor                         successor
//!             <──────────── Hello ──  starts
//! accepts it  ── Welcome ──────────>  loads its settings, prepares
//!             <──────────── Ready ──
//! copies logs ── Ahead ────────────>  checks them
//!             <───────── HasAhead ──
//! freezes     ── state ────────────>  checks it
//!             <─────────── HasAll ──
//! gives up    ── Commit ───────────>  thaws, serves
//!             <─────────── Serves ──
//! ```
//!
//! Until it gives up, the predecessor takes everything back if anything goes wrong: the successor
//! refuses or ends, a message is out of order, a deadline passes. After that, nothing can go back;
//! the successor's last message only tells whether it lives.

use crate::message::{Kind, Message};

/// How far a handover has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Starting,
    Preparing,
    /// The successor takes what comes ahead.
    Ready,
    /// The successor waits for the state.
    Level,
    Moving,
    /// The successor has the state, and waits for the last word.
    Whole,
    /// The successor serves. There is no way back.
    Committed,
    /// The handover is over, and the predecessor goes on.
    Failed,
}

/// A message that does not belong to the phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a message came out of order")]
pub struct OutOfOrder;

/// The side that serves at first.
#[derive(Debug, Clone)]
pub struct Predecessor(Phase);

impl Default for Predecessor {
    fn default() -> Predecessor {
        Predecessor(Phase::Starting)
    }
}

impl Predecessor {
    /// The phase of this side.
    pub fn phase(&self) -> Phase {
        self.0
    }

    /// True if this process may act on its connections.
    pub fn serves(&self) -> bool {
        self.0 <= Phase::Level || self.0 == Phase::Failed
    }

    /// A message of the successor came. After an error the handover has failed.
    pub fn received(&mut self, kind: Kind) -> Result<(), OutOfOrder> {
        self.0 = match (self.0, kind) {
            (Phase::Starting, Kind::Hello) => Phase::Preparing,
            (Phase::Preparing, Kind::Ready) => Phase::Ready,
            (Phase::Ready, Kind::HasAhead) => Phase::Level,
            (Phase::Moving, Kind::HasAll) => Phase::Whole,
            (Phase::Committed, _) => return Ok(()),
            _ => {
                self.fail();
                return Err(OutOfOrder);
            }
        };
        Ok(())
    }

    /// Freezes the state, if the successor waits for it. This process serves no more.
    pub fn freeze(&mut self) -> bool {
        let may = self.0 == Phase::Level;
        if may {
            self.0 = Phase::Moving;
        }
        may
    }

    /// Gives up, if the successor has everything. Send [`Message::Commit`] after this. If no byte
    /// of it has left, call [`Predecessor::take_back`].
    pub fn give_up(&mut self) -> Option<Message> {
        (self.0 == Phase::Whole).then(|| {
            self.0 = Phase::Committed;
            Message::Commit
        })
    }

    /// The last word has not left: nobody can have heard it. The handover has failed.
    pub fn take_back(&mut self) {
        debug_assert_eq!(self.0, Phase::Committed, "only the last word can be taken back");
        self.0 = Phase::Failed;
    }

    /// The successor has gone or refused, or time is up. Returns whether this process goes on
    /// serving: false once it has given up.
    pub fn fail(&mut self) -> bool {
        if self.0 == Phase::Committed {
            return false;
        }
        self.0 = Phase::Failed;
        true
    }
}

/// The side that takes over.
#[derive(Debug, Clone)]
pub struct Successor(Phase);

impl Default for Successor {
    fn default() -> Successor {
        Successor(Phase::Starting)
    }
}

impl Successor {
    /// The phase of this side.
    pub fn phase(&self) -> Phase {
        self.0
    }

    /// True if this process may act on the connections.
    pub fn serves(&self) -> bool {
        self.0 == Phase::Committed
    }

    /// A message of the predecessor came. After an error this process has to end.
    pub fn received(&mut self, kind: Kind) -> Result<(), OutOfOrder> {
        self.0 = match (self.0, kind) {
            (Phase::Starting, Kind::Welcome) => Phase::Preparing,
            (Phase::Ready, Kind::Ahead) => Phase::Ready,
            (Phase::Level | Phase::Moving, Kind::State) => Phase::Moving,
            (Phase::Whole, Kind::Commit) => Phase::Committed,
            (Phase::Committed, _) => return Ok(()),
            _ => {
                self.0 = Phase::Failed;
                return Err(OutOfOrder);
            }
        };
        Ok(())
    }

    /// Its settings are loaded: send [`Message::Ready`].
    pub fn is_ready(&mut self) -> Result<Message, OutOfOrder> {
        self.step(Phase::Preparing, Phase::Ready, Message::Ready)
    }

    /// It has all that came ahead: send [`Message::HasAhead`].
    pub fn has_ahead(&mut self) -> Result<Message, OutOfOrder> {
        self.step(Phase::Ready, Phase::Level, Message::HasAhead)
    }

    /// It has all of the state, and has checked it: send [`Message::HasAll`].
    pub fn has_all(&mut self) -> Result<Message, OutOfOrder> {
        self.step(Phase::Moving, Phase::Whole, Message::HasAll)
    }

    fn step(&mut self, from: Phase, to: Phase, message: Message) -> Result<Message, OutOfOrder> {
        if self.0 != from {
            self.0 = Phase::Failed;
            return Err(OutOfOrder);
        }
        self.0 = to;
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone, Copy)]
    enum Step {
        PredecessorActs,
        SuccessorActs,
        PredecessorReceives,
        SuccessorReceives,
        PredecessorTimesOut,
        PredecessorDies,
        SuccessorDies,
    }

    /// Both sides and what is on its way between them. A side that is `None` has died.
    struct World {
        predecessor: Option<Predecessor>,
        successor: Option<Successor>,
        to_predecessor: VecDeque<Kind>,
        to_successor: VecDeque<Kind>,
        has_said_hello: bool,
        has_sent_ahead: bool,
        has_got_ahead: bool,
        has_committed: bool,
    }

    impl World {
        fn new() -> World {
            World {
                predecessor: Some(Predecessor::default()),
                successor: Some(Successor::default()),
                to_predecessor: VecDeque::new(),
                to_successor: VecDeque::new(),
                has_said_hello: false,
                has_sent_ahead: false,
                has_got_ahead: false,
                has_committed: false,
            }
        }

        fn step(&mut self, step: Step) {
            match step {
                Step::PredecessorActs => self.predecessor_acts(),
                Step::SuccessorActs => self.successor_acts(),
                Step::PredecessorReceives => {
                    let Some(predecessor) = &mut self.predecessor else { return };
                    match self.to_predecessor.pop_front() {
                        Some(kind) => {
                            let before = predecessor.phase();
                            let in_order = predecessor.received(kind).is_ok();
                            if in_order && before == Phase::Starting {
                                self.to_successor.push_back(Kind::Welcome);
                            }
                        }
                        None if self.successor.is_none() => {
                            predecessor.fail();
                        }
                        None => {}
                    }
                }
                Step::SuccessorReceives => {
                    let is_alone = self.is_alone();
                    let Some(successor) = &mut self.successor else { return };
                    match self.to_successor.pop_front() {
                        Some(kind) => {
                            let in_order = successor.received(kind).is_ok();
                            self.has_got_ahead |= kind == Kind::Ahead;
                            self.successor.take_if(|_| !in_order);
                        }
                        // It ends with its predecessor, unless it serves.
                        None if is_alone && !successor.serves() => self.successor = None,
                        None => {}
                    }
                }
                Step::PredecessorTimesOut => {
                    if let Some(predecessor) = &mut self.predecessor {
                        predecessor.fail();
                    }
                }
                Step::PredecessorDies => self.predecessor = None,
                Step::SuccessorDies => self.successor = None,
            }
        }

        /// True if the predecessor has closed its end: it has died or gone on alone.
        fn is_alone(&self) -> bool {
            self.predecessor.as_ref().is_none_or(|it| it.phase() == Phase::Failed)
        }

        fn predecessor_acts(&mut self) {
            let Some(predecessor) = &mut self.predecessor else { return };
            if predecessor.phase() == Phase::Ready && !self.has_sent_ahead {
                self.has_sent_ahead = true;
                self.to_successor.push_back(Kind::Ahead);
            } else if predecessor.freeze() {
                self.to_successor.push_back(Kind::State);
            } else if predecessor.give_up().is_some() {
                if self.successor.is_none() {
                    return predecessor.take_back();
                }
                self.has_committed = true;
                self.to_successor.push_back(Kind::Commit);
            }
        }

        fn successor_acts(&mut self) {
            let Some(successor) = &mut self.successor else { return };
            let kind = match successor.phase() {
                Phase::Starting if !self.has_said_hello => {
                    self.has_said_hello = true;
                    Kind::Hello
                }
                Phase::Preparing => successor.is_ready().expect("it prepares").kind(),
                Phase::Ready if self.has_got_ahead => {
                    successor.has_ahead().expect("it is ready").kind()
                }
                Phase::Moving => successor.has_all().expect("it moves").kind(),
                _ => return,
            };
            self.to_predecessor.push_back(kind);
        }

        fn check(&self) {
            let old = self.predecessor.as_ref().is_some_and(Predecessor::serves);
            let new = self.successor.as_ref().is_some_and(Successor::serves);
            assert!(!(old && new), "both serve");
            assert!(!(old && self.has_committed), "the predecessor serves after the last word");
            assert!(!new || self.has_committed, "the successor serves before the last word");
        }

        /// Lets both sides do what they can until nothing is left to happen.
        fn finish(&mut self) {
            for _ in 0..16 {
                self.step(Step::SuccessorReceives);
                self.step(Step::PredecessorReceives);
                self.step(Step::SuccessorActs);
                self.step(Step::PredecessorActs);
                self.check();
            }
        }
    }

    const ORDER: [Step; 14] = [
        Step::SuccessorActs,
        Step::PredecessorReceives,
        Step::SuccessorReceives,
        Step::SuccessorActs,
        Step::PredecessorReceives,
        Step::PredecessorActs,
        Step::SuccessorReceives,
        Step::SuccessorActs,
        Step::PredecessorReceives,
        Step::PredecessorActs,
        Step::SuccessorReceives,
        Step::SuccessorActs,
        Step::PredecessorReceives,
        Step::PredecessorActs,
    ];

    #[test]
    fn without_faults_the_successor_serves() {
        let mut world = World::new();
        world.finish();
        assert!(world.successor.is_some_and(|it| it.serves()));
        assert!(world.predecessor.is_some_and(|it| !it.serves()));
    }

    #[test]
    fn the_survivor_continues_at_every_step_if_it_may() {
        for at in 0..=ORDER.len() {
            let dies = |death| {
                let mut world = World::new();
                ORDER[..at].iter().for_each(|&step| world.step(step));
                world.step(death);
                world.finish();
                world
            };
            let world = dies(Step::SuccessorDies);
            let goes_on = world.predecessor.as_ref().is_some_and(Predecessor::serves);
            assert_eq!(goes_on, !world.has_committed, "the successor dies before step {at}");
            let world = dies(Step::PredecessorDies);
            let takes_over = world.successor.as_ref().is_some_and(Successor::serves);
            assert_eq!(takes_over, world.has_committed, "the predecessor dies before step {at}");
            assert_eq!(world.successor.is_some(), takes_over, "one that cannot take over ends");
        }
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => Just(Step::PredecessorActs),
            8 => Just(Step::SuccessorActs),
            8 => Just(Step::PredecessorReceives),
            8 => Just(Step::SuccessorReceives),
            1 => Just(Step::PredecessorTimesOut),
            1 => Just(Step::PredecessorDies),
            1 => Just(Step::SuccessorDies),
        ]
    }

    proptest! {
        #[test]
        fn at_no_moment_do_both_serve(steps in prop::collection::vec(any_step(), 0..60)) {
            let mut world = World::new();
            for step in steps {
                world.step(step);
                world.check();
            }
            world.finish();
            let has_died = world.predecessor.is_none() || world.successor.is_none();
            let serves = world.predecessor.as_ref().is_some_and(Predecessor::serves)
                || world.successor.as_ref().is_some_and(Successor::serves);
            prop_assert!(serves || has_died, "both live, and none serves");
        }

        #[test]
        fn no_message_makes_a_side_serve_out_of_order(
            kinds in prop::collection::vec(prop::sample::select(Kind::ALL.to_vec()), 0..12),
        ) {
            let (mut predecessor, mut successor) = (Predecessor::default(), Successor::default());
            for kind in kinds {
                let _ = predecessor.received(kind);
                let _ = successor.received(kind);
                prop_assert!(predecessor.serves(), "it has not frozen anything");
                prop_assert!(!successor.serves(), "it has not thawed anything");
            }
        }
    }
}
