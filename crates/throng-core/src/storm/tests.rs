//! Tests of moments: by themselves, and in storms of a model with one queue.

use std::collections::VecDeque;
use std::time::Instant;

use proptest::prelude::*;

use super::*;

const WAIT: Duration = Duration::from_millis(700);
const NO_QUEUE: Duration = Duration::ZERO;
const START_MS: u64 = 1_000_000;

fn admission(rate: u64) -> Admission {
    Admission::new(AdmissionSettings { wait: WAIT, rate: Some(rate) })
}

#[test]
fn moments_are_as_far_apart_as_the_rate_says() {
    let admission = admission(200);
    let moments: Vec<u64> = (0..5).map(|_| admission.tell(START_MS, NO_QUEUE)).collect();
    assert_eq!(moments, [250, 255, 260, 265, 270]);
    assert_eq!(admission.ahead_ms(START_MS), 275);
    let later_ms = START_MS + 10_000;
    assert_eq!((admission.ahead_ms(later_ms), admission.told()), (0, 5));
    assert_eq!(admission.tell(later_ms, WAIT), 250 + 700, "those in the queue go before");
}

#[test]
fn no_moment_is_further_ahead_than_a_minute() {
    let admission = admission(1);
    let moments: Vec<u64> = (0..1000).map(|_| admission.tell(START_MS, NO_QUEUE)).collect();
    assert!(moments.iter().all(|&ms| ms < AHEAD_MS_MAX + 1000), "{moments:?}");
    let (first, second) = moments[60..].iter().partition::<Vec<u64>, _>(|&&ms| ms < 45_000);
    assert!(first.len().abs_diff(second.len()) < 10, "beyond it they are spread evenly");
    let steps_ms = (START_MS..START_MS + 120_000).step_by(100);
    let let_in = steps_ms.filter(|&now_ms| admission.take_due(now_ms)).count();
    assert_eq!(let_in, 60, "no more than one a second");
}

#[test]
fn a_retry_time_admits_one_client_until_it_is_forgotten() {
    let admission = admission(1000);
    assert!(!admission.take_due(START_MS));
    assert_eq!(admission.tell(START_MS, NO_QUEUE), 250);
    assert_eq!(admission.tell(START_MS, Duration::from_secs(2)), 2250);
    assert!(admission.take_due(START_MS + 250) && !admission.take_due(START_MS + 251));
    assert!(!admission.take_due(START_MS + 2249));
    assert!(admission.take_due(START_MS + 2250 + LATE_MS));
    admission.tell(START_MS, NO_QUEUE);
    assert!(!admission.take_due(START_MS + 20_000), "it was not used in time");
}

#[test]
fn a_shared_queue_is_shown_while_it_is_long() {
    let admission = admission(1000);
    assert_eq!(admission.shared_queue_clears_in(), None);
    let mut queue = QueueWatch::default();
    let (at, rate) = (Instant::now(), Some(1000));
    queue.observe(WAIT, QueueLook { at, waited: 2 * WAIT, queued: 2000, accepted: 64, rate });
    admission.set_shared_queue(&queue);
    assert_eq!(admission.shared_queue_clears_in(), Some(Duration::from_secs(2)));
    queue.observe(WAIT, QueueLook { at, waited: 2 * WAIT, queued: 0, accepted: 64, rate });
    admission.set_shared_queue(&queue);
    assert!(admission.shared_queue_clears_in().is_some(), "the last ones are told, too");
    queue.emptied();
    admission.set_shared_queue(&queue);
    assert_eq!(admission.shared_queue_clears_in(), None);
}

#[test]
fn the_rate_is_measured_and_has_a_least() {
    let admission = Admission::new(AdmissionSettings { wait: WAIT, rate: None });
    assert_eq!(admission.rate(), RATE_MIN);
    admission.measure(START_MS, || 0);
    admission.measure(START_MS + SAMPLE_MS - 1, || unreachable!("too early"));
    admission.measure(START_MS + SAMPLE_MS, || 1500);
    assert_eq!(admission.rate(), 5400, "nine tenths of 6000 a second");
    admission.measure(START_MS + 2 * SAMPLE_MS, || 1500);
    assert_eq!(admission.rate(), 4050, "it falls slowly");
    for _ in 0..400 {
        admission.tell(START_MS, NO_QUEUE);
    }
    admission.measure(START_MS + 3 * SAMPLE_MS, || 4000);
    assert_eq!(admission.rate(), 8640, "it counts as less to tell");
}

/// Parameters of a simulated storm.
#[derive(Debug, Clone)]
struct Storm {
    /// Clients that come at once.
    clients: usize,
    /// Connections that the server serves in a second.
    capacity: u64,
    /// Strangers that come in a second, as a part of the capacity in percent.
    strangers_percent: u64,
    /// Clients that heed no moment, in percent: they come again after a tenth of a second.
    rude_percent: usize,
    /// True if clients are told whole seconds, and spread themselves over another one.
    in_seconds: bool,
    /// How long the server stands still when they have come.
    stood_ms: u64,
}

impl Default for Storm {
    fn default() -> Storm {
        Storm {
            clients: 8000,
            capacity: 6000,
            strangers_percent: 0,
            rude_percent: 0,
            in_seconds: false,
            stood_ms: 0,
        }
    }
}

/// A client of the model.
#[derive(Debug, Clone, Default)]
struct ModelClient {
    told: u32,
    admitted_ms: Option<u64>,
    is_rude: bool,
}

struct Outcome {
    clients: Vec<ModelClient>,
    /// Waits of those that were admitted, in milliseconds, in order.
    waits_ms: Vec<u64>,
    told: u64,
}

/// The length of a step of the model.
const STEP_MS: u64 = 10;
/// Connections between two looks at the queue.
const BATCH: usize = 64;
/// The costs of serving and of telling, in quarters of a connection.
const SERVE: i64 = 4;
const TELL: i64 = 3;

/// Runs a storm until all that came with it are in, for a time at most.
fn run(storm: &Storm, max_ms: u64) -> Outcome {
    let admission = Admission::new(AdmissionSettings { wait: WAIT, rate: None });
    let mut watch = QueueWatch::default();
    let rude = storm.clients * storm.rude_percent / 100;
    let is_rude = |number| number < rude;
    let client = |number| ModelClient { is_rude: is_rude(number), ..ModelClient::default() };
    let mut clients: Vec<_> = (0..storm.clients).map(client).collect();
    // In a mixed order: a step of a prime, which divides no number of clients that is used here.
    let mixed = (0..storm.clients).map(|nth| (START_MS, (nth * 7919) % storm.clients));
    let mut queue: VecDeque<(u64, usize)> = mixed.collect();
    let mut coming = std::collections::BTreeMap::<u64, Vec<usize>>::new();
    let (mut waits_ms, mut accepted, mut budget, mut in_batch) = (Vec::new(), 0, 0, BATCH);
    let (mut left, mut strangers) = (storm.clients, 0);
    admission.measure(START_MS, || 0);
    let (mut now_ms, beginning) = (START_MS + storm.stood_ms, Instant::now());
    while left > 0 && now_ms < START_MS + max_ms {
        now_ms += STEP_MS;
        strangers += storm.capacity * storm.strangers_percent * STEP_MS / 100;
        for _ in 0..strangers / 1000 {
            queue.push_back((now_ms, clients.len()));
            clients.push(ModelClient::default());
        }
        strangers %= 1000;
        let later = coming.split_off(&(now_ms + 1));
        for number in std::mem::replace(&mut coming, later).into_values().flatten() {
            queue.push_back((now_ms, number));
        }
        admission.measure(now_ms, || accepted);
        budget = (budget + (storm.capacity * STEP_MS) as i64 * SERVE / 1000).min(SERVE * 1000);
        while budget > 0 {
            let Some((came_ms, number)) = queue.pop_front() else {
                (in_batch, budget) = (0, 0);
                watch.emptied();
                break;
            };
            let waited = Duration::from_millis(now_ms - came_ms);
            if in_batch >= BATCH {
                in_batch = 0;
                let queued = queue.len() as u32;
                let at = beginning + Duration::from_millis(now_ms);
                let accepted = BATCH as u32;
                watch.observe(WAIT, QueueLook { at, waited, queued, accepted, rate: None });
            }
            (in_batch, accepted) = (in_batch + 1, accepted + 1);
            if admission.take_due(now_ms) || !watch.is_long() {
                budget -= SERVE;
                waits_ms.push(now_ms - came_ms);
                clients[number].admitted_ms = Some(now_ms);
                left -= usize::from(number < storm.clients);
                continue;
            }
            budget -= TELL;
            clients[number].told += 1;
            let ahead_ms = admission.tell(now_ms, watch.clears_in());
            let back_ms = match (clients[number].is_rude, storm.in_seconds) {
                (true, _) => 100,
                (false, false) => ahead_ms,
                (false, true) => ahead_ms.div_ceil(1000) * 1000 + (number as u64 * 617) % 1000,
            };
            coming.entry(now_ms + back_ms).or_default().push(number);
        }
    }
    waits_ms.sort_unstable();
    Outcome { clients, waits_ms, told: admission.told() }
}

#[test]
fn a_server_that_keeps_up_tells_nobody() {
    let storm = Storm { clients: 3000, capacity: 5000, strangers_percent: 50, ..Storm::default() };
    assert_eq!(run(&storm, 60_000).told, 0);
}

#[test]
fn what_has_come_while_a_fast_server_stood_still_is_served() {
    let storm = Storm { clients: 4000, capacity: 30_000, stood_ms: 1000, ..Storm::default() };
    assert_eq!(run(&storm, 60_000).told, 0);
}

#[test]
fn a_standstill_does_not_count_as_the_pace_of_the_server() {
    let storm = Storm { stood_ms: 2000, ..Storm::default() };
    let outcome = run(&storm, 60_000);
    assert!(outcome.told > 4000, "{} were told", outcome.told);
    let last_ms = outcome.clients.iter().filter_map(|client| client.admitted_ms).max();
    let took_ms = last_ms.expect("all are in") - START_MS;
    assert!(took_ms < 5000, "{took_ms} ms instead of 3333 without moments");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// All that are told come in at their moment, but for a few that are told a second one because
    /// strangers came, and all of them soon. Those that are admitted have waited for half as long
    /// again as allowed at most.
    #[test]
    fn who_has_been_told_a_moment_gets_in_when_it_comes(
        clients in 2_000_usize..30_000,
        capacity in 1_500_u64..12_000,
        strangers_percent in 0_u64..9,
        in_seconds in any::<bool>(),
    ) {
        let storm =
            Storm { clients, capacity, strangers_percent, in_seconds, ..Storm::default() };
        let outcome = run(&storm, 120_000);
        let of_storm = &outcome.clients[..clients];
        prop_assert!(of_storm.iter().all(|client| client.admitted_ms.is_some()));
        let told_most = of_storm.iter().map(|client| client.told).max().unwrap_or(0);
        prop_assert!(told_most <= 3, "somebody was told {told_most} times");
        let again = of_storm.iter().filter(|client| client.told > 1).count();
        prop_assert!(again <= clients / 20, "{again} of {clients} were told again");
        let p99_ms = outcome.waits_ms[outcome.waits_ms.len() * 99 / 100];
        let p99_ms_max = WAIT.as_millis() as u64 * 3 / 2 + 2 * STEP_MS;
        prop_assert!(p99_ms <= p99_ms_max, "they have waited for {p99_ms} ms");
        let last_ms = of_storm.iter().filter_map(|client| client.admitted_ms).max().unwrap_or(0);
        let served_ms = clients as u64 * 1000 / capacity;
        let most_ms = served_ms * 5 / 2 + 3_000;
        prop_assert!(last_ms - START_MS <= most_ms, "{} of {most_ms} ms", last_ms - START_MS);
    }

    /// Clients that heed no moment push nobody out: the others come in at theirs.
    #[test]
    fn those_who_come_early_push_nobody_out(
        clients in 5_000_usize..20_000,
        capacity in 3_000_u64..12_000,
        rude_percent in 1_usize..10,
    ) {
        let storm = Storm { clients, capacity, rude_percent, ..Storm::default() };
        let outcome = run(&storm, 120_000);
        prop_assert!(outcome.clients.iter().all(|client| client.admitted_ms.is_some()));
        let polite = outcome.clients.iter().filter(|client| !client.is_rude);
        let again = polite.filter(|client| client.told > 1).count();
        prop_assert!(again <= clients / 20, "{again} of {clients} were told again");
    }
}
