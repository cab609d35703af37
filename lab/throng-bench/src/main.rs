//! The program `throng-bench`, which `throng bench` becomes.

use std::process::ExitCode;

use clap::Parser;
use throng_bench::cli::{Arguments, run};
use throng_flood::cli::parse;

/// Rerun well-known push server benchmarks, and compare with the published results
#[derive(Debug, Parser)]
#[command(version)]
struct CommandLine {
    #[command(flatten)]
    arguments: Arguments,
}

fn main() -> ExitCode {
    // The static binary of releases must not load the plugins of the machine's own glibc.
    if cfg!(target_feature = "crt-static") {
        throng_host::names::resolve_names_without_plugins();
    }
    if let Some(code) = throng_bench::bound::become_program(std::env::args_os()) {
        return code;
    }
    match parse::<CommandLine>() {
        Ok(line) => run(&line.arguments),
        Err(code) => code,
    }
}
