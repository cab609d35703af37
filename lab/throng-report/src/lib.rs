//! Reports of measurements, shared by the load generator, the benchmarks and the baseline:
//! distributions, charts, HTML pages, terminal tables, CSV, files and comparisons.
//!
//! This crate knows how to show measurements, and nothing about what was measured: no plan, no
//! profile, no server. Numbers are formatted by [`throng_units::format`] and coloured by
//! [`throng_units::paint`], which the server's own commands use too.
//!
//! # Layout
//!
//! | module | contents |
//! |---|---|
//! | [`distribution`] | percentiles and buckets of a latency histogram |
//! | [`environment`] | the machine that a run was made on |
//! | [`unit`], [`chart`] | units of values; SVG charts |
//! | [`html`], [`page`] | HTML elements, and the page around them |
//! | [`grid`], [`csv`] | tables for terminals and for spreadsheets |
//! | [`file`] | versioned JSON files |
//! | [`terminal`] | prints results and errors |
//! | [`compare`] | several runs side by side |
//!
//! # Invariants
//!
//! - A value that was not measured is absent: `None`, a dash, an empty cell, no chart. Never zero.
//! - Text from outside is escaped: in HTML by [`html::escaped`], on a terminal by the caller with
//!   [`throng_units::paint::sanitized`].

pub mod chart;
pub mod compare;
pub mod csv;
pub mod distribution;
pub mod environment;
pub mod file;
pub mod grid;
pub mod html;
pub mod page;
pub mod terminal;
pub mod unit;

pub use distribution::Distribution;
pub use environment::Environment;
pub use unit::Unit;
