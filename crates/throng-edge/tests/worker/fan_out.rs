//! Fan-outs, slice by slice.

use throng_edge::Limits;

use crate::rig::Rig;

const MESSAGES: usize = 40;
const MESSAGE_BYTES: usize = 60_000;

fn text(number: usize) -> String {
    format!("<{number}>{}", "x".repeat(MESSAGE_BYTES))
}

#[test]
fn a_visit_writes_at_most_a_slice_and_the_rest_is_not_lost() {
    let mut rig = Rig::new();
    let readers = [rig.get("/channels/a"), rig.get("/channels/a")];
    for reader in &readers {
        reader.received();
    }
    for number in 0..MESSAGES {
        rig.publish("a", &text(number), None);
    }
    // A visit ends with the write that uses up the slice, and that write with the message that
    // reaches its limit.
    let max_bytes = Limits::default().slice_bytes + text(MESSAGES).len() + 100;
    let mut received = [const { String::new() }; 2];
    let mut has_more = true;
    while has_more {
        has_more = rig.worker.work(true) || rig.worker.is_fanning_out();
        for (reader, received) in readers.iter().zip(&mut received) {
            let bytes = reader.received();
            assert!(bytes.len() <= max_bytes, "{} bytes in one visit", bytes.len());
            received.push_str(&bytes);
            assert!(!received.is_empty(), "each has its turn");
        }
    }
    for received in received {
        let tags = received.split('<').skip(1).filter_map(|part| part.split_once('>'));
        let numbers: Vec<usize> = tags.filter_map(|(number, _)| number.parse().ok()).collect();
        assert_eq!(numbers, (0..MESSAGES).collect::<Vec<_>>());
    }
}
