//! Tables of results as CSV.

use throng_report::csv::CsvRow;

use crate::results::Results;

/// Every table as a block: headings, a line for each row, and an empty line before the next block.
/// The first column holds the benchmark's name. A missing value is an empty cell.
pub(crate) fn tables(results: &Results) -> String {
    let all = results
        .benchmarks
        .iter()
        .flat_map(|outcome| outcome.tables.iter().map(move |table| (&outcome.name, table)));
    let blocks = all.map(|(name, table)| {
        let mut headings = CsvRow::default();
        headings.text("benchmark");
        table.columns.iter().for_each(|column| {
            headings.text(column);
        });
        let rows = table.rows.iter().map(|values| {
            let mut row = CsvRow::default();
            row.text(name);
            values.iter().for_each(|value| {
                row.optional(*value);
            });
            row.end()
        });
        std::iter::once(headings.end()).chain(rows).collect::<String>()
    });
    blocks.collect::<Vec<_>>().join("\n")
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
