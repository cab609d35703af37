//! Measures by size or step, for spreadsheets.

use std::fmt::Write as _;

use crate::results::Results;

/// Every table: a line of names, a line for each step, and an empty line before the next table.
/// The first column is the benchmark's name. Empty where nothing could be measured.
pub fn tables(results: &Results) -> String {
    let all = results
        .benchmarks
        .iter()
        .flat_map(|outcome| outcome.tables.iter().map(move |table| (&outcome.name, table)));
    let blocks = all.map(|(name, table)| {
        let names = table.columns.iter().map(|column| quoted(column));
        let mut text = format!("benchmark,{}\n", names.collect::<Vec<_>>().join(","));
        for row in &table.rows {
            text.push_str(&quoted(name));
            for value in row {
                // Writing to a string does not fail.
                let _ = match value {
                    Some(value) => write!(text, ",{value}"),
                    None => write!(text, ","),
                };
            }
            text.push('\n');
        }
        text
    });
    blocks.collect::<Vec<_>>().join("\n")
}

fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Outcome, Table};

    #[test]
    fn every_table_is_a_block() {
        let table = |first: f64| Table {
            title: "Steps".to_owned(),
            columns: vec!["clients".to_owned(), "a client, ms".to_owned()],
            rows: vec![vec![Some(first), Some(0.25)], vec![Some(2.0), None]],
        };
        let outcome = Outcome {
            name: "chat".to_owned(),
            tables: vec![table(10.0), table(20.0)],
            ..Outcome::default()
        };
        let results = Results { benchmarks: vec![outcome], ..Results::default() };
        assert_eq!(
            tables(&results),
            "benchmark,clients,\"a client, ms\"\nchat,10,0.25\nchat,2,\n\n\
             benchmark,clients,\"a client, ms\"\nchat,20,0.25\nchat,2,\n"
        );
        assert_eq!(tables(&Results::default()), "");
    }
}
