//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand, ValueEnum};
use throng_units::{Count, Invalid};

use crate::child::BOUND_COMMAND;
use crate::settings::{Group, Settings};

/// Throng measured against the raw send() loop of the kernel it runs on.
#[derive(Debug, Parser)]
#[command(name = "throng-baseline", args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) inner: Option<Inner>,

    /// The measurements to make; all by default.
    #[arg(value_name = "MEASUREMENTS")]
    pub(crate) groups: Vec<Group>,

    /// The server's program; `throng` beside this program by default.
    #[arg(long, value_name = "PATH")]
    server: Option<PathBuf>,

    /// Also write the report to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Measure only the raw loop, without a server.
    #[arg(long)]
    raw_only: bool,

    /// Use small numbers: a check that everything works, and no measurement.
    #[arg(long)]
    quick: bool,

    /// Change kernel settings that are too small; otherwise they are only reported.
    #[arg(long)]
    pub(crate) apply: bool,

    /// Runs of each measurement [5; quick: 1].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeats: Option<u32>,

    /// Messages in each run, after one to warm up [8; quick: 3].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,

    /// Subscribers, like 15000, 15k or 1M [15k; quick: 1k].
    #[arg(long, value_parser = connections)]
    connections: Option<u32>,

    /// Sending threads of the raw loop, and workers of the server.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1000))]
    senders: u32,

    /// The minimum number of client threads.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=250))]
    client_threads: u32,
}

fn connections(text: &str) -> Result<u32, Invalid> {
    let count = text.parse::<Count>().ok().and_then(|count| u32::try_from(count.0).ok());
    count
        .filter(|count| (2..=2_000_000).contains(count))
        .ok_or_else(|| Invalid::new(text, "a whole number from 2 to 2,000,000, like 15k or 1M"))
}

/// The subcommands that this program starts as its own children.
#[derive(Debug, Subcommand)]
pub(crate) enum Inner {
    /// The raw loop, which takes commands from standard input.
    #[command(hide = true)]
    RawServer {
        #[arg(long)]
        threads: usize,
        #[arg(long)]
        connections: usize,
    },
    /// Becomes another program, which ends when its parent ends.
    #[command(hide = true, name = BOUND_COMMAND)]
    Bound {
        program: OsString,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

impl Arguments {
    /// The groups of measurements to make.
    pub(crate) fn selected(&self) -> Vec<Group> {
        if self.groups.is_empty() {
            return Group::value_variants().to_vec();
        }
        self.groups.clone()
    }

    /// The settings, if one thread can have `per_thread` connections.
    pub(crate) fn settings(&self, per_thread: usize) -> Result<Settings> {
        let number = |given: Option<u32>, full: u32, quick: u32| {
            given.unwrap_or(if self.quick { quick } else { full }) as usize
        };
        let time =
            |full_ms, quick_ms| Duration::from_millis(if self.quick { quick_ms } else { full_ms });
        let connections = number(self.connections, 15_000, 1_000);
        let threads_needed = connections.div_ceil(per_thread);
        let server = match &self.server {
            Some(path) => path.clone(),
            None => beside_this("throng")?,
        };
        Ok(Settings {
            server,
            is_raw_only: self.raw_only,
            repeats: number(self.repeats, 5, 1),
            rounds: number(self.rounds, 8, 3),
            connections,
            connections_low: (connections / 15).max(1),
            senders: threads_needed.max(self.senders as usize),
            client_threads: threads_needed.max(self.client_threads as usize),
            gap: time(100, 20),
            heartbeat: time(25_000, 1_000),
            idle_window: time(30_000, 1_000),
            health_window: time(3_000, 500),
            publishes: number(None, 20_000, 1_000),
        })
    }
}

fn beside_this(name: &str) -> Result<PathBuf> {
    let this = std::env::current_exe().context("cannot find the file of this program")?;
    Ok(this.with_file_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Arguments {
        Arguments::try_parse_from([&["throng-baseline"], words].concat()).expect("valid arguments")
    }

    #[test]
    fn everything_is_measured_by_default() {
        assert_eq!(parse(&[]).selected().len(), 7);
        assert_eq!(parse(&["fanout", "idle"]).selected(), [Group::Fanout, Group::Idle]);
        assert!(Arguments::try_parse_from(["throng-baseline", "nothing"]).is_err());
    }

    #[test]
    fn connections_have_the_grammar_of_counts() {
        for text in ["15000", "15k", "15,000"] {
            assert_eq!(parse(&["--connections", text]).connections, Some(15_000), "{text}");
        }
        for text in ["1", "3M", "many"] {
            assert!(connections(text).is_err(), "{text}");
        }
    }

    #[test]
    fn threads_follow_from_the_descriptor_limit() {
        let settings = parse(&["--connections", "60000"]).settings(19_872).expect("settings");
        assert_eq!((settings.senders, settings.client_threads), (4, 4));
        assert_eq!(settings.connections_low, 4_000);
        let settings = parse(&[]).settings(19_872).expect("settings");
        assert_eq!((settings.senders, settings.client_threads), (2, 1));
        assert_eq!((settings.connections_low, settings.connections), (1_000, 15_000));
    }

    #[test]
    fn a_bound_program_keeps_its_own_flags() {
        let arguments = parse(&["bound", "/bin/x", "serve", "--heartbeat", "0"]);
        let Some(Inner::Bound { arguments, .. }) = arguments.inner else { panic!("not bound") };
        assert_eq!(arguments, ["serve", "--heartbeat", "0"]);
    }
}
