//! The program `throng-flood`, which `throng flood` becomes.

use std::process::ExitCode;

use clap::Parser;
use throng_flood::cli::{Arguments, parse, run};

/// Load a push server with clients, publish, and measure what arrives
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
    match parse::<CommandLine>() {
        Ok(line) => run(line.arguments),
        Err(code) => code,
    }
}
