//! Reports of measurements, shared by the load generator, the benchmarks and the baseline: tables
//! for terminals, HTML pages with charts, CSV, files and comparisons.
//!
//! This crate knows how to show measurements, and nothing about what was measured: no plan, no
//! profile, no server. Numbers are formatted by [`throng_units::format`] and coloured by
//! [`throng_units::paint`], which the server's own commands use too.
//!
//! # Layout
//!
//! | module | contents |
//! |---|---|
//! | [`page`] | a report as sections, written to a terminal or as an HTML page |
//! | [`chart`] | the data of charts, which the page's script draws |
//! | [`compare`] | several runs side by side |
//! | [`distribution`] | percentiles and buckets of a latency histogram |
//! | [`environment`] | the machine that a run was made on |
//! | [`unit`] | units of values |
//! | [`grid`], [`csv`] | tables for terminals and for spreadsheets |
//! | [`file`] | versioned JSON files |
//! | [`terminal`] | prints results and errors |
//!
//! # Invariants
//!
//! - A value that was not measured is absent: `None`, a dash, an empty cell, no chart. Never zero.
//! - Text from outside is escaped: on a page by its script, which makes text nodes of it, on a
//!   terminal by [`page`] with [`throng_units::paint::sanitized`].

pub mod chart;
pub mod compare;
pub mod csv;
pub mod distribution;
pub mod environment;
pub mod file;
pub mod grid;
pub mod page;
pub mod terminal;
pub mod unit;

pub use distribution::Distribution;
pub use environment::Environment;
pub use unit::Unit;
