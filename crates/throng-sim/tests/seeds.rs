//! Many seeds: nobody objects, and nothing interesting is left out.

use throng_sim::notes::Coverage;
use throng_sim::run;

#[test]
fn everybody_gets_what_was_promised() {
    let outcomes = run::all(run::seeds());
    let mut coverage = Coverage::default();
    outcomes.iter().for_each(|outcome| coverage.merge(&outcome.coverage));
    eprintln!("{}", coverage.report());
    for outcome in &outcomes {
        if let Some((objection, _)) = &outcome.failure {
            eprintln!("seed {}: {objection}", outcome.seed);
        }
    }
    let failures: Vec<_> = outcomes.iter().filter_map(run::Outcome::report).collect();
    let seeds: Vec<_> =
        outcomes.iter().filter(|it| it.failure.is_some()).map(|it| it.seed).collect();
    assert!(failures.is_empty(), "{}\nfailed: {seeds:?}", failures[0]);
}
