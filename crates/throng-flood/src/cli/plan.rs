//! The plan of a command line: its flags, over the options of a file.

use super::arguments::RunArguments;
use super::error::{CommandError, EXIT_PLAN, EXIT_USAGE};
use crate::plan::file::{self, PlanFile};
use crate::plan::{Options, Plan, PlanError};

/// The flags for options of a phase; `--clients` for the others.
const PHASE_FLAGS: [(&str, &str); 10] = [
    ("publish.rate", "--publish"),
    ("publish.count", "--count"),
    ("publish.size", "--size"),
    ("publish.to", "--to"),
    ("publish", "--publish"),
    ("time", "--hold"),
    ("timeout", "--storm"),
    ("share", "--slow"),
    ("rate", "--rate"),
    ("in-flight", "--in-flight"),
];

/// The plan, checked.
pub(super) fn plan(run: &RunArguments) -> Result<Plan, CommandError> {
    let (options, file) = match &run.plan {
        Some(path) => {
            let (options, file) = file::load(path)
                .map_err(|error| CommandError { lines: error.0, code: EXIT_PLAN })?;
            (run.options.clone().over(options), Some(file))
        }
        None => (run.options.clone(), None),
    };
    let publishes = run.options.load.publish.is_some_and(|rate| rate.0 > 0.0);
    let needs = options.target.profile.and_then(|profile| profile.publish_needs());
    options.into_plan().map_err(|errors| {
        let describe = |error: &PlanError| {
            let line = describe(error, &run.options, file.as_ref());
            match needs {
                Some(needs)
                    if publishes && error.message == "the plan does not say how to publish" =>
                {
                    format!("{line}; this profile needs {needs}")
                }
                _ => line,
            }
        };
        let code = if file.is_some() { EXIT_PLAN } else { EXIT_USAGE };
        CommandError { lines: errors.iter().map(describe).collect(), code }
    })
}

/// The error with its place: the file, unless a flag has set the option.
fn describe(error: &PlanError, flags: &Options, file: Option<&PlanFile>) -> String {
    if let Some(file) = file.filter(|_| !flags.has_any(&error.key)) {
        return file.describe(error);
    }
    match flag(&error.key) {
        Some(flag) => format!("{flag}: {}", error.message),
        None => error.message.clone(),
    }
}

/// The flag of the option with this path of keys, or of one that it is a part of.
fn flag(key: &str) -> Option<String> {
    if let Some(phase) = key.strip_prefix("phases.") {
        let option = phase.split_once('.').map_or("", |(_, option)| option);
        let found = PHASE_FLAGS.iter().find(|(name, _)| *name == option);
        return Some(found.map_or("--clients", |(_, flag)| *flag).to_owned());
    }
    let mut key = Some(key);
    while let Some(path) = key {
        if let Some(flag) = Options::flag(path) {
            return Some(flag);
        }
        key = path.rsplit_once('.').map(|(around, _)| around);
    }
    None
}
