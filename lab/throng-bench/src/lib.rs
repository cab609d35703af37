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
//! | `definition` | what a benchmark is: story, measurements, size |
//! | `benchmarks` | all benchmarks, one per file |
//! | `context` | a benchmark, and its context while it runs: server, load, results so far |
//! | `flood`, `plot` | phases of floods, values and plots from their reports |
//! | `server` | the server as a child process |
//! | `program` | where the programs are that benchmarks start |
//! | `nats` | nats-servers as child processes |
//! | [`bound`] | how other programs end with this one |
//! | `keys` | files with keys, for servers that check tokens |
//! | `pollers`, `requests`, `status` | long-poll clients, plain requests, a status page reader |
//! | `preflight`, `namespace` | whether this machine can run it; a network namespace |
//! | `results` | the results, stored as JSON |
//! | `table`, `csv`, `html`, `compare` | views of the results |
//!
//! # Invariants
//!
//! * Every failure and every loss fails the benchmark and is reported.
//! * No server outlives its benchmark.
//! * A value that was not measured is absent, never zero.

mod benchmarks;
pub mod bound;
pub mod cli;
mod compare;
mod context;
mod csv;
mod definition;
mod flood;
mod html;
mod keys;
mod namespace;
mod nats;
mod plot;
mod pollers;
mod preflight;
mod program;
mod requests;
mod results;
mod server;
mod status;
mod table;
