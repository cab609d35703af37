//! Runs a plan and writes the results.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::arguments::{CompareArguments, ResultArguments, RunArguments};
use super::error::{CommandError, EXIT_FAILED, EXIT_USAGE};
use super::interrupts::{Interrupts, interrupts};
use super::{agents, allowance, plan};
use crate::plan::Plan;
use crate::redact::command_line;
use crate::report::live::{Live, Moment};
use crate::report::statements::most_frequent_first;
use crate::report::{Report, compare, page, samples};
use crate::runner::Observer;
use throng_report::file::write;
use throng_report::terminal::{print, print_error};
use throng_units::format::counted;
use throng_units::paint::{Ink, Paint};

/// The file name that means standard output.
const STANDARD: &str = "-";

/// From this many clients on, warnings about kernel settings are printed: fewer do without them.
const WARNED_CLIENTS_MIN: usize = 10_000;

/// Shows the run on standard error. Standard output is for results only.
struct Screen {
    live: Live,
    interrupts: Interrupts,
}

impl Screen {
    fn new(interrupts: Interrupts) -> Screen {
        Screen { live: Live::on(&io::stderr()), interrupts }
    }

    /// Prints and writes the results. Returns the exit code.
    fn conclude(mut self, mut report: Report, results: &ResultArguments) -> ExitCode {
        self.live.end();
        let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
        report.description.command =
            command_line(["throng", "flood"].map(str::to_owned).into_iter().chain(words));
        let is_cut = report.cut_short.is_some();
        if let Some(message) = no_subscriber(&report) {
            print_error(&message);
        }
        let is_written = write_results(&report, results);
        match self.interrupts.exit_code().filter(|_| is_cut) {
            Some(code) => code,
            None if is_good(&report) && is_written => ExitCode::SUCCESS,
            None => EXIT_FAILED.into(),
        }
    }
}

impl Observer for Screen {
    fn on_sample(&mut self, moment: &Moment<'_>) {
        self.live.show(&mut io::stderr(), moment);
    }

    fn should_stop(&mut self) -> bool {
        self.interrupts.is_stopped()
    }
}

pub(super) fn run(arguments: &RunArguments) -> Result<ExitCode, CommandError> {
    let results = &arguments.results;
    check_results(results)?;
    let plan = plan::plan(arguments)?;
    if results.dry_run {
        return Ok(dry_run(&plan));
    }
    if !arguments.agents.agents.is_empty() {
        return with_agents(arguments, plan);
    }
    let (allowance, refusal) = allowance::allowance(&plan);
    if let Some(refusal) = refusal {
        return Err(CommandError { lines: vec![refusal], code: EXIT_FAILED });
    }
    let paint = Paint::on(&io::stderr());
    eprintln!("{}", paint.ink(Ink::Dim, allowance.summary()));
    if plan.max_clients() >= WARNED_CLIENTS_MIN {
        for warning in allowance.warnings() {
            eprintln!("{} {warning}", paint.ink(Ink::WARNING, "warning:"));
        }
    }
    warn_if_silent(&plan);
    let mut screen = Screen::new(interrupts()?);
    let report = crate::run::run(plan, &mut screen);
    Ok(screen.conclude(report, results))
}

/// Runs with the clients of agents, each of which checks its own machine.
fn with_agents(arguments: &RunArguments, plan: Plan) -> Result<ExitCode, CommandError> {
    warn_if_silent(&plan);
    let interrupts = interrupts()?;
    let coordinator = agents::gather(&arguments.agents, &interrupts)?;
    let toml = agents::plan_for_others(&plan);
    let mut screen = Screen::new(interrupts);
    let report = crate::run::run_with(coordinator, &plan, &toml, &mut screen);
    Ok(screen.conclude(report, &arguments.results))
}

/// Prints a note if nothing will be published.
fn warn_if_silent(plan: &Plan) {
    if plan.target.publish.is_none() && !plan.publishes() {
        let note = "nothing will be published: use --publish-url, or give a key or token";
        eprintln!("{} {note}", Paint::on(&io::stderr()).ink(Ink::WARNING, "note:"));
    }
}

/// Fails if two results would go to standard output, where they would be mixed up.
fn check_results(results: &ResultArguments) -> Result<(), CommandError> {
    let outputs = [&results.json, &results.csv, &results.html];
    if outputs.into_iter().filter(|path| is_standard(path)).count() > 1 {
        return Err(CommandError::new(EXIT_USAGE, "only one result can go to standard output"));
    }
    Ok(())
}

fn is_standard(path: &Option<PathBuf>) -> bool {
    path.as_deref() == Some(STANDARD.as_ref())
}

fn dry_run(plan: &Plan) -> ExitCode {
    let (allowance, refusal) = allowance::allowance(plan);
    let mut text = plan.toml();
    text.push_str(&format!("\n# {}\n", allowance.summary()));
    for warning in allowance.warnings() {
        text.push_str(&format!("# {warning}\n"));
    }
    for line in refusal.iter().flat_map(|refusal| refusal.lines()) {
        text.push_str(&format!("# {line}\n"));
    }
    print(&text);
    if refusal.is_none() { ExitCode::SUCCESS } else { EXIT_FAILED.into() }
}

/// The error if no client could subscribe.
fn no_subscriber(report: &Report) -> Option<String> {
    let total = &report.total;
    if total.attempts == 0 || total.subscribed > 0 {
        return None;
    }
    let most =
        most_frequent_first(&total.failures).first().map(|(reason, _)| format!(": {reason}"));
    Some(format!(
        "none of {} became subscribed{}",
        counted(total.attempts, "attempt", "attempts"),
        most.unwrap_or_default()
    ))
}

/// True if the run is complete, some client was subscribed, and all assertions hold.
fn is_good(report: &Report) -> bool {
    let is_done = report.cut_short.is_none() && no_subscriber(report).is_none();
    is_done && report.assertions.iter().all(|checked| checked.holds)
}

/// Prints the table and writes every file that can be written. Returns whether all were.
fn write_results(report: &Report, results: &ResultArguments) -> bool {
    type Make = fn(&Report) -> String;
    let outputs: [(&Option<PathBuf>, Make); 3] = [
        (&results.json, Report::to_json),
        (&results.csv, samples::csv),
        (&results.html, page::html),
    ];
    let is_taken = outputs.iter().any(|(path, _)| is_standard(path));
    if is_taken {
        eprint!("{}", page::text(report, Paint::on(&io::stderr())));
    } else {
        print(&page::text(report, Paint::on(&io::stdout())));
    }
    let mut are_written = true;
    for (path, make) in outputs {
        let Some(path) = path else { continue };
        are_written &= write_to(path, &make(report));
    }
    are_written
}

fn write_to(path: &Path, text: &str) -> bool {
    if path == Path::new(STANDARD) {
        print(text);
        return true;
    }
    write(path, text).map_err(|error| print_error(&error.to_string())).is_ok()
}

pub(super) fn compare(arguments: &CompareArguments) -> Result<ExitCode, CommandError> {
    let comparison =
        compare::read(&arguments.files).map_err(|error| CommandError::new(EXIT_FAILED, error))?;
    print(&comparison.text(Paint::on(&io::stdout())));
    let is_written = match &arguments.html {
        Some(path) => write_to(path, &comparison.html()),
        None => true,
    };
    Ok(if is_written { ExitCode::SUCCESS } else { EXIT_FAILED.into() })
}
