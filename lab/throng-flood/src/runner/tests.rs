//! The runner with fake clients and real publishers.

use std::cell::RefCell;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::*;
use crate::audit::Audit;
use crate::clients::{ClientCommand, PublishDeliveries};
use crate::counts::{ClientCounts, States};
use crate::failure::Failure;
use crate::plan::{Pattern, Phase, Publishing, Sources};
use crate::publish::tests::{CREATED, RUN, serve, target};
use crate::report::live::Moment;

const CLIENTS: u64 = 50;

/// Clients of one stream that receive everything at once, except for what a test takes away.
struct Fake {
    counters: Arc<StreamCounters>,
    inner: RefCell<Inner>,
}

#[derive(Default)]
struct Inner {
    counts: ClientCounts,
    active: u64,
    expected: u64,
    delivered: u32,
    fresh: Vec<PublishDeliveries>,
    /// How many clients miss the next message, and how many cannot connect.
    deaf: u64,
    failing: u64,
    /// Whether `send_updates` was called.
    was_updated: bool,
    log: Vec<String>,
}

impl Fake {
    fn new(deaf: u64, failing: u64) -> Fake {
        let inner = RefCell::new(Inner { deaf, failing, ..Inner::default() });
        Fake { counters: Arc::new(StreamCounters::new(1)), inner }
    }

    fn log(&self, what: String) {
        self.inner.borrow_mut().log.push(what);
    }
}

impl ClientSet for Fake {
    fn command(&self, command: ClientCommand) {
        match command {
            ClientCommand::Ramp { to, .. } => {
                let mut inner = self.inner.borrow_mut();
                let new = (to as u64).saturating_sub(inner.active);
                let failing = inner.failing.min(new);
                inner.active = to as u64 - failing;
                inner.counts.attempts += new;
                inner.counts.subscribed += new - failing;
                for _ in 0..failing {
                    inner.counts.fail(Failure::Refused);
                }
            }
            ClientCommand::Storm { in_flight } => {
                self.log(format!("storm {in_flight}"));
                let mut inner = self.inner.borrow_mut();
                let active = inner.active;
                inner.counts.attempts += active;
                inner.counts.subscribed += active;
            }
            ClientCommand::Churn { rate } => self.log(format!("churn {rate}")),
            ClientCommand::Slow { share, is_slow, .. } => {
                self.log(format!("slow {share} {is_slow}"));
            }
            other => panic!("{other:?}"),
        }
    }

    fn counts(&self) -> ClientCounts {
        let mut inner = self.inner.borrow_mut();
        let published = self.counters.last_published(0);
        while inner.delivered < published {
            inner.delivered += 1;
            let count = inner.active - std::mem::take(&mut inner.deaf);
            let mut latencies_us = Histogram::new(2).expect("two digits");
            latencies_us.record_n(500, count as u32).expect("recorded");
            inner.counts.received += count;
            inner.counts.delivery.record_n(500_000, count).expect("recorded");
            inner.expected += inner.active;
            let sequence = inner.delivered;
            inner.fresh.push(PublishDeliveries {
                stream: 0,
                sequence,
                intended_ns: 0,
                latencies_us,
            });
        }
        let mut counts = std::mem::take(&mut inner.counts);
        counts.states = States { active: inner.active, ..States::default() };
        counts
    }

    fn publishes(&self, _until_ns: u64) -> Vec<PublishDeliveries> {
        std::mem::take(&mut self.inner.borrow_mut().fresh)
    }

    fn audit(&self, _sent: Arc<[u64]>) -> Audit {
        let inner = self.inner.borrow();
        let expected = inner.expected;
        let lost = u64::from(expected > 0) * 3 * u64::from(inner.log.contains(&"lossy".to_owned()));
        Audit { expected, received: expected - lost, lost, ..Audit::default() }
    }

    fn busiest(&self) -> f64 {
        0.1
    }

    fn send_updates(&self) {
        self.inner.borrow_mut().was_updated = true;
    }
}

#[derive(Default)]
struct TestObserver {
    samples: Vec<(String, u64)>,
    /// Whether to stop the run once something is published.
    stop_with: Option<Arc<StreamCounters>>,
}

impl Observer for TestObserver {
    fn on_sample(&mut self, on_sample: &Moment<'_>) {
        self.samples.push((on_sample.phase.to_owned(), on_sample.received));
    }

    fn should_stop(&mut self) -> bool {
        self.stop_with.as_ref().is_some_and(|counters| counters.last_published(0) > 0)
    }
}

fn publishing(rate: f64) -> Option<Publishing> {
    Some(Publishing { rate, count: None, size: 64, to: Pattern::One })
}

fn ramp() -> Phase {
    Phase::Ramp { to: CLIENTS as usize, rate: None, in_flight: 7 }
}

fn hold(ms: u64) -> Phase {
    Phase::Hold { time: Duration::from_millis(ms), publish: publishing(100.0) }
}

fn run(fake: &Fake, phases: Vec<Phase>, observer: &mut TestObserver) -> Report {
    let (port, _requests) = serve(|_| (CREATED, false));
    let plan = Plan {
        name: "test".to_owned(),
        profile: crate::plan::Profile::Custom,
        target: target(port, 1, 1),
        sources: Sources { addresses: Vec::new(), ports: None },
        network: crate::plan::Network::Sockets,
        threads: None,
        keep: false,
        seed: 1,
        phases,
        assertions: Vec::new(),
        server_pids: Vec::new(),
        deadline: Duration::from_secs(20),
        options: crate::plan::Options::default(),
    };
    let counters = Arc::clone(&fake.counters);
    run_phases(&plan, fake, RUN, counters, None, observer).expect("publishers")
}

/// Warnings, except for those that a busy machine may cause.
fn warnings(report: &Report) -> Vec<&str> {
    let of_pace = ["publisher was late", "the publish rate was to be"];
    let warnings = report.warnings.iter().map(String::as_str);
    warnings.filter(|warning| !of_pace.iter().any(|part| warning.contains(part))).collect()
}

#[test]
fn a_plan_becomes_a_report() {
    let fake = Fake::new(0, 0);
    let mut observer = TestObserver::default();
    let report = run(&fake, vec![ramp(), hold(1300), hold(200)], &mut observer);
    assert_eq!((report.cut_short.as_deref(), warnings(&report)), (None, Vec::new()));
    let total = &report.total;
    assert_eq!((total.active, total.attempts, total.subscribed), (50, 50, 50));
    assert_eq!((total.published, total.expected, total.received), (150, 7500, 7500));
    let last = total.last.as_ref().expect("publishes");
    assert_eq!((last.count, total.delivery.as_ref().expect("some").count), (150, 7500));
    assert!((0.49..0.52).contains(&last.p50), "{last:?}");
    assert!((99.0..101.0).contains(&total.publish_rate_intended.expect("a rate")));
    assert!(total.publish_rate.is_some());
    let names: Vec<&str> = report.phases.iter().map(|phase| phase.name.as_str()).collect();
    assert_eq!(names, ["ramp to 50", "hold 1.30 s", "hold 0.20 s"]);
    let expected: Vec<u64> = report.phases.iter().map(|phase| phase.totals.expected).collect();
    assert_eq!(expected, [0, 6500, 1000]);
    assert!(report.phases.windows(2).all(|pair| pair[0].to_s <= pair[1].from_s));
    assert_eq!(report.series.iter().map(|sample| sample.received).sum::<u64>(), 7500);
    assert!(!observer.samples.is_empty() && fake.inner.borrow().was_updated);
}

#[test]
fn lost_messages_are_waited_for_once() {
    let fake = Fake::new(3, 2);
    fake.log("lossy".to_owned());
    let report = run(&fake, vec![ramp(), hold(100), hold(100)], &mut TestObserver::default());
    let lost: Vec<u64> = report.phases.iter().map(|phase| phase.totals.lost).collect();
    assert_eq!(lost, [0, 3, 0]);
    assert_eq!((report.total.lost, report.total.received), (3, report.total.expected - 3));
    assert_eq!(report.total.failures.get("refused"), Some(&2));
}

#[test]
fn storm_churn_and_slow_reach_the_clients() {
    let fake = Fake::new(0, 0);
    let time = Duration::from_millis(50);
    let phases = vec![
        ramp(),
        Phase::Storm { timeout: Duration::from_secs(5), publish: publishing(100.0) },
        Phase::Churn { time, rate: 10.0, publish: None },
        Phase::Slow { share: 0.25, speed: 0, time, publish: None },
    ];
    let report = run(&fake, phases, &mut TestObserver::default());
    let log = fake.inner.borrow().log.clone();
    assert_eq!(log, ["storm 7", "churn 10", "churn 0", "slow 0.25 true", "slow 0.25 false"]);
    assert!(report.phases[1].recovered_s.is_some());
    assert_eq!(report.phases[3].name, "slow 25.0 % of clients, 0.050 s");
    // The storm ended before the rest of its schedule.
    assert!(report.total.published < 100, "{}", report.total.published);
    assert_eq!(warnings(&report), Vec::<&str>::new());
}

#[test]
fn a_stopped_run_has_a_report() {
    let fake = Fake::new(0, 0);
    let stop_with = Some(Arc::clone(&fake.counters));
    let mut observer = TestObserver { stop_with, ..TestObserver::default() };
    let report = run(&fake, vec![ramp(), hold(60_000), hold(1)], &mut observer);
    assert!(report.seconds < 60.0);
    assert_eq!(report.cut_short.as_deref(), Some("stopped in the phase \"hold 60 s\""));
    assert_eq!(report.phases.len(), 2);
    let total = &report.total;
    assert!(total.published > 0 && total.expected == total.received, "{total:?}");
    assert_eq!(total.publish_failures.len(), 0);
    assert!(total.publish_rate.is_some());
}
