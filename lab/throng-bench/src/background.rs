//! Plain requests during some phases of a load, and a reader of the status page during the last
//! one.

use std::time::Duration;

use throng_units::format::count;

use crate::file::{RequestsOf, Run};
use crate::requests::{Requests, Response};
use crate::status::Reader;

/// The last phase has begun up to this long before it is noticed, and nothing may last longer.
const NOTICED: Duration = Duration::from_secs(1);

const TIME_MIN: Duration = Duration::from_millis(500);

/// Requests of a phase that is not the last end with it, and so have no time of their own.
const TIME_MAX: Duration = Duration::from_secs(24 * 3_600);

/// Requests and a reader beside a load.
pub(crate) struct Background {
    url: String,
    phases: Vec<String>,
    requests: Option<RequestsOf>,
    has_status: bool,
    /// The time from when the last phase is noticed.
    last_time: Duration,
    running: Option<Requests>,
    done: Vec<Requests>,
    status: Option<Reader>,
}

/// The end of it.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    pub(crate) figures: Vec<(&'static str, Option<f64>)>,
    /// Reasons of a failure, one sentence each.
    pub(crate) faults: Vec<String>,
    /// Reasons to doubt the figures, one sentence each.
    pub(crate) warnings: Vec<String>,
}

impl Background {
    /// The requests and the reader of a run, from the first phase on. The last phase takes `time`.
    pub(crate) fn of(run: &Run, url: &str, time: Duration) -> Background {
        let mut background = Background {
            url: url.to_owned(),
            phases: run.phases(),
            requests: run.requests.clone(),
            has_status: run.status,
            last_time: time.saturating_sub(NOTICED).max(TIME_MIN),
            running: None,
            done: Vec::new(),
            status: None,
        };
        background.on_phase(1);
        background
    }

    /// Begins and ends requests. Is called once a second with the number of the phase, from 1.
    pub(crate) fn on_phase(&mut self, phase: usize) {
        let is_last = phase == self.phases.len();
        let name = phase.checked_sub(1).and_then(|index| self.phases.get(index));
        if let Some(requests) = &self.requests {
            let is_meant = name.is_some_and(|name| requests.during.contains(name));
            if is_meant && self.running.is_none() {
                let time = if is_last { self.last_time } else { TIME_MAX };
                let urls = requests.paths.iter().map(|path| format!("{}{path}", self.url));
                let (rate, is_kept) = (requests.rate, !requests.reconnect);
                self.running = Some(Requests::start(urls.collect(), rate, time, is_kept));
            } else if !is_meant {
                self.cut_short();
            }
        }
        if is_last && self.has_status && self.status.is_none() {
            self.status = Some(Reader::start(&self.url, self.last_time));
        }
    }

    fn cut_short(&mut self) {
        if let Some(running) = self.running.take() {
            running.cut_short();
            self.done.push(running);
        }
    }

    /// Ends everything: the rest of a schedule is skipped.
    pub(crate) fn end(mut self) -> Beside {
        self.cut_short();
        self.status.iter().for_each(Reader::cut_short);
        let mut beside = Beside::default();
        if self.requests.is_some() {
            let found = Requests::end(self.done);
            beside.figures.extend(figures(&found));
            if found.failed > 0 {
                beside.faults.push(format!("{} plain requests failed", count(found.failed)));
            } else if found.answered == 0 {
                beside.faults.push("no phase was long enough for plain requests".to_owned());
            }
        }
        match self.status.map(Reader::end) {
            Some(Some(updates)) => beside.figures.extend([
                ("status.updates", Some(updates.count as f64)),
                ("status.shown", updates.shown().map(|shown| shown as f64)),
            ]),
            Some(None) => beside.warnings.push("the server has no live status page".to_owned()),
            None => {}
        }
        beside
    }
}

fn figures(found: &Response) -> [(&'static str, Option<f64>); 4] {
    let measured = |value: f64| (found.answered > 0).then_some(value);
    [
        ("requests.answered", Some(found.answered as f64)),
        ("requests.rate", measured(found.rate)),
        ("requests.mean", measured(found.mean_ms)),
        ("requests.p99", measured(found.p99_ms)),
    ]
}
