//! Accepted texts, rejected texts, and properties of every value.

use std::fmt::{Debug, Display};
use std::str::FromStr;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn rejects<T: FromStr<Err = Invalid> + Debug>(texts: &[&str]) {
    for text in texts {
        let read = text.parse::<T>();
        let error = read.expect_err(&format!("{text:?} is rejected")).0;
        assert!(error.starts_with(&format!("{text:?} ")), "{error}");
    }
}

#[test]
fn counts() {
    for (text, number) in [
        ("0", 0),
        ("7", 7),
        ("10_000", 10_000),
        ("10,000", 10_000),
        ("1,000,000", 1_000_000),
        ("300k", 300_000),
        ("300K", 300_000),
        ("300 k", 300_000),
        ("1M", 1_000_000),
        ("1m", 1_000_000),
        ("1.5M", 1_500_000),
        ("2G", 2_000_000_000),
        ("0.001k", 1),
    ] {
        assert_eq!(text.parse(), Ok(Count(number)), "{text}");
    }
    rejects::<Count>(&[
        "",
        "k",
        "1.5",
        "-1",
        "+1",
        "1e6",
        "0x10",
        "1.0005k ",
        "nan",
        "1,00",
        "1000,000",
        "1,0000",
        "000",
        "007",
        "1_",
        "_1",
        "1__0",
        "1_0,000",
        "1.",
        ".5",
        "1KiB",
        "1 2",
        "20000000000G",
    ]);
    for (number, short) in [(0, "0"), (999, "999"), (39_000, "39k"), (1_000_000, "1M")] {
        assert_eq!(Count(number).short(), short);
    }
}

#[test]
fn sizes() {
    for (text, bytes, written) in [
        ("0", 0, "0"),
        ("128", 128, "128"),
        ("100B", 100, "100"),
        ("1KiB", 1024, "1KiB"),
        ("64KB", 65_536, "64KiB"),
        ("64kb", 65_536, "64KiB"),
        ("64k", 65_536, "64KiB"),
        ("64 KiB", 65_536, "64KiB"),
        ("1M", 1 << 20, "1MiB"),
        ("1MB", 1 << 20, "1MiB"),
        ("1.5MiB", 3 << 19, "1536KiB"),
        ("1G", 1 << 30, "1GiB"),
        ("1T", 1 << 40, "1024GiB"),
        ("1,000,000", 1_000_000, "1000000"),
    ] {
        let size: Size = text.parse().expect(text);
        assert_eq!((size.0, size.to_string().as_str()), (bytes, written), "{text}");
    }
    rejects::<Size>(&["", "KiB", "0.1KiB", "-1", "+1", "1 2", "64Kb/s", "99999999999GiB"]);
}

#[test]
fn times() {
    for (text, ms, written) in [
        ("0", 0.0, "0"),
        ("0s", 0.0, "0"),
        ("25", 25e3, "25s"),
        ("1.5", 1500.0, "1500ms"),
        ("25s", 25e3, "25s"),
        ("25S", 25e3, "25s"),
        ("25 sec", 25e3, "25s"),
        ("250us", 0.25, "250us"),
        ("250µs", 0.25, "250us"),
        ("500ms", 500.0, "500ms"),
        ("90s", 90e3, "90s"),
        ("10m", 600e3, "10m"),
        ("10min", 600e3, "10m"),
        ("1.5h", 5_400e3, "90m"),
        ("24h", 86_400e3, "1d"),
    ] {
        let time: Time = text.parse().expect(text);
        assert_eq!(time.0.as_secs_f64() * 1e3, ms, "{text}");
        assert_eq!(time.to_string(), written);
    }
    rejects::<Time>(&[
        "",
        "s",
        "-1s",
        "1m30s",
        "5 parsecs",
        "0.5ns",
        "9999999999999d",
        "infs",
        "1e3s",
    ]);
}

#[test]
fn rates() {
    for (text, rate) in
        [("0.5", 0.5), ("10k", 10e3), ("1000/s", 1000.0), ("2k/s", 2e3), ("1,000 /s", 1000.0)]
    {
        assert_eq!(text.parse(), Ok(Rate(rate)), "{text}");
    }
    rejects::<Rate>(&["", "inf", "NaN", "-3", "1/m", "/s", "5000G"]);
}

#[test]
fn addresses() {
    for (text, written) in [
        ("127.0.0.1:8080", "127.0.0.1:8080"),
        ("0.0.0.0:8080", "0.0.0.0:8080"),
        ("[::1]:8080", "[::1]:8080"),
        ("8080", "127.0.0.1:8080"),
        (":8080", "127.0.0.1:8080"),
        ("localhost:8080", "127.0.0.1:8080"),
        ("LocalHost:0", "127.0.0.1:0"),
        (" :80 ", "127.0.0.1:80"),
    ] {
        let address: Address = text.parse().expect(text);
        assert_eq!(address.to_string(), written, "{text}");
    }
    rejects::<Address>(&["", ":", "localhost", "80800", ":+80", "1.2.3:80", "::1:8080", "a b:1"]);
    for (text, expected) in [
        ("127.0.0.1", "\"127.0.0.1\" has no port; add it, like \"127.0.0.1:8080\""),
        ("::1", "\"::1\" has no port; add it, like \"[::1]:8080\""),
        ("[::1]", "\"[::1]\" has no port; add it, like \"[::1]:8080\""),
        (
            "http://127.0.0.1/",
            "\"http://127.0.0.1/\" is a URL; an address has no scheme: \"127.0.0.1:8080\"",
        ),
        (
            "push.example:80",
            "\"push.example:80\" names a host; listen on an IP address, like \"127.0.0.1:80\", \
             or on all of them: \"0.0.0.0:80\"",
        ),
    ] {
        assert_eq!(text.parse::<Address>(), Err(Invalid(expected.to_owned())));
    }
}

#[test]
fn ports() {
    assert_eq!("8080".parse(), Ok(Ports(vec![8080])));
    assert_eq!("81,80-82".parse(), Ok(Ports(vec![80, 81, 82])));
    for text in ["", "0", "70000", "82-80", "80-", "a", "80,,81", "+80"] {
        assert!(text.parse::<Ports>().is_err(), "{text}");
    }
}

#[test]
fn switches() {
    for (text, is_on) in [("true", true), ("YES", true), ("1", true), ("Off", false), ("0", false)]
    {
        assert_eq!(text.parse(), Ok(Switch(is_on)), "{text}");
    }
    rejects::<Switch>(&["", "y", "maybe", "2"]);
}

#[test]
fn urls() {
    for (text, expected) in [
        ("http://host:1/a", "http://host:1/a"),
        ("8080", "http://127.0.0.1:8080"),
        (":8080", "http://127.0.0.1:8080"),
        ("localhost:8080", "http://127.0.0.1:8080"),
        ("[::1]:8080", "http://[::1]:8080"),
    ] {
        assert_eq!(url(text).as_deref(), Ok(expected), "{text}");
    }
    for (text, meant) in [
        ("push.example", "http://push.example"),
        ("push.example:80/a", "http://push.example:80/a"),
        ("http:/localhost:80", "http://localhost:80"),
        ("ws:/localhost:80", "ws://localhost:80"),
        ("//push.example", "http://push.example"),
    ] {
        let expected = format!("{text:?} has no scheme; did you mean {meant:?}?");
        assert_eq!(url(text), Err(Invalid(expected)));
    }
    assert_eq!(
        url("").map_err(|error| error.0),
        Err("\"\" is not a URL, like \"http://127.0.0.1:8080\"".to_owned())
    );
}

fn parses_back<T>(value: &T)
where
    T: FromStr<Err = Invalid> + Display + PartialEq + Debug,
{
    let written = value.to_string();
    assert_eq!(written.parse::<T>().as_ref(), Ok(value), "{written}");
    assert_eq!(written.to_ascii_lowercase().parse::<T>().as_ref(), Ok(value), "{written}");
    assert_eq!(written.to_ascii_uppercase().parse::<T>().as_ref(), Ok(value), "{written}");
}

proptest! {
    #[test]
    fn displayed_values_parse_back(number: usize, ns in 0..3_000_000_000_000_000_000_u64) {
        parses_back(&Count(number));
        parses_back(&Size(number));
        parses_back(&Time(Duration::from_nanos(ns)));
        prop_assert_eq!(Count(number).short().parse(), Ok(Count(number)));
        prop_assert_eq!(format::count(number as u64).parse(), Ok(Count(number)));
    }

    #[test]
    fn a_fraction_is_exact_or_rejected(whole in 0..1_000_000_u64, thousandths in 0..1000_u64) {
        let text = format!("{whole}.{thousandths:03}");
        let exact = u128::from(whole * 1000 + thousandths);
        for (unit, each) in [("", 1), ("k", 1 << 10), ("MiB", 1 << 20), ("gb", 1 << 30)] {
            let product = exact * each;
            let size = product.is_multiple_of(1000).then_some(Size((product / 1000) as usize));
            prop_assert_eq!(format!("{text}{unit}").parse().ok(), size);
        }
        let time = Time(Duration::from_millis(exact as u64));
        prop_assert_eq!(text.parse(), Ok(time));
        prop_assert_eq!(format!("{text} s").parse(), Ok(time));
        prop_assert_eq!(format!("{text}k").parse(), Ok(Count(exact as usize)));
    }

    #[test]
    fn no_text_panics_or_wraps(text in "[0-9]{0,25}[._,:]?[0-9]{0,25} ?[kKMGTBimnsuµhd:/]{0,4}") {
        let _ = (text.parse::<Count>(), text.parse::<Size>(), text.parse::<Rate>());
        let _ = (text.parse::<Time>(), text.parse::<Address>(), text.parse::<Ports>());
        let _ = (url(&text), text.parse::<Switch>());
    }
}
