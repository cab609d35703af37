//! The command `throng bench`.
//!
//! | exit code | |
//! |---|---|
//! | 0 | every benchmark succeeded: nothing failed, nothing was lost |
//! | 1 | a benchmark failed, was stopped or is impossible here; or a result cannot be written |
//! | 64 | the command line is wrong |

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use clap::Args;
use throng_flood::cli::interrupts;
use throng_host::preflight::Preflight;
use throng_report::compare::read_sides;
use throng_report::file::write;
use throng_report::terminal::{print, print_error};
use throng_units::paint::{Ink, Paint};
use throng_units::{Count, Invalid, Time};

use crate::benchmarks::named;
use crate::context::{Abort, Choice, Context};
use crate::executables::{NATS_SERVER, SERVER};
use crate::execution::execute;
use crate::file::{Benchmark, Size};
use crate::results::{Outcome, Results, VERSION, Verdict, now_unix_s};
use crate::{csv, listing, namespace, preflight, report};

/// The command line is wrong.
const EXIT_USAGE: u8 = 64;
/// A benchmark failed or is impossible here.
const EXIT_FAILED: u8 = 1;

/// The size of a quick check.
const QUICK_CONNECTIONS: usize = 1_000;
const QUICK_TIME: Duration = Duration::from_secs(1);

const EXAMPLES: &str = "\
Examples:
  List the benchmarks with their sizes and durations:
    throng bench

  Run one in its original size:
    throng bench c10k-stream

  Run all that are not big, smaller and shorter, and write a page with charts:
    throng bench small --connections 1000 --time 10s --html bench.html

  Check whether this machine can hold two million, and what would have to change:
    throng bench two-million --dry-run

  Compare before and after:
    throng bench router --json before.json
    throng bench router --json after.json
    throng bench --compare before.json after.json

  Compare with a raw send() loop on this kernel:
    throng bench baseline
    throng bench baseline --part fan-out --repeats 9 --set senders=2

  Run a benchmark of one's own:
    throng bench ./mine.toml

Each benchmark starts a server on a free port of 127.0.0.1, and stops it.";

/// Arguments of `throng bench`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Benchmarks to run, by name or by the path of a file; `small` means all that are not big.
    /// Without any, lists them
    #[arg(value_name = "BENCHMARK")]
    pub(crate) benchmarks: Vec<String>,
    /// Peak number of clients; by default that of the original
    #[arg(long, short = 'n', value_name = "N")]
    pub connections: Option<Count>,
    /// How long to hold the clients, for benchmarks that have a hold phase
    #[arg(long, value_name = "TIME")]
    pub time: Option<Time>,
    /// How many times to make the runs, every other time in the opposite order; by default as the
    /// benchmark says
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeats: Option<u32>,
    /// Change a number of the benchmark's file, such as `senders=4` of `baseline`; may be repeated
    #[arg(long, value_name = "NAME=NUMBER", value_parser = number)]
    pub set: Vec<(String, f64)>,
    /// Use small numbers: a check that everything works, and no measurement
    #[arg(long)]
    pub quick: bool,
    /// Write all results as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the tables by size or step as CSV, such as the steps of the WebSocket chat
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write a page with charts
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// List the benchmarks
    #[arg(long)]
    pub list: bool,
    /// Show what would run, and whether this machine allows it
    #[arg(long)]
    pub dry_run: bool,
    /// Raise kernel settings that are too low before starting (needs root)
    #[arg(long)]
    pub apply: bool,
    /// Run server and clients in a new network namespace with a large enough connection table
    /// (needs root)
    #[arg(long)]
    pub namespace: bool,
    /// Make only this run of the benchmark, such as `fan-out` of `cluster`, or those with this word
    /// in their names, such as `raw` of `baseline`; may be repeated
    #[arg(long, value_name = "RUN")]
    pub part: Vec<String>,
    /// The server to measure; by default the program `throng` beside this one or in PATH
    #[arg(long, value_name = "FILE")]
    pub server: Option<PathBuf>,
    /// The nats-server that `cluster` starts; by default that in PATH
    #[arg(long, value_name = "FILE")]
    pub nats_server: Option<PathBuf>,
    /// Leave out of `cluster` what runs on three nats-servers
    #[arg(long)]
    pub single_nats: bool,
    /// Compare JSON results: each a file, or `label=file,file…` for several runs
    #[arg(long, value_name = "FILE", num_args = 2.., conflicts_with = "benchmarks")]
    pub compare: Option<Vec<String>>,
}

/// A benchmark and its size.
#[derive(Debug)]
struct Chosen {
    benchmark: Benchmark,
    size: Size,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> ExitCode {
    if let Some(files) = &arguments.compare {
        let done = compared(files, arguments.html.as_deref()).map(|()| ExitCode::SUCCESS);
        return done.unwrap_or_else(|reason| {
            print_error(&reason);
            EXIT_FAILED.into()
        });
    }
    if arguments.list || arguments.benchmarks.is_empty() {
        print(&listing::list(Paint::on(&io::stdout())));
        return ExitCode::SUCCESS;
    }
    let chosen = match chosen(arguments) {
        Ok(chosen) => chosen,
        Err(reason) => {
            print_error(&reason);
            return EXIT_USAGE.into();
        }
    };
    if arguments.namespace {
        let ends = |one: &Chosen| one.benchmark.kernel_ends() * one.size.connections;
        let max_ends = chosen.iter().map(ends).max();
        print_error(&namespace::enter(max_ends.unwrap_or_default() as u64));
        return EXIT_FAILED.into();
    }
    if arguments.dry_run {
        return dry_run(&chosen, arguments);
    }
    let done = (|| {
        prepare(&chosen, arguments)?;
        run_all(&chosen, arguments)
    })();
    done.unwrap_or_else(|reason: String| {
        print_error(&reason);
        EXIT_FAILED.into()
    })
}

/// A name and its number: `senders=4`.
fn number(text: &str) -> Result<(String, f64), Invalid> {
    let parts = text.split_once('=').and_then(|(name, number)| Some((name, number.parse().ok()?)));
    let (name, number) =
        parts.ok_or_else(|| Invalid::new(text, "a name and a number, like senders=4"))?;
    Ok((name.to_owned(), number))
}

fn chosen(arguments: &Arguments) -> Result<Vec<Chosen>, String> {
    let quick = |small: usize| arguments.quick.then_some(small);
    let connections = arguments.connections.map(|Count(connections)| connections);
    let connections = connections.or(quick(QUICK_CONNECTIONS));
    if connections == Some(0) {
        return Err("--connections must be more than 0".to_owned());
    }
    let time = arguments.time.map(|Time(time)| time);
    let time = time.or(arguments.quick.then_some(QUICK_TIME));
    if time.is_some_and(|time| time < Duration::from_millis(500)) {
        return Err("--time must be half a second at least".to_owned());
    }
    let sized = |mut benchmark: Benchmark| {
        let size = benchmark.sized(connections, time);
        let repeats = arguments.repeats.or(arguments.quick.then_some(1));
        benchmark.size.repeats = repeats.unwrap_or(benchmark.size.repeats);
        for (name, number) in &arguments.set {
            benchmark.set(name, *number)?;
        }
        Ok(Chosen { benchmark, size })
    };
    let chosen = named(&arguments.benchmarks)?.into_iter().map(sized);
    let chosen = chosen.collect::<Result<Vec<_>, String>>()?;
    for part in &arguments.part {
        let runs = || chosen.iter().flat_map(|one| one.benchmark.runs());
        if !runs().any(|run| run.is(part)) {
            let known: BTreeSet<_> = runs().map(|run| run.name.as_str()).collect();
            let known = Vec::from_iter(known).join(", ");
            return Err(format!("there is no run {part:?}; the runs are {known}"));
        }
    }
    Ok(chosen)
}

/// Why a benchmark cannot run here, and what helps; `None` if it can.
fn refusal(benchmark: &Benchmark, found: &Preflight, arguments: &Arguments) -> Option<String> {
    let missing = || NATS_SERVER.find(arguments.nats_server.as_deref()).err();
    let missing = benchmark.size.nats.then(missing).flatten();
    missing.or_else(|| preflight::refusal(benchmark, found))
}

fn dry_run(chosen: &[Chosen], arguments: &Arguments) -> ExitCode {
    let paint = Paint::on(&io::stdout());
    let mut is_possible = true;
    for Chosen { benchmark, size } in chosen {
        let mut text = listing::story(benchmark, size, paint);
        let found = preflight::check(benchmark, size);
        text.push_str(&format!("  {}\n", found.summary()));
        text.push_str(&format!("  takes about {}\n", listing::about(benchmark.seconds(size))));
        for warning in found.warnings() {
            text.push_str(&format!("  {} {warning}\n", paint.ink(Ink::WARNING, "warning:")));
        }
        if let Some(refusal) = refusal(benchmark, &found, arguments) {
            is_possible = false;
            text.push_str(&format!("  {} {refusal}\n", paint.ink(Ink::BAD, "not possible:")));
        }
        text.push_str(&listing::plans(benchmark, *size, paint));
        print(&format!("{text}\n"));
    }
    if is_possible { ExitCode::SUCCESS } else { EXIT_FAILED.into() }
}

/// Checks that all benchmarks are possible, so that none starts in vain.
fn prepare(chosen: &[Chosen], arguments: &Arguments) -> Result<(), String> {
    let may_apply = arguments.apply;
    let mut refusals = Vec::new();
    for Chosen { benchmark, size } in chosen {
        let mut found = preflight::check(benchmark, size);
        if may_apply {
            preflight::apply(&found).iter().for_each(|line| eprintln!("{line}"));
            found = preflight::check(benchmark, size);
        }
        for warning in found.warnings() {
            let label = Paint::on(&io::stderr()).ink(Ink::WARNING, "warning:");
            eprintln!("{label} {}: {warning}", benchmark.name);
        }
        let refusal = refusal(benchmark, &found, arguments);
        refusals.extend(refusal.map(|refusal| format!("{}: {refusal}", benchmark.name)));
    }
    if refusals.is_empty() {
        return Ok(());
    }
    if !may_apply {
        refusals.push("(--apply raises kernel settings)".to_owned());
    }
    Err(refusals.join("\n"))
}

/// Runs the benchmarks in order and shows the results.
fn run_all(chosen: &[Chosen], arguments: &Arguments) -> Result<ExitCode, String> {
    let choice = Choice {
        server: SERVER.find(arguments.server.as_deref())?,
        parts: arguments.part.clone(),
        nats_server: arguments.nats_server.clone(),
        is_single: arguments.single_nats,
    };
    let interrupts = interrupts().map_err(|error| error.to_string())?;
    let mut results = Results {
        version: VERSION,
        started_unix_s: now_unix_s(),
        environment: throng_flood::environment(true),
        ..Results::default()
    };
    // Fails now rather than after hours if a file cannot be written.
    save(&results, arguments)?;
    let paint = Paint::on(&io::stderr());
    for one @ Chosen { benchmark, size } in chosen {
        let about = listing::about(benchmark.seconds(size));
        let title = paint.ink(Ink::Bold, &benchmark.title);
        eprintln!("\n{title}: {}, about {about}", size.text());
        results.benchmarks.push(run_one(one, &choice, &interrupts.is_stopped));
        save(&results, arguments)?;
        if interrupts.is_stopped() {
            break;
        }
    }
    print(&report::text(&results, Paint::on(&io::stdout())));
    let is_success = |outcome: &Outcome| outcome.verdict == Verdict::Done;
    if results.benchmarks.len() == chosen.len() && results.benchmarks.iter().all(is_success) {
        return Ok(ExitCode::SUCCESS);
    }
    Ok(interrupts.exit_code().unwrap_or(EXIT_FAILED.into()))
}

fn run_one(chosen: &Chosen, choice: &Choice, is_stopped: &AtomicBool) -> Outcome {
    let began = Instant::now();
    let Chosen { benchmark, size } = chosen;
    let mut context = Context::new(benchmark, *size, choice, is_stopped);
    if cfg!(debug_assertions) {
        context.outcome.warnings.push("this is a debug build: it is slow".to_owned());
    }
    let done = execute(&mut context);
    context.stop_server();
    context.outcome.complete(benchmark, &context.figures);
    match done {
        Ok(()) => context.outcome.check(benchmark, &context.figures),
        Err(Abort::Failed(reason)) => context.outcome.fail(reason),
        Err(Abort::Interrupted) => context.outcome.fail("it was interrupted"),
    }
    context.outcome.seconds = began.elapsed().as_secs_f64();
    context.outcome
}

/// Writes the results so far, so that an interrupted command keeps them.
fn save(results: &Results, arguments: &Arguments) -> Result<(), String> {
    type Make = fn(&Results) -> String;
    let outputs: [(&Option<PathBuf>, Make); 3] = [
        (&arguments.json, Results::to_json),
        (&arguments.csv, csv::tables),
        (&arguments.html, report::html),
    ];
    for (path, make) in outputs {
        let Some(path) = path else { continue };
        write(path, &make(results)).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Compares results, each a file or `label=file,file…`.
fn compared(files: &[String], html: Option<&Path>) -> Result<(), String> {
    let sides = read_sides(files, Results::read).map_err(|error| error.to_string())?;
    print(&report::compared_text(&sides, Paint::on(&io::stdout())));
    let page = html.map(|path| write(path, &report::compared_html(&sides)));
    page.unwrap_or(Ok(())).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn of(words: &[&str]) -> Result<Vec<Chosen>, String> {
        let line = Line::try_parse_from(["bench"].iter().chain(words));
        chosen(&line.map_err(|error| error.to_string())?.arguments)
    }

    #[test]
    fn sizes_default_to_the_original() {
        let found = of(&["router", "c10k-stream", "-n", "2k"]).expect("known");
        assert!(found.iter().all(|one| one.size.connections == 2_000));
        let router = &found[1];
        assert_eq!(router.benchmark.name, "router");
        assert_eq!(router.size.time, Duration::from_secs(600));
        let found = of(&["two-million", "--time", "2s"]).expect("known");
        let size = Size { connections: 2_000_000, time: Duration::from_secs(2) };
        assert_eq!(found[0].size, size);
    }

    #[test]
    fn a_quick_check_is_small_unless_told_otherwise() {
        let found = of(&["baseline", "--quick", "--set", "senders=4"]).expect("known");
        let Chosen { benchmark, size } = &found[0];
        assert_eq!((size.connections, size.time), (QUICK_CONNECTIONS, QUICK_TIME));
        assert_eq!((benchmark.size.repeats, benchmark.numbers["senders"]), (1, 4.0));
        let found = of(&["baseline", "--quick", "--repeats", "2", "-n", "50"]).expect("known");
        assert_eq!((found[0].size.connections, found[0].benchmark.size.repeats), (50, 2));
    }

    #[test]
    fn wrong_command_lines_are_rejected() {
        for words in [
            &["router", "-n", "0"][..],
            &["router", "--time", "1ms"],
            &["rooter"],
            &["./nowhere.toml"],
            &["cluster", "--part", "fan-in"],
            &["baseline", "--part", "fanout"],
            &["baseline", "--repeats", "0"],
            &["baseline", "--set", "sender=2"],
            &["baseline", "--set", "senders"],
            &["router", "--compare", "a", "b"],
            &["--compare", "a"],
        ] {
            assert!(of(words).is_err(), "{words:?}");
        }
    }
}
