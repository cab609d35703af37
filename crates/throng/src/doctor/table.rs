//! Checks as a table for people.

use std::fmt::Write as _;

use throng_host::preflight::{Check, CheckVerdict};
use throng_units::paint::{Ink, Paint};

/// The checks, worst verdict first. Checks that are not `ok` say why they matter.
pub(super) fn table(checks: &[Check], paint: Paint) -> String {
    let mut rows: Vec<&Check> = checks.iter().collect();
    rows.sort_by_key(|check| std::cmp::Reverse(check.verdict));
    let width = |column: fn(&Check) -> &str, head: &str| {
        let widths = rows.iter().map(|check| column(check).chars().count());
        widths.max().unwrap_or_default().max(head.len())
    };
    let name_width = width(|check| check.name, "");
    let found_width = width(found, "here");
    let mut text = String::new();
    let head = format!("{:7}  {:name_width$}  {:found_width$}  needed", "", "", "here");
    let _ = writeln!(text, "{}", paint.ink(Ink::Dim, head));
    for check in rows {
        let ink = match check.verdict {
            CheckVerdict::Ok => Ink::GOOD,
            CheckVerdict::Unknown => Ink::Dim,
            CheckVerdict::Should => Ink::WARNING,
            CheckVerdict::Must => Ink::BAD,
        };
        let verdict = paint.ink(ink, format!("{:7}", check.verdict));
        let (name, here, needed) = (check.name, found(check), &check.needed);
        let row = format!("  {name:name_width$}  {here:found_width$}  {needed}");
        let _ = writeln!(text, "{verdict}{}", row.trim_end());
        if check.verdict != CheckVerdict::Ok {
            let _ = writeln!(text, "{}", paint.ink(Ink::Dim, format!("         {}", check.why)));
        }
    }
    text
}

fn found(check: &Check) -> &str {
    check.found.as_deref().unwrap_or("unknown")
}
