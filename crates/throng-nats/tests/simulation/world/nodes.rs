//! What nodes ask each other, and know of each other.

use std::collections::{BTreeMap, BTreeSet};

use throng_nats::journal::{Ask, JournalEvent, JournalReport, NodesAnswered, Standing};

use super::World;

/// What a node knows of the others, and how it stands itself.
#[derive(Default)]
pub(super) struct Known {
    others: BTreeMap<Box<str>, Vec<u8>>,
    own: Standing,
}

impl Known {
    pub(super) fn reported(&mut self, report: JournalReport) {
        match report {
            JournalReport::Heard { node, description } if !description.is_empty() => {
                self.others.insert(node, description);
            }
            JournalReport::Heard { node, .. } => drop(self.others.entry(node).or_default()),
            JournalReport::Gone { node, .. } => {
                assert!(self.others.remove(&node).is_some(), "{node} was never there");
            }
            JournalReport::Standing(standing) => self.own = standing,
            other => panic!("{other:?}"),
        }
    }

    /// All are there and well.
    pub(super) fn finish(&self, others: usize) {
        assert_eq!(self.others.len(), others);
        for (node, description) in &self.others {
            let (description, number) = (String::from_utf8_lossy(description), &node[4..5]);
            assert_eq!(description, format!("{{{number}}}"), "what {node} says of itself");
        }
        assert_eq!((self.own.behind, self.own.behind_ms), (0, 0));
    }
}

impl World {
    pub(super) fn ask(&mut self, node: usize) {
        self.next_token += 1;
        let (token, must_reach_all) = (self.next_token, self.random.percent(50));
        let others = self.nodes[node].others;
        self.nodes[node].asks.insert(token, others);
        let question = token.to_string().into();
        let wait_ms = 100 + self.random.below(2_000) as u64;
        let ask = Ask { token, question, wait_ms, must_reach_all, only: None };
        self.step(node, JournalEvent::Ask(ask));
    }

    /// Each node answers at most once, under the number of the question. Without an answer of one
    /// that was known, the answer is not complete.
    pub(super) fn asked(&mut self, node: usize, asked: NodesAnswered) {
        let NodesAnswered { token, answers, is_complete } = asked;
        let others = self.nodes[node].asks.remove(&token).expect("it was asked once");
        let mut from = BTreeSet::new();
        for answer in answers {
            let text = String::from_utf8(answer).expect("it is text");
            let (question, other) = text.split_once(' ').expect("it has two parts");
            assert_eq!(question, token.to_string(), "the answer to another question");
            let other: usize = other.parse().expect("it is a number");
            assert!(other != node && from.insert(other), "{other} has answered twice");
            assert!(self.nodes[other].heard.contains(&token));
        }
        if is_complete {
            let of = &self.nodes[node];
            assert!(of.is_connected, "nobody is asked without a connection");
            assert!(from.len() >= others, "a known node's answer is missing");
            self.tally.asked += 1;
        } else {
            self.tally.partly += 1;
        }
    }

    pub(super) fn question(&mut self, node: usize, reply: String, question: Vec<u8>) {
        if let Some(early) = &mut self.nodes[node].early {
            return early.push((reply, question));
        }
        let mut answer = question;
        let text = String::from_utf8(answer.clone()).expect("it is text");
        self.nodes[node].heard.insert(text.parse().expect("it is a number"));
        answer.extend_from_slice(format!(" {node}").as_bytes());
        self.step(node, JournalEvent::Answer { reply, answer });
    }
}
