//! Chance, and what is under way between processes.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use crate::members::exchange::{MemberAsk, MemberChange, MemberLink, MemberPart, MemberWant};

pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }

    pub(super) fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// What an engine has sent.
#[derive(Debug)]
pub(super) enum Sent {
    Told(u64, Vec<MemberChange>),
    Asked(MemberAsk),
}

#[derive(Clone, Default)]
pub(super) struct Out(pub(super) Arc<Mutex<Vec<Sent>>>);

impl MemberLink for Out {
    fn tell(&self, first: u64, changes: &[MemberChange]) {
        self.0.lock().unwrap().push(Sent::Told(first, changes.to_vec()));
    }

    fn ask(&self, ask: MemberAsk) {
        self.0.lock().unwrap().push(Sent::Asked(ask));
    }
}

#[derive(Clone)]
pub(super) enum Packet {
    Here,
    Leaves,
    Told(u64, Vec<MemberChange>),
    Asked(u64, Vec<MemberWant>),
    Answered(u64, Vec<MemberPart>),
}

pub(super) struct Underway {
    pub(super) due_ms: u64,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) packet: Packet,
}

pub(super) struct OpenAsk {
    pub(super) due_ms: u64,
    pub(super) missing: BTreeSet<String>,
    pub(super) answers: Vec<(Box<str>, Vec<MemberPart>)>,
}
