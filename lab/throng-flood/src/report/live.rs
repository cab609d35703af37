//! The live view of a run: redrawn in place once a second on a terminal, otherwise one line per
//! second.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

use throng_units::format::{self, clock, count, milliseconds, or_absent, rate};
use throng_units::paint::{Ink, Paint, sanitized, width};

use super::Sample;
use super::statements::most_frequent_first;

/// Used if the terminal does not report its width.
const COLUMNS_DEFAULT: usize = 80;

/// Failure reasons shown; further ones are summed up, and the final table has them all.
const REASONS_MAX: usize = 4;

/// Width of the sparkline, in seconds.
const HISTORY_MAX: usize = 32;

/// Width of the progress bar.
const BAR_COLUMNS: usize = 20;

/// The state of a run, once a second.
#[derive(Debug, Clone, Copy)]
pub struct Moment<'a> {
    /// Name of the current phase.
    pub phase: &'a str,
    /// Number of the current phase, from 1, and of all phases.
    pub place: (usize, usize),
    /// Target number of clients in this phase.
    pub clients: u64,
    /// The last second.
    pub sample: &'a Sample,
    /// Failures of clients and of publishes by reason, since the start.
    pub failures: &'a BTreeMap<String, u64>,
    /// Messages published since the start.
    pub published: u64,
    /// Deliveries since the start.
    pub received: u64,
    /// Warnings so far.
    pub warnings: &'a [String],
}

/// The live view.
#[derive(Debug)]
pub struct Live {
    paint: Paint,
    is_redrawn: bool,
    /// Number of lines that the last view drew, and the next one overwrites.
    lines: usize,
    deliveries: VecDeque<u64>,
}

impl Live {
    /// A view for `stream`: in place on a terminal, otherwise line by line.
    pub fn on(stream: &impl IsTerminal) -> Live {
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Live::new(stream.is_terminal() && !is_dumb, Paint::on(stream))
    }

    fn new(is_redrawn: bool, paint: Paint) -> Live {
        Live { paint, is_redrawn, lines: 0, deliveries: VecDeque::new() }
    }

    /// Writes the state to the stream that the view was made for.
    pub fn show(&mut self, stream: &mut (impl Write + AsFd), moment: &Moment<'_>) {
        let columns = terminal_columns(stream);
        // The reader may have closed the pipe; the run goes on.
        let _ = self.draw(stream, moment, columns);
    }

    /// Keeps the last view on the screen; later output starts below it.
    pub fn end(&mut self) {
        self.lines = 0;
    }

    fn draw(
        &mut self,
        out: &mut impl Write,
        moment: &Moment<'_>,
        columns: usize,
    ) -> io::Result<()> {
        if !self.is_redrawn {
            writeln!(out, "{}", plain_line(moment))?;
            return out.flush();
        }
        self.deliveries.push_back(moment.sample.received);
        if self.deliveries.len() > HISTORY_MAX {
            self.deliveries.pop_front();
        }
        let lines = self.view(moment);
        let mut frame = String::new();
        if self.lines > 0 {
            frame.push_str(&format!("\x1b[{}A", self.lines));
        }
        for line in &lines {
            // A wrapped line would take two rows, and the next view would not cover it.
            frame.push_str(&cropped(line, columns.saturating_sub(1)));
            frame.push_str("\x1b[K\n");
        }
        frame.push_str("\x1b[J");
        self.lines = lines.len();
        // One write, so that the terminal never shows a partial view.
        out.write_all(frame.as_bytes())?;
        out.flush()
    }

    fn view(&self, moment: &Moment<'_>) -> Vec<String> {
        let Moment { sample, .. } = moment;
        let (place, all) = moment.place;
        let mut lines = vec![
            format!(
                "{}  {}  phase {place} of {all}",
                self.paint.ink(Ink::Bold, clock(sample.at_s)),
                sanitized(moment.phase),
            ),
            self.line(
                "connections",
                format!(
                    "{} {} of {} active, {} connecting, {} closed, +{}",
                    bar(sample.active, moment.clients),
                    count(sample.active),
                    count(moment.clients),
                    count(sample.connecting),
                    count(sample.closed),
                    rate(sample.subscribed as f64),
                ),
            ),
            self.line(
                "messages",
                format!(
                    "{} published, {} delivered, {}",
                    count(moment.published),
                    count(moment.received),
                    rate(sample.received as f64),
                ),
            ),
        ];
        if self.deliveries.iter().any(|&received| received > 0) {
            lines.push(self.line("", sparks(&self.deliveries)));
        }
        lines.push(self.line(
            "latency",
            sample.delivery.as_ref().map_or_else(
                || format::ABSENT.to_owned(),
                |found| {
                    let [p50, p99, p999, max] =
                        [found.p50, found.p99, found.p999, found.max].map(milliseconds);
                    format!("p50 {p50}, p99 {p99}, p99.9 {p999}, max {max}")
                },
            ),
        ));
        lines.push(self.line("memory", memory(sample)));
        lines.push(self.line("processor", processor(sample)));
        lines.push(self.line("failures", self.failures(moment.failures)));
        for warning in moment.warnings {
            let warning = self.paint.ink(Ink::WARNING, sanitized(warning)).to_string();
            lines.push(self.line("warning", warning));
        }
        lines
    }

    fn line(&self, name: &str, value: String) -> String {
        format!("  {}{value}", self.paint.ink(Ink::Dim, format!("{name:<13}")))
    }

    fn failures(&self, failures: &BTreeMap<String, u64>) -> String {
        let sorted = most_frequent_first(failures);
        if sorted.is_empty() {
            return "none".to_owned();
        }
        let all: u64 = failures.values().sum();
        let mut parts = vec![self.paint.ink(Ink::BAD, count(all)).to_string()];
        for (reason, number) in sorted.iter().take(REASONS_MAX) {
            parts.push(format!("{} {}", count(*number), sanitized(reason)));
        }
        let others: u64 = sorted.iter().skip(REASONS_MAX).map(|(_, number)| number).sum();
        if others > 0 {
            parts.push(format!("{} others", count(others)));
        }
        let first = parts.remove(0);
        format!("{first}: {}", parts.join(", "))
    }
}

/// The state in one line, for logs.
fn plain_line(moment: &Moment<'_>) -> String {
    let Moment { sample, .. } = moment;
    let failures: u64 = moment.failures.values().sum();
    let latency = sample.delivery.as_ref().map_or_else(String::new, |found| {
        let [p50, p99, max] = [found.p50, found.p99, found.max].map(milliseconds);
        format!(", p50 {p50}, p99 {p99}, max {max}")
    });
    format!(
        "{} {}: {} of {} clients active, {} connecting, {} closed, {} subscribed, {} published, \
         {} delivered{latency}, {} failed",
        clock(sample.at_s),
        sanitized(moment.phase),
        count(sample.active),
        count(moment.clients),
        count(sample.connecting),
        count(sample.closed),
        rate(sample.subscribed as f64),
        rate(sample.published as f64),
        rate(sample.received as f64),
        count(failures),
    )
}

fn memory(sample: &Sample) -> String {
    let bytes = |bytes: Option<u64>| or_absent(bytes, |bytes| format::bytes(bytes as f64));
    format!(
        "server {}, generator {}, kernel {} and {} in buffers",
        bytes(sample.server_pss_bytes),
        bytes(sample.generator_pss_bytes),
        bytes(sample.slab_bytes),
        bytes(sample.socket_buffer_bytes),
    )
}

fn processor(sample: &Sample) -> String {
    let machine = sample
        .machine_cores
        .map_or_else(String::new, |busy| format!(", whole machine {}", format::cores(busy)));
    format!(
        "server {}, generator {}{machine}",
        or_absent(sample.server_cores, format::cores),
        format::cores(sample.generator_cores),
    )
}

/// A progress bar: `━━━━━─────`.
fn bar(part: u64, whole: u64) -> String {
    let share = if whole == 0 { 0.0 } else { (part as f64 / whole as f64).min(1.0) };
    let full = (share * BAR_COLUMNS as f64) as usize;
    "━".repeat(full) + &"─".repeat(BAR_COLUMNS - full)
}

/// A sparkline of the last seconds.
fn sparks(values: &VecDeque<u64>) -> String {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = values.iter().copied().max().unwrap_or_default().max(1);
    let level = |value: u64| {
        let share = value as f64 / most as f64;
        LEVELS[((share * LEVELS.len() as f64) as usize).min(LEVELS.len() - 1)]
    };
    values.iter().map(|&value| level(value)).collect()
}

/// The text cut to `columns`, with its colours ended.
fn cropped(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut kept = String::new();
    let mut is_escaped = false;
    let mut used = 0;
    for letter in text.chars() {
        match letter {
            '\x1b' => is_escaped = true,
            'm' if is_escaped => is_escaped = false,
            _ if is_escaped => {}
            _ if used + 1 >= columns => {
                kept.push('…');
                break;
            }
            _ => used += 1,
        }
        kept.push(letter);
    }
    if text.contains('\x1b') {
        kept.push_str("\x1b[0m");
    }
    kept
}

fn terminal_columns(stream: &impl AsFd) -> usize {
    let size = rustix::termios::tcgetwinsize(stream);
    size.map_or(COLUMNS_DEFAULT, |size| usize::from(size.ws_col)).max(20)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    fn drawn(live: &mut Live, at: usize, columns: usize) -> String {
        let report = fixture::sample();
        let moment = Moment {
            phase: "hold 70s",
            place: (2, 4),
            clients: 100_000,
            sample: &report.series[at],
            failures: &report.total.failures,
            published: 40,
            received: 4_000_000,
            warnings: &report.warnings,
        };
        let mut out = Vec::new();
        live.draw(&mut out, &moment, columns).expect("written to memory");
        String::from_utf8(out).expect("a text")
    }

    #[test]
    fn without_a_terminal_each_second_is_a_line() {
        let text = drawn(&mut Live::new(false, Paint::plain()), 60, 80);
        assert_eq!(text.lines().count(), 1);
        assert!(!text.contains('\x1b'));
        assert!(
            text.starts_with(
                "1:01 hold 70s: 100,000 of 100,000 clients active, 0 connecting, 3 closed, \
                 0/s subscribed, 1.00/s published, 100,000/s delivered, p50 "
            ),
            "{text}"
        );
        assert!(text.trim_end().ends_with(", 419 failed"), "{text}");
        assert!(!text.contains(['{', '}']), "{text}");
    }

    #[test]
    fn on_a_terminal_the_view_overwrites_itself() {
        let mut live = Live::new(true, Paint::plain());
        let first = drawn(&mut live, 60, 120);
        let lines = first.lines().count() - 1;
        assert!(first.contains("100,000 of 100,000 active, 0 connecting, 3 closed"), "{first}");
        assert!(first.contains("failures     419: 412 connection refused, 6 closed by"), "{first}");
        assert!(!first.starts_with("\x1b["));
        let second = drawn(&mut live, 61, 120);
        assert!(second.starts_with(&format!("\x1b[{lines}A")), "{second}");
        live.end();
        assert!(!drawn(&mut live, 62, 120).starts_with("\x1b["));
    }

    #[test]
    fn no_line_wraps() {
        for columns in [20, 40, 79, 200] {
            let text = drawn(&mut Live::new(true, Paint::always()), 60, columns);
            for line in text.lines() {
                let shown = line.replace("\x1b[K", "").replace("\x1b[J", "");
                assert!(width(&shown) < columns, "{columns}: {line}");
            }
        }
    }

    #[test]
    fn bars_and_sparklines_scale() {
        assert_eq!(bar(5, 10).chars().filter(|&letter| letter == '━').count(), 10);
        assert_eq!(bar(20, 10), "━".repeat(20));
        assert_eq!(bar(0, 0), "─".repeat(20));
        assert_eq!(sparks(&VecDeque::from([0, 4, 8])), "▁▅█");
        assert_eq!(sparks(&VecDeque::from([0, 0])), "▁▁");
    }
}
