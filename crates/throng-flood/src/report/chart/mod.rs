//! Charts for pages: drawings without scripts, each with the table behind it.
//!
//! Whoever has figures to show draws them here: a flood its report, the benchmarks theirs.
//!
//! | module | what it is |
//! |---|---|
//! | [`scale`] | units, scales, round ticks |
//! | [`figure`] | a chart with its title, legend and the table behind it |
//! | [`lines`] | lines over time or size, percentile curves |
//! | [`spread`] | histograms and ranges |
//! | [`pairs`] | two values of each thing beside each other |
//!
//! The colours are those of the style sheet of [`page`](super::page).

pub mod figure;
pub mod lines;
pub mod pairs;
pub mod scale;
pub mod spread;
