//! The classic benchmarks of push servers, rerun against Throng: `throng bench`.
//!
//! Each benchmark starts a server of its own as a child process, loads it with the clients of
//! [`throng_flood`], and puts what it measures beside what was published by whoever did it first.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | [`cli`] | `throng bench`: from the command line to the results |
//! | [`benchmark`] | what a benchmark is: its story, its figures, its size |
//! | [`benchmarks`] | all of them, a file each |
//! | [`stage`] | what a benchmark has while it runs: server, load, places for its findings |
//! | [`measures`] | what is read off the reports of floods |
//! | [`course`] | measures over time or size, for charts |
//! | [`server`] | the server as a child process |
//! | [`pollers`] | long-polls, a step at a time |
//! | [`requests`] | plain requests beside the load, at their times |
//! | [`status`] | a reader of the live status page |
//! | [`room`] | whether this machine allows it |
//! | `namespace` | the same command once more, in a network of its own |
//! | [`results`] | what comes out, as JSON |
//! | [`table`], [`csv`], [`html`], [`compare`] | what is shown of it |
//!
//! # Invariants
//!
//! * Nothing that failed or got lost is left out: it makes the benchmark fail, with the reason.
//! * No server outlives its benchmark, whatever ends it.
//! * A figure that was not measured is absent, never zero.

pub mod benchmark;
pub mod benchmarks;
pub mod cli;
pub mod compare;
pub mod course;
pub mod csv;
pub mod html;
pub mod measures;
mod namespace;
pub mod pollers;
pub mod requests;
pub mod results;
pub mod room;
pub mod server;
pub mod stage;
pub mod status;
pub mod table;
