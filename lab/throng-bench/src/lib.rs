//! `throng bench`: reruns the classic benchmarks of push servers against Throng.
//!
//! Each benchmark starts a server as a child process, loads it with the clients of
//! [`throng_flood`], and compares its measurements with the published values of the original.
//!
//! # Layout
//!
//! | module | contents |
//! |---|---|
//! | [`cli`] | the command `throng bench` |
//! | `benchmarks`, `file` | all benchmarks; one as a file: story, size, runs, measures |
//! | `expression`, `figures` | expressions of files; figures by name; the table of measures |
//! | `plan` | the plan of a run, a `throng flood` plan |
//! | `execution`, `context` | executes the runs; server, load and figures of the current one |
//! | `background`, `requests`, `status` | plain requests and a status page reader beside a load |
//! | `programs` | what no plan can say |
//! | `server`, `directory`, `keys` | the server as a child process; its settings, data and keys |
//! | `raw_loop` | the least that a push server can do, as a yardstick |
//! | `executables`, [`bound`] | programs that benchmarks start; their end with this one |
//! | `http` | a plain HTTP client |
//! | `preflight`, `namespace` | whether this machine can run it; a network namespace |
//! | `faults`, `results` | what went wrong, in sentences; the results, stored as JSON |
//! | `report`, `csv` | views of the results: terminal, page, comparison; CSV |
//! | `listing` | the list of benchmarks, and the plan of each |
//!
//! # Invariants
//!
//! * Every failure and every loss fails the benchmark and is reported.
//! * No server outlives its benchmark.
//! * A value that was not measured is absent, never zero.

mod background;
mod benchmarks;
pub mod bound;
pub mod cli;
mod context;
mod csv;
mod directory;
mod executables;
mod execution;
mod expression;
mod faults;
mod figures;
mod file;
mod http;
mod keys;
mod listing;
mod namespace;
mod plan;
mod preflight;
mod programs;
mod raw_loop;
mod report;
mod requests;
mod results;
mod server;
mod status;
