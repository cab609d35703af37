//! The oracle can fail: what a client receives is spoilt on the way, and somebody must object.

use throng_sim::client::Tamper;
use throng_sim::run;

/// Plays seeds with one message spoilt. Returns in how many something was spoilt, and in how many
/// of these somebody objected.
fn play(tamper: Tamper) -> (usize, usize) {
    let outcomes: Vec<_> = (0..40).map(|seed| run::seed(seed, Some(tamper))).collect();
    let spoilt = outcomes.iter().filter(|outcome| outcome.is_spoilt);
    let objected = spoilt.clone().filter(|outcome| outcome.failure.is_some()).count();
    (spoilt.count(), objected)
}

#[test]
fn a_message_that_comes_twice_is_objected_to() {
    let (spoilt, objected) = play(Tamper::Repeat);
    assert!(spoilt >= 30 && objected == spoilt, "{objected} of {spoilt}");
}

#[test]
fn messages_that_change_places_are_objected_to() {
    let (spoilt, objected) = play(Tamper::Swap);
    assert!(spoilt >= 20 && objected == spoilt, "{objected} of {spoilt}");
}

#[test]
fn a_message_that_is_changed_is_objected_to() {
    let (spoilt, objected) = play(Tamper::Change);
    assert!(spoilt >= 30 && objected == spoilt, "{objected} of {spoilt}");
}

#[test]
fn a_message_that_is_lost_is_objected_to() {
    // But for those whose client was gone before it could notice.
    let (spoilt, objected) = play(Tamper::Drop);
    assert!(spoilt >= 30 && objected * 10 >= spoilt * 8, "{objected} of {spoilt}");
}
