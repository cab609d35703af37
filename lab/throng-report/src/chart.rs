//! Charts as SVG in HTML figures, without scripts; each carries its numbers as a table.
//!
//! | module | contents |
//! |---|---|
//! | [`axis`] | scales and round ticks |
//! | [`figure`] | a drawing with its title, legend and table |
//! | [`lines`] | lines over time or size |
//! | [`percentiles`] | percentile curves |
//! | [`spread`] | histograms and ranges |
//! | [`pairs`] | two values of each thing, side by side |
//!
//! Colours come from the style sheet of [`page`](crate::page).

pub mod axis;
pub mod figure;
pub mod lines;
pub mod pairs;
pub mod percentiles;
pub mod spread;

pub use figure::{Area, Figure};
