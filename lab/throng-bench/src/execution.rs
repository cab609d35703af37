//! Executes the runs of a benchmark in their order.

use throng_units::format::count;

use crate::context::{Abort, Context};
use crate::expression::Figure;
use crate::file::Run;
use crate::plan;
use crate::programs::{self, cluster, users};

/// Executes a benchmark. Each run has a server of its own.
pub(crate) fn execute(context: &mut Context<'_>) -> Result<(), Abort> {
    for repeat in 0..context.benchmark.size.repeats {
        let mut runs = context.benchmark.runs();
        if repeat % 2 == 1 {
            runs.reverse();
        }
        runs.retain(|run| context.choice.has(run) && (repeat == 0 || !run.once));
        for run in runs {
            execute_run(context, run)?;
        }
    }
    Ok(())
}

/// Makes a run, in each of its sizes.
fn execute_run(context: &mut Context<'_>, run: &Run) -> Result<(), Abort> {
    let steps: &[usize] = if run.program.is_none() { &run.steps } else { &[] };
    for &step in steps {
        let clients = context.part(step);
        let label = format!("at {}", count(clients as u64));
        context.step(clients, |context| context.labelled(&label, |it| one(it, run)))?;
    }
    if steps.is_empty() {
        let clients = plan::clients(context.benchmark, run, context.size)?;
        let label = if context.benchmark.runs().len() == 1 { "" } else { &run.name };
        context.step(clients, |context| context.labelled(label, |it| one(it, run)))?;
    }
    Ok(())
}

fn one(context: &mut Context<'_>, run: &Run) -> Result<(), Abort> {
    let program = run.program.as_deref().and_then(programs::find);
    let done = match program {
        _ if !run.beside.is_empty() => cluster::beside(context, run),
        Some(program) => {
            begin(context, run);
            program(context, run)
        }
        None => {
            begin(context, run);
            serve_and_load(context, run)
        }
    };
    context.stop_server();
    done
}

fn begin(context: &mut Context<'_>, run: &Run) {
    context.begin(&run.name);
    for (name, value) in &run.given {
        context.give_one(name, Figure::of(Some(*value), context.size.connections));
    }
}

fn serve_and_load(context: &mut Context<'_>, run: &Run) -> Result<(), Abort> {
    let clients = context.size.connections;
    context.serve(run)?;
    if run.fill {
        users::fill(&context.url(), 0..clients)?;
    }
    if let Some(channels) = run.keep {
        let before = context.memory();
        users::keep(&context.url(), clients, channels)?;
        let kept = context.memory().zip(before).map(|(after, before)| after - before);
        context.give([("kept_bytes", kept.map(|bytes| bytes / clients as f64))]);
    }
    context.load(run).map(drop)
}
