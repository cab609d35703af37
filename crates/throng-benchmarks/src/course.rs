//! Making the courses of an outcome: measures over the time of a flood, or by the number of
//! clients.

use throng_flood::report::{Report, Sample};
use throng_report::Unit;

use crate::results::{Course, CourseLine};

/// What is across, as JSON names it.
const TIME: &str = "time";
const CLIENTS: &str = "clients";

/// What a line goes through: what is across, and the value there, if there is one.
pub type Points = Vec<(f64, Option<f64>)>;

impl Course {
    /// Measures over time, in seconds.
    pub fn over_time(id: impl Into<String>, title: &str, unit: Unit) -> Course {
        Course::of(id.into(), title, unit, TIME)
    }

    /// Measures by the number of clients.
    pub fn by_clients(id: impl Into<String>, title: &str, unit: Unit) -> Course {
        Course::of(id.into(), title, unit, CLIENTS)
    }

    fn of(id: String, title: &str, unit: Unit, across: &str) -> Course {
        Course {
            id,
            title: title.to_owned(),
            unit: unit.name().to_owned(),
            across: across.to_owned(),
            ..Course::default()
        }
    }

    /// With what one should know to read it.
    pub fn noted(self, note: &str) -> Course {
        Course { note: note.to_owned(), ..self }
    }

    /// Each step up is ten times as much.
    pub fn log(self) -> Course {
        Course { is_log: true, ..self }
    }

    /// Each step to the right is ten times as much.
    pub fn log_across(self) -> Course {
        Course { is_log_across: true, ..self }
    }

    /// With a line more.
    pub fn line(mut self, name: &str, points: Points) -> Course {
        self.lines.push(CourseLine { name: name.to_owned(), points });
        self
    }

    /// Whether it is over time.
    pub fn is_over_time(&self) -> bool {
        self.across == TIME
    }
}

/// A measure at each sample of a flood.
pub fn samples(report: &Report, measure: impl Fn(&Sample) -> Option<f64>) -> Points {
    report.series.iter().map(|sample| (sample.at_s, measure(sample))).collect()
}

/// A level line: a published value beside the samples of a flood.
pub fn level(report: &Report, value: f64) -> Points {
    samples(report, |_| Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_course_is_as_it_was_told() {
        let series = [1.0, 2.0].map(|at_s| Sample { at_s, active: 7, ..Sample::default() });
        let report = Report { series: series.to_vec(), ..Report::default() };
        let course = Course::over_time("a", "A", Unit::Bytes)
            .noted("n")
            .log()
            .line("active", samples(&report, |sample| Some(sample.active as f64)))
            .line("published", level(&report, 9.0));
        assert!(course.is_over_time() && course.is_log && !course.is_log_across);
        assert_eq!((course.unit.as_str(), course.note.as_str()), ("bytes", "n"));
        assert_eq!(course.lines[0].points, [(1.0, Some(7.0)), (2.0, Some(7.0))]);
        assert_eq!(course.lines[1].points, [(1.0, Some(9.0)), (2.0, Some(9.0))]);
        let course = Course::by_clients("b", "B", Unit::Count).log_across();
        assert!(!course.is_over_time() && course.is_log_across && !course.is_log);
    }
}
