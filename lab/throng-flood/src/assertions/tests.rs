//! Assertions: what can be written, what is refused, and what they say of a report.

use super::*;
use crate::report::{Cost, Distribution, MachineCost, PhaseReport, TlsTotals, Totals};

fn report() -> Report {
    let distribution = |p99: f64| Some(Distribution { count: 10, p99, max: 90.0, ..empty() });
    let storm = |seconds| PhaseReport {
        name: "storm".into(),
        recovered_s: seconds,
        ..PhaseReport::default()
    };
    let mut total = Totals {
        lost: 0,
        duplicated: 2,
        connect_rate: Some(12_345.0),
        connect: distribution(1500.0),
        delivery: distribution(49.0),
        last: distribution(80.0),
        server: Some(Cost {
            cpu_s: 5.0,
            cpu_us_per_delivery: Some(12.5),
            pss_bytes: Some(3 << 20),
            bytes_per_client: Some(127.5),
        }),
        ..Totals::default()
    };
    total.failures.insert("refused".into(), 3);
    total.failures.insert("reset".into(), 4);
    let phases = vec![storm(Some(12.0)), storm(Some(29.0)), PhaseReport::default()];
    Report { seconds: 10.0, total, phases, ..Report::default() }
}

fn empty() -> Distribution {
    Distribution::default()
}

fn check(text: &str) -> AssertionResult {
    text.parse::<Assertion>().unwrap_or_else(|error| panic!("{error}")).evaluate(&report())
}

#[test]
fn says_what_was_found_in_the_unit_that_was_written() {
    for (text, found, holds) in [
        ("lost == 0", 0.0, true),
        ("duplicated==0", 2.0, false),
        ("duplicated != 0", 2.0, true),
        ("failures == 7", 7.0, true),
        ("p99 < 50ms", 49.0, true),
        ("p99 < 0.048s", 0.049, false),
        ("delivery.p99 <= 49ms", 49.0, true),
        ("last.p99 < 1s", 0.08, true),
        ("max > 0", 90.0, true),
        ("connect.p99 < 2s", 1.5, true),
        ("connect_rate >= 10k", 12_345.0, true),
        ("connect-rate >= 12346/s", 12_345.0, false),
        ("server.bytes_per_client <= 128", 127.5, true),
        ("server.bytes <= 2MiB", 3.0, false),
        ("server.cpu_per_delivery < 10us", 12.5, false),
        ("server.cores <= 0.5", 0.5, true),
        ("storm.recovered < 30s", 29.0, true),
        ("storm.recovered ≤ 0.4m", 29.0 / 60.0, false),
        ("server.bytes <= 4mb", 3.0, true),
        ("connect_rate >= 12,000", 12_345.0, true),
        ("p99 < 50 MS", 49.0, true),
        ("warnings == 0", 0.0, true),
    ] {
        let checked = check(text);
        assert_eq!((checked.found, checked.holds), (Some(found), holds), "{text}");
        assert_eq!(checked.text, text);
    }
}

#[test]
fn what_was_not_measured_does_not_hold() {
    for text in ["first.p99 < 1s", "publish_rate > 0", "lost_share <= 1", "kernel.bytes < 1GiB"] {
        let checked = check(text);
        assert_eq!((checked.found, checked.holds), (None, false), "{text}");
    }
    let mut unfinished = report();
    unfinished.phases[1].recovered_s = None;
    let assertion: Assertion = "storm.recovered < 30s".parse().unwrap();
    assert_eq!(assertion.evaluate(&unfinished).found, None);
}

#[test]
fn an_empty_distribution_was_not_measured() {
    let mut report = report();
    report.total.delivery = Some(empty());
    let assertion: Assertion = "p99 < 1ms".parse().unwrap();
    assert!(!assertion.evaluate(&report).holds);
}

#[test]
fn says_what_is_wrong() {
    for (text, expected) in [
        ("", "\"\" is not an assertion: a measurement, one of"),
        ("lost", "\"lost\" is not an assertion"),
        ("lost = 0", "\"lost = 0\" is not an assertion"),
        ("== 0", "\"== 0\" is not an assertion"),
        ("lost ==", "\"lost ==\" is not an assertion"),
        ("lots == 0", "there is no measurement \"lots\"; did you mean \"lost\"?"),
        (
            "conect.p99 < 1s",
            "there is no measurement \"conect.p99\"; did you mean \"connect.p99\"?",
        ),
        ("happiness > 3", "there is no measurement \"happiness\"; known are lost"),
        ("p99 < 50", "\"50\" is not a bound for p99, which is a time, like 50ms"),
        ("p99 < fast", "\"fast\" is not a bound for p99"),
        ("lost < 5ms", "\"5ms\" is not a bound for lost, which is a number"),
        ("server.bytes < 1s", "\"1s\" is not a bound for server.bytes, which is a number of"),
        ("lost == -1", "\"-1\" is not a bound"),
        ("p99 < infs", "\"infs\" is not a bound"),
    ] {
        let error = text.parse::<Assertion>().unwrap_err().to_string();
        assert!(error.starts_with(expected), "{text}: {error}");
    }
}

#[test]
fn every_name_is_known() {
    for name in metrics::names() {
        assert!(Metric::named(name).is_some(), "{name}");
    }
    let requirement = |text: &str| text.parse::<Assertion>().unwrap().requirement();
    assert_eq!(requirement("connect.p99 < 1s"), None);
    assert_eq!(requirement("p99.9 < 1s"), Some(Requirement::Publishing));
    assert_eq!(requirement("server.bytes < 1MiB"), Some(Requirement::Server));
}

#[test]
fn every_metric_is_measured_in_a_whole_report() {
    let distribution = || Some(Distribution { count: 1, ..empty() });
    let cost = Cost {
        cpu_us_per_delivery: Some(1.0),
        pss_bytes: Some(1),
        bytes_per_client: Some(1.0),
        ..Cost::default()
    };
    let total = Totals {
        active: 1,
        expected: 1,
        publish_rate: Some(1.0),
        publish_lateness: distribution(),
        publish_answer: distribution(),
        delivery_rate: Some(1.0),
        connect: distribution(),
        connect_rate: Some(1.0),
        delivery: distribution(),
        received: 1,
        reader_p50: distribution(),
        reader_p99: distribution(),
        reader_max: distribution(),
        behind: distribution(),
        first: distribution(),
        median: distribution(),
        p99: distribution(),
        p999: distribution(),
        last: distribution(),
        server: Some(cost.clone()),
        generator: cost,
        machine: Some(MachineCost { cpu_us_per_delivery: Some(1.0), ..MachineCost::default() }),
        kernel_bytes: Some(1),
        tls: Some(TlsTotals { handshake: distribution(), ..TlsTotals::default() }),
        ..Totals::default()
    };
    let storm = PhaseReport {
        name: "storm".into(),
        totals: total.clone(),
        recovered_s: Some(1.0),
        ..PhaseReport::default()
    };
    let report = Report { seconds: 1.0, total, phases: vec![storm], ..Report::default() };
    let report = serde_json::to_value(report).unwrap();
    for name in metrics::names() {
        assert!(Metric::named(name).unwrap().find(&report).is_some(), "{name}");
    }
}
