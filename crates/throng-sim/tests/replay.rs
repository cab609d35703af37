//! The same seed gives the same trace.

use throng_sim::run;

#[test]
fn the_same_seed_gives_the_same_trace() {
    let mut traces = Vec::new();
    for seed in 1000..1024 {
        let (first, second) = (run::seed(seed, None), run::seed(seed, None));
        assert_eq!(first.hash, second.hash, "seed {seed} does not replay");
        traces.push(first.hash);
    }
    traces.sort_unstable();
    traces.dedup();
    assert_eq!(traces.len(), 24, "seeds give different traces");
}
