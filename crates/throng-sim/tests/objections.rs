//! The checks can fail: each test alters what a client receives, and a check must object.

use throng_sim::{Tamper, run};

/// Runs seeds that each alter one message. Returns how many were altered, and how many of these
/// failed.
fn play(tamper: Tamper) -> (usize, usize) {
    let outcomes: Vec<_> = (0..40).map(|seed| run::seed(seed, Some(tamper))).collect();
    let altered = outcomes.iter().filter(|outcome| outcome.is_tampered);
    let objected = altered.clone().filter(|outcome| outcome.failure.is_some()).count();
    (altered.count(), objected)
}

#[test]
fn a_repeated_message_fails() {
    let (altered, objected) = play(Tamper::Repeat);
    assert!(altered >= 30 && objected == altered, "{objected} of {altered}");
}

#[test]
fn swapped_messages_fail() {
    let (altered, objected) = play(Tamper::Swap);
    assert!(altered >= 20 && objected == altered, "{objected} of {altered}");
}

#[test]
fn a_changed_message_fails() {
    let (altered, objected) = play(Tamper::Change);
    assert!(altered >= 30 && objected == altered, "{objected} of {altered}");
}

#[test]
fn a_lost_message_fails() {
    // A client that leaves before it can notice does not object.
    let (altered, objected) = play(Tamper::Drop);
    assert!(altered >= 30 && objected * 10 >= altered * 8, "{objected} of {altered}");
}
