//! The trace of a run, and its coverage of interesting events.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

/// The number of trace lines in a report.
const TAIL: usize = 80;

/// Trace and coverage of one run, shared by all parts of a world.
#[derive(Debug, Default)]
pub struct Notes {
    trace: RefCell<Trace>,
    coverage: RefCell<Coverage>,
}

#[derive(Debug)]
struct Trace {
    tail: VecDeque<String>,
    hash: u64,
    lines: u64,
}

impl Default for Trace {
    fn default() -> Trace {
        Trace { tail: VecDeque::new(), hash: 0xcbf2_9ce4_8422_2325, lines: 0 }
    }
}

impl Notes {
    /// Adds a line to the trace.
    pub(crate) fn trace(&self, line: String) {
        let mut trace = self.trace.borrow_mut();
        for byte in line.bytes().chain([b'\n']) {
            // FNV-1a.
            trace.hash = (trace.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        trace.lines += 1;
        if trace.tail.len() == TAIL {
            trace.tail.pop_front();
        }
        let number = trace.lines;
        trace.tail.push_back(format!("{number:6} {line}"));
    }

    /// Counts an interesting event.
    pub(crate) fn saw(&self, event: &'static str) {
        self.coverage.borrow_mut().add(event, 1);
    }

    /// Counts an interesting event that happened `times` times.
    pub(crate) fn saw_times(&self, event: &'static str, times: u64) {
        if times > 0 {
            self.coverage.borrow_mut().add(event, times);
        }
    }

    /// A hash of the trace.
    pub(crate) fn hash(&self) -> u64 {
        self.trace.borrow().hash
    }

    /// The last lines of the trace.
    pub(crate) fn tail(&self) -> String {
        let trace = self.trace.borrow();
        trace.tail.iter().map(|line| format!("{line}\n")).collect()
    }

    /// The coverage so far.
    pub(crate) fn coverage(&self) -> Coverage {
        self.coverage.borrow().clone()
    }
}

/// The count of each interesting event.
#[derive(Debug, Clone, Default)]
pub struct Coverage(BTreeMap<&'static str, u64>);

impl Coverage {
    fn add(&mut self, event: &'static str, times: u64) {
        *self.0.entry(event).or_default() += times;
    }

    /// Adds the counts of another run.
    pub fn merge(&mut self, other: &Coverage) {
        other.0.iter().for_each(|(event, times)| self.add(event, *times));
    }

    /// The count of an event.
    pub fn times(&self, event: &str) -> u64 {
        self.0.get(event).copied().unwrap_or_default()
    }

    /// One line for each event.
    pub fn report(&self) -> String {
        self.0.iter().map(|(event, times)| format!("{times:>10}  {event}\n")).collect()
    }
}
