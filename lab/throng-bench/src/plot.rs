//! Builds the plots of an outcome: values over the time of a flood, or by the number of clients.

use throng_flood::report::{Report, Sample};
use throng_report::Unit;

use crate::results::{Plot, PlotLine};

/// Names of the horizontal axes in JSON.
const TIME: &str = "time";
const CLIENTS: &str = "clients";

/// Points of a line: x, and the value there if it was measured.
pub(crate) type Points = Vec<(f64, Option<f64>)>;

impl Plot {
    /// A plot over time, in seconds.
    pub(crate) fn over_time(id: impl Into<String>, title: &str, unit: Unit) -> Plot {
        Plot::of(id.into(), title, unit, TIME)
    }

    /// A plot by the number of clients.
    pub(crate) fn by_clients(id: impl Into<String>, title: &str, unit: Unit) -> Plot {
        Plot::of(id.into(), title, unit, CLIENTS)
    }

    fn of(id: String, title: &str, unit: Unit, x_axis: &str) -> Plot {
        Plot {
            id,
            title: title.to_owned(),
            unit: unit.name().to_owned(),
            x_axis: x_axis.to_owned(),
            ..Plot::default()
        }
    }

    /// The same with a note on how to read it.
    pub(crate) fn note(self, note: &str) -> Plot {
        Plot { note: note.to_owned(), ..self }
    }

    /// The same with a logarithmic vertical axis.
    pub(crate) fn log(self) -> Plot {
        Plot { is_log: true, ..self }
    }

    /// The same with a logarithmic horizontal axis.
    pub(crate) fn log_x(self) -> Plot {
        Plot { is_log_x: true, ..self }
    }

    /// The same with another line.
    pub(crate) fn line(mut self, name: &str, points: Points) -> Plot {
        self.lines.push(PlotLine { name: name.to_owned(), points });
        self
    }

    /// Whether the horizontal axis is time.
    pub(crate) fn is_over_time(&self) -> bool {
        self.x_axis == TIME
    }
}

/// A value of each sample of a flood.
pub(crate) fn samples(report: &Report, value: impl Fn(&Sample) -> Option<f64>) -> Points {
    report.series.iter().map(|sample| (sample.at_s, value(sample))).collect()
}

/// A horizontal line at a published value, as long as the flood.
pub(crate) fn level(report: &Report, value: f64) -> Points {
    samples(report, |_| Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plots_are_built() {
        let series = [1.0, 2.0].map(|at_s| Sample { at_s, active: 7, ..Sample::default() });
        let report = Report { series: series.to_vec(), ..Report::default() };
        let plot = Plot::over_time("a", "A", Unit::Bytes)
            .note("n")
            .log()
            .line("active", samples(&report, |sample| Some(sample.active as f64)))
            .line("published", level(&report, 9.0));
        assert!(plot.is_over_time() && plot.is_log && !plot.is_log_x);
        assert_eq!((plot.unit.as_str(), plot.note.as_str()), ("bytes", "n"));
        assert_eq!(plot.lines[0].points, [(1.0, Some(7.0)), (2.0, Some(7.0))]);
        assert_eq!(plot.lines[1].points, [(1.0, Some(9.0)), (2.0, Some(9.0))]);
        let plot = Plot::by_clients("b", "B", Unit::Count).log_x();
        assert!(!plot.is_over_time() && plot.is_log_x && !plot.is_log);
    }
}
