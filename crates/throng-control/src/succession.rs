//! State that the control plane takes over from another process: counts, so that no metric goes
//! back, the charts of the status page, what clients have used of their rates, and the erasures of
//! users.
//!
//! # Format
//!
//! A record begins with a byte for its kind; numbers are little-endian. A process skips kinds and
//! names that it does not know: a missing count is no reason to refuse an upgrade.
//!
//! | kind | contents |
//! |---|---|
//! | 1 | a sample of `/metrics` that belongs to a counter or a histogram: `NAME{LABELS} VALUE` |
//! | 2 | the names of the columns of the charts, with a zero byte behind each |
//! | 3 | the values of a row of the charts, oldest row first: 8 bytes each, NaN for none |
//! | 4 | what clients have used of a rate, as `throng-access/src/limit/frozen.rs` describes it |
//! | 5 | the report of an erasure of a user, done or not, as JSON |

use std::collections::HashMap;

use throng_access::limit::UsedRates;
use throng_core::clock;

use crate::charts::{ChartRow, ROWS_MAX};
use crate::control::Control;
use crate::metrics::HttpCounter;
use crate::pages::{metric_name, metrics_text};

const METRIC: u8 = 1;
const COLUMNS: u8 = 2;
const ROW: u8 = 3;
const USED_RATES: u8 = 4;
const USER_ERASURE: u8 = 5;

impl Control {
    /// Writes what another process is to go on with, record by record. Call it while this one is
    /// held and at rest.
    pub fn freeze(&self, mut write: impl FnMut(&[u8])) {
        let page = metrics_text(self);
        for (sample, value) in growing(&page) {
            let mut record = vec![METRIC];
            record.extend_from_slice(format!("{sample} {value}").as_bytes());
            write(&record);
        }
        let mut record = vec![COLUMNS];
        for name in self.charts.names() {
            record.extend_from_slice(name.as_bytes());
            record.push(0);
        }
        write(&record);
        for row in self.charts.newest(ROWS_MAX) {
            let mut record = vec![ROW];
            row.iter().for_each(|value| record.extend_from_slice(&value.to_le_bytes()));
            write(&record);
        }
        let now_ms = clock::now_ms();
        self.clients.limiter.used_rates(now_ms, |used| {
            let mut record = vec![USED_RATES];
            used.write(now_ms, &mut record);
            write(&record);
        });
        self.user_erasures.freeze(|report| write(&[&[USER_ERASURE], report].concat()));
    }

    /// Goes on with what [`Control::freeze`] has written in another process. Call it once, when all
    /// other parts have what they go on with, and before the control plane is served.
    pub fn resume(&self, records: &[Vec<u8>]) {
        let mut counts = HashMap::new();
        let (mut names, mut rows) = (Vec::new(), Vec::<ChartRow>::new());
        for (kind, content) in records.iter().filter_map(|record| record.split_first()) {
            match *kind {
                METRIC => counts.extend(sample(&String::from_utf8_lossy(content))),
                COLUMNS => {
                    let text = String::from_utf8_lossy(content);
                    names = text.split_terminator('\0').map(str::to_owned).collect();
                }
                ROW => {
                    let (values, _) = content.as_chunks();
                    rows.push(values.iter().map(|value| f64::from_le_bytes(*value)).collect());
                }
                USED_RATES => {
                    let now_ms = clock::now_ms();
                    if let Some(used) = UsedRates::read(content, now_ms) {
                        self.clients.limiter.resume_rates(&used, now_ms);
                    }
                }
                USER_ERASURE => self.user_erasures.resume(content),
                _ => {}
            }
        }
        self.charts.resume(names, rows);
        self.resume_counts(counts);
    }

    fn resume_counts(&self, mut counts: HashMap<Box<str>, f64>) {
        let counted = |name: &str, labels: &str| {
            counts.get(&*metric_name(name, labels)).map_or(0, |count| *count as u64)
        };
        // The status has these, too.
        for counter in HttpCounter::ALL.iter().copied() {
            self.metrics.resume(counter, counted(counter.name(), ""));
        }
        self.refusals
            .resume(|code| counted("http_refused_total", &format!("{{code=\"{}\"}}", code.name())));
        for (sample, own) in growing(&metrics_text(self)) {
            if let Some(count) = counts.get_mut(sample) {
                *count -= own;
            }
        }
        counts.retain(|_, count| *count > 0.0);
        self.carried.set(counts);
    }
}

/// The samples of a page `/metrics` that only grow: their names with labels, and their values.
fn growing(page: &str) -> impl Iterator<Item = (&str, f64)> {
    let mut grows = false;
    page.lines().filter_map(move |line| {
        if let Some(described) = line.strip_prefix("# TYPE ") {
            grows = described.ends_with(" counter") || described.ends_with(" histogram");
        }
        let (name, value) = line.rsplit_once(' ')?;
        (grows && !line.starts_with('#')).then_some((name, value.parse().ok()?))
    })
}

fn sample(line: &str) -> Option<(Box<str>, f64)> {
    let (name, value) = line.rsplit_once(' ')?;
    let value: f64 = value.parse().ok()?;
    (value.is_finite() && value >= 0.0).then(|| (name.into(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_counters_are_carried() {
        let page = "# HELP a Help 1.\n# TYPE a counter\na{b=\"x y\"} 3\n# TYPE c gauge\nc 7\n\
                    # TYPE d histogram\nd_bucket{le=\"1\"} 2\nd_sum 0.5\nd_count 2\n";
        let found: Vec<_> = growing(page).collect();
        let expected =
            [("a{b=\"x y\"}", 3.0), ("d_bucket{le=\"1\"}", 2.0), ("d_sum", 0.5), ("d_count", 2.0)];
        assert_eq!(found, expected);
    }

    #[test]
    fn lines_without_a_sample_are_skipped() {
        assert_eq!(sample("a{b=\"c d\"} 2"), Some(("a{b=\"c d\"}".into(), 2.0)));
        for line in ["", "a", "a x", "a NaN", "a -1"] {
            assert_eq!(sample(line), None, "{line}");
        }
    }
}
