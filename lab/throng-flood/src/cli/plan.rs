//! The plan of a command line: its flags, over the options of a file.

use super::arguments::RunArguments;
use super::error::{CommandError, EXIT_PLAN, EXIT_USAGE};
use crate::plan::file::{self, PlanFile};
use crate::plan::{Options, Plan, PlanError, around};

/// The plan, checked.
pub(super) fn plan(run: &RunArguments) -> Result<Plan, CommandError> {
    let (options, file) = match &run.plan {
        Some(path) => {
            let (options, file) =
                file::load(path).map_err(|lines| CommandError { lines, code: EXIT_PLAN })?;
            (run.options.clone().over(options), Some(file))
        }
        None => (run.options.clone(), None),
    };
    let publishes = run.options.load.publish.is_some_and(|rate| rate.0 > 0.0);
    let needs = options.target.profile.and_then(|profile| profile.publish_needs());
    options.into_plan().map_err(|errors| {
        let describe = |error: &PlanError| {
            let line = describe(error, &run.options, file.as_ref());
            match &needs {
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

/// The flag of the option with this path of keys, or of one that it is a part of; `--clients` for
/// what no other flag of a phase sets.
fn flag(key: &str) -> Option<String> {
    let of_phase = key.strip_prefix("phases.").and_then(|phase| phase.split_once('.'));
    let option = of_phase.map(|(_number, option)| format!("phases.{option}"));
    let flag = around(option.as_deref().unwrap_or(key)).find_map(Options::flag);
    flag.or_else(|| key.starts_with("phases").then(|| "--clients".to_owned()))
}
