//! Percentile curves: how latency grows towards the rarest values.

use super::axis::Axis;
use super::figure::{Area, Figure, axes};
use super::lines::path;
use crate::distribution::Distribution;
use crate::unit::Unit;

/// Percentile curves of the named distributions; `None` if all are empty.
pub fn curve(
    id: &str,
    title: &str,
    area: Area,
    distributions: &[(String, &Distribution)],
) -> Option<Figure> {
    let drawn: Vec<_> = distributions
        .iter()
        .map(|(name, distribution)| (name, distribution, distribution.tail()))
        .filter(|(_, _, tail)| !tail.is_empty())
        .collect();
    let count = drawn.iter().map(|(_, distribution, _)| distribution.count).max()?;
    let max = drawn.iter().map(|(_, distribution, _)| distribution.max).fold(0.0, f64::max);
    let min = drawn.iter().map(|(_, distribution, _)| distribution.min);
    let (left, right) = area.horizontal();
    let (floor, ceiling) = area.vertical();
    let x = Axis::percentiles(count, left, right);
    let y = Axis::log(
        Unit::Milliseconds,
        min.fold(f64::INFINITY, f64::min).max(1e-3),
        max,
        floor,
        ceiling,
    );
    let mut drawing = axes(&area, &x, &y);
    let mut rows = Vec::new();
    for (style, (name, distribution, tail)) in drawn.iter().enumerate().rev() {
        let start = (1.0, distribution.min);
        let places = std::iter::once(&start).chain(tail);
        drawing.push_str(&path(
            places.map(|&(above, ms)| Some((x.scale.at(above), y.scale.at(ms)))),
            style,
        ));
        let Distribution { p50, p90, p99, p999, max, .. } = distribution;
        let cells = [*p50, *p90, *p99, *p999, *max].map(|ms| Unit::Milliseconds.show(ms));
        rows.insert(0, std::iter::once((*name).clone()).chain(cells).collect());
    }
    Some(Figure {
        id: id.to_owned(),
        title: title.to_owned(),
        note: "Each step to the right is ten times as rare.".to_owned(),
        legend: drawn.iter().map(|(name, ..)| (*name).clone()).collect(),
        drawing,
        size: (area.width, area.height),
        headings: ["of", "p50", "p90", "p99", "p99.9", "max"].map(str::to_owned).to_vec(),
        rows,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_values_there_is_no_curve() {
        assert!(curve("a", "A", Area::HALF, &[]).is_none());
        let empty = Distribution::default();
        assert!(curve("a", "A", Area::HALF, &[(String::new(), &empty)]).is_none());
    }
}
