//! Formats numbers with units for people. A missing value prints as [`ABSENT`].

/// Printed for a value that was not measured.
pub const ABSENT: &str = "–";

const MICROSECONDS_BELOW_MS: f64 = 1.0;
const SECONDS_FROM_MS: f64 = 10_000.0;

/// A whole number with thousands separators: `1,234,567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with its noun: `1 client`, `2,000 clients`.
pub fn counted(number: u64, one: &str, many: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{} {many}", count(number)) }
}

/// A number with about three digits: `0.12`, `12.3`, `1,234`.
pub fn decimal(number: f64) -> String {
    let size = number.abs();
    if !number.is_finite() {
        ABSENT.to_owned()
    } else if size >= 100.0 || number == 0.0 {
        let whole = count(number.abs().round() as u64);
        if number < 0.0 { format!("-{whole}") } else { whole }
    } else if size >= 10.0 {
        format!("{number:.1}")
    } else if size >= 0.1 {
        format!("{number:.2}")
    } else {
        format!("{number:.3}")
    }
}

/// A rate: `31,200/s`.
pub fn rate(per_second: f64) -> String {
    format!("{}/s", decimal(per_second))
}

/// Milliseconds as `870 µs`, `12.3 ms` or `14.2 s`.
pub fn milliseconds(ms: f64) -> String {
    if !ms.is_finite() {
        ABSENT.to_owned()
    } else if ms == 0.0 {
        "0 ms".to_owned()
    } else if ms < MICROSECONDS_BELOW_MS {
        let digits = usize::from(ms < 0.01);
        format!("{:.digits$} µs", ms * 1e3)
    } else if ms < SECONDS_FROM_MS {
        format!("{} ms", decimal(ms))
    } else {
        format!("{} s", decimal(ms / 1e3))
    }
}

/// A duration: `0.42 s`, `42.1 s`, `2 min 03 s`, `1 h 02 min`.
pub fn seconds(seconds: f64) -> String {
    if !seconds.is_finite() {
        return ABSENT.to_owned();
    }
    let whole = seconds.round().max(0.0) as u64;
    match whole {
        0..=119 => format!("{} s", decimal(seconds)),
        120..=7_199 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

/// Elapsed time as a clock: `0:42`, `12:03`, `1:02:03`.
pub fn clock(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    let (hours, minutes, seconds) = (whole / 3600, whole / 60 % 60, whole % 60);
    if hours > 0 {
        format!("{hours}:{minutes:02}:{seconds:02}")
    } else {
        format!("{minutes}:{seconds:02}")
    }
}

/// A size in bytes: `812 B`, `1.21 GiB`; negative sizes keep their sign.
pub fn bytes(bytes: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    if !bytes.is_finite() {
        return ABSENT.to_owned();
    }
    let mut value = bytes;
    let mut unit = 0;
    while value.abs() >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = match (unit, value.abs()) {
        (0, size) if size.fract() == 0.0 => 0,
        (_, size) if size >= 100.0 => 0,
        (_, size) if size >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// A signed change of size: `+1.2 GiB`, `-3.0 MiB`.
pub fn bytes_change(difference: i64) -> String {
    let sign = if difference >= 0 { "+" } else { "" };
    format!("{sign}{}", bytes(difference as f64))
}

/// Processor use: `1.87 cores`.
pub fn cores(cores: f64) -> String {
    format!("{cores:.2} cores")
}

/// `show(value)`, or [`ABSENT`].
pub fn or_absent<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| ABSENT.to_owned(), show)
}

/// Seconds since 1970 as `2024-02-29 13:37 UTC`.
pub fn date(unix_s: u64) -> String {
    let days = unix_s / 86_400;
    // Days since 1 March of year 0, so that leap days end a year (Hinnant's civil_from_days).
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute) = (unix_s / 3600 % 24, unix_s / 60 % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_have_separators() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(number), text);
        }
        assert_eq!(counted(1, "client", "clients"), "1 client");
        assert_eq!(counted(2000, "client", "clients"), "2,000 clients");
    }

    #[test]
    fn decimals_have_about_three_digits() {
        for (number, text) in [
            (0.0, "0"),
            (0.0123, "0.012"),
            (0.5, "0.50"),
            (12.34, "12.3"),
            (1234.5, "1,235"),
            (-150.0, "-150"),
            (f64::NAN, ABSENT),
        ] {
            assert_eq!(decimal(number), text);
        }
    }

    #[test]
    fn times_choose_their_unit_by_size() {
        for (ms, text) in [
            (0.0, "0 ms"),
            (0.0042, "4.2 µs"),
            (0.87, "870 µs"),
            (12.34, "12.3 ms"),
            (1234.0, "1,234 ms"),
            (14_200.0, "14.2 s"),
        ] {
            assert_eq!(milliseconds(ms), text);
        }
        assert_eq!(seconds(42.12), "42.1 s");
        assert_eq!(seconds(123.0), "2 min 03 s");
        assert_eq!(seconds(7_320.0), "2 h 02 min");
        assert_eq!(clock(42.9), "0:42");
        assert_eq!(clock(3_723.0), "1:02:03");
    }

    #[test]
    fn sizes_use_binary_units() {
        assert_eq!(bytes(812.0), "812 B");
        assert_eq!(bytes(61.4), "61.4 B");
        assert_eq!(bytes(1_300_000_000.0), "1.21 GiB");
        assert_eq!(bytes_change(-3 << 20), "-3.00 MiB");
        assert_eq!(bytes_change(5 << 30), "+5.00 GiB");
    }

    #[test]
    fn dates_handle_leap_years() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(1_709_213_820), "2024-02-29 13:37 UTC");
        assert_eq!(date(1_735_689_599), "2024-12-31 23:59 UTC");
    }
}
