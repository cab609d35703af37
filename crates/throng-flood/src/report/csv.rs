//! Reports for spreadsheets: one line a sample, or one line a run.
//!
//! Columns keep their names and order; new ones are added at the end. What could not be measured is
//! an empty cell.

use std::fmt::Write as _;

use super::{Distribution, Report};

const SAMPLE_COLUMNS: &str = "run,at_s,phase,connecting,active,closed,subscribed,failures,\
     published,received,received_bytes,delivery_p50_ms,delivery_p90_ms,delivery_p99_ms,\
     delivery_p999_ms,delivery_max_ms,server_pss_bytes,server_cores,generator_pss_bytes,\
     generator_cores,slab_bytes,socket_buffer_bytes,machine_cores";

const RUN_COLUMNS: &str = "run,started_unix_s,seconds,cut_short,active,attempts,subscribed,\
     failures,published,publish_failures,publish_rate_intended,publish_rate,expected,received,lost,\
     duplicated,reordered,delivery_rate,connect_rate,connect_p50_ms,connect_p99_ms,connect_max_ms,\
     delivery_p50_ms,delivery_p90_ms,delivery_p99_ms,delivery_p999_ms,delivery_max_ms,\
     first_p50_ms,median_p50_ms,p99_p50_ms,p999_p50_ms,last_p50_ms,last_max_ms,server_cpu_s,\
     server_cpu_us_per_delivery,server_pss_bytes,server_bytes_per_client,generator_cpu_s,\
     generator_cpu_us_per_delivery,generator_pss_bytes,generator_bytes_per_client,kernel_bytes,\
     assertions_failed,warnings,missed,machine_cpu_s,machine_cpu_us_per_delivery,machine_busy_s,\
     other_programs_cpu_s";

/// One line a sample of one run, under a heading.
pub fn samples(report: &Report) -> String {
    let mut text = format!("{SAMPLE_COLUMNS}\n");
    for sample in &report.series {
        let phase = report.phases.iter().find(|phase| sample.at_s <= phase.to_s);
        let mut line = Line::default();
        line.text(&report.name)
            .put(sample.at_s)
            .text(phase.map_or("", |phase| &phase.name))
            .put(sample.connecting)
            .put(sample.active)
            .put(sample.closed)
            .put(sample.subscribed)
            .put(sample.failures)
            .put(sample.published)
            .put(sample.received)
            .put(sample.received_bytes);
        let delivery = sample.delivery.as_ref();
        line.each(delivery, [|d| d.p50, |d| d.p90, |d| d.p99, |d| d.p999, |d| d.max])
            .maybe(sample.server_pss_bytes)
            .maybe(sample.server_cores)
            .maybe(sample.generator_pss_bytes)
            .put(sample.generator_cores)
            .maybe(sample.slab_bytes)
            .maybe(sample.socket_buffer_bytes)
            .maybe(sample.machine_cores);
        text.push_str(&line.end());
    }
    text
}

/// One line a run, under a heading.
pub fn runs<'a>(reports: impl IntoIterator<Item = &'a Report>) -> String {
    let mut text = format!("{RUN_COLUMNS}\n");
    for report in reports {
        text.push_str(&run(report));
    }
    text
}

fn run(report: &Report) -> String {
    let total = &report.total;
    let mut line = Line::default();
    line.text(&report.name)
        .put(report.started_unix_s)
        .put(report.seconds)
        .text(report.cut_short.as_deref().unwrap_or_default())
        .put(total.active)
        .put(total.attempts)
        .put(total.subscribed)
        .put(total.failures.values().sum::<u64>())
        .put(total.published)
        .put(total.publish_failures.values().sum::<u64>())
        .maybe(total.publish_rate_intended)
        .maybe(total.publish_rate)
        .put(total.expected)
        .put(total.received)
        .put(total.lost)
        .put(total.duplicated)
        .put(total.reordered)
        .maybe(total.delivery_rate)
        .maybe(total.connect_rate)
        .each(total.connect.as_ref(), [|d| d.p50, |d| d.p99, |d| d.max])
        .each(total.delivery.as_ref(), [|d| d.p50, |d| d.p90, |d| d.p99, |d| d.p999, |d| d.max]);
    for of_publish in [&total.first, &total.median, &total.p99, &total.p999] {
        line.each(of_publish.as_ref(), [|d| d.p50]);
    }
    line.each(total.last.as_ref(), [|d| d.p50, |d| d.max]);
    for cost in [total.server.as_ref(), Some(&total.generator)] {
        line.maybe(cost.map(|cost| cost.cpu_s))
            .maybe(cost.and_then(|cost| cost.cpu_us_per_delivery))
            .maybe(cost.and_then(|cost| cost.pss_bytes))
            .maybe(cost.and_then(|cost| cost.bytes_per_client));
    }
    line.maybe(total.kernel_bytes)
        .put(report.assertions.iter().filter(|checked| !checked.holds).count())
        .put(report.warnings.len())
        .put(total.missed);
    let machine = total.machine.as_ref();
    line.maybe(machine.map(|machine| machine.cpu_s))
        .maybe(machine.and_then(|machine| machine.cpu_us_per_delivery))
        .maybe(machine.map(|machine| machine.busy_s))
        .maybe(machine.map(|machine| machine.others_s));
    line.end()
}

#[derive(Default)]
struct Line {
    text: String,
}

impl Line {
    fn put(&mut self, value: impl std::fmt::Display) -> &mut Line {
        let _ = write!(self.text, "{value},");
        self
    }

    fn maybe(&mut self, value: Option<impl std::fmt::Display>) -> &mut Line {
        match value {
            Some(value) => self.put(value),
            None => self.put(""),
        }
    }

    fn each<const N: usize>(
        &mut self,
        distribution: Option<&Distribution>,
        values: [fn(&Distribution) -> f64; N],
    ) -> &mut Line {
        for value in values {
            self.maybe(distribution.map(value));
        }
        self
    }

    /// A text in quotes if it needs them. One that a spreadsheet would take for a formula gets an
    /// apostrophe, for names come from plans that others have written.
    fn text(&mut self, text: &str) -> &mut Line {
        let guard = if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { "'" } else { "" };
        if text.contains([',', '"', '\n', '\r']) {
            self.put(format_args!("\"{guard}{}\"", text.replace('"', "\"\"")))
        } else {
            self.put(format_args!("{guard}{text}"))
        }
    }

    fn end(mut self) -> String {
        self.text.pop();
        self.text.push('\n');
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    /// Splits a line at commas outside quotes.
    fn cells(line: &str) -> Vec<String> {
        let mut cells = vec![String::new()];
        let mut is_quoted = false;
        for letter in line.chars() {
            match letter {
                '"' => is_quoted = !is_quoted,
                ',' if !is_quoted => cells.push(String::new()),
                other => cells.last_mut().expect("never empty").push(other),
            }
        }
        cells
    }

    #[test]
    fn every_line_has_every_column() {
        let mut report = fixture::sample();
        report.total.server = None;
        report.total.last = None;
        for text in [samples(&report), runs([&report, &Report::default()])] {
            let columns = text.lines().next().map_or(0, |line| cells(line).len());
            assert!(text.lines().count() > 2);
            assert!(text.lines().all(|line| cells(line).len() == columns), "{text}");
        }
    }

    #[test]
    fn cells_stand_beneath_their_names() {
        let report = fixture::sample();
        let text = runs([&report]);
        let lines: Vec<_> = text.lines().map(cells).collect();
        let cell = |name: &str| {
            let at = lines[0].iter().position(|column| column == name).expect("a column");
            lines[1][at].as_str()
        };
        assert_eq!(cell("run"), "throng, 100,000 WebSockets");
        assert_eq!(cell("failures"), "419");
        assert_eq!(cell("publish_failures"), "2");
        assert_eq!(cell("kernel_bytes"), "890000000");
        assert_eq!(cell("assertions_failed"), "1");
        assert_eq!(cell("warnings"), "1");
        let line = samples(&report).lines().nth(1).map(cells).expect("a sample");
        assert_eq!(line[2], "ramp to 100000");
    }

    #[test]
    fn names_are_quoted_and_are_no_formulas() {
        let mut line = Line::default();
        line.text("a \"b\", c").text("=1+1").text("plain");
        assert_eq!(line.end(), "\"a \"\"b\"\", c\",'=1+1,plain\n");
    }
}
