//! Long-polls.

use throng_edge::limits::Limits;
use throng_edge::{Counter, Settings};

use crate::rig::Rig;

/// The worker follows the channel already, and the message is still in its queue.
#[test]
fn a_poll_gets_the_messages_in_the_log() {
    for wait in ["0", "30"] {
        let mut rig = Rig::new();
        let follower = rig.get("/channels/a");
        rig.publish("a", "first", None);
        rig.worker.work(true);
        rig.publish("a", "second", None);
        assert!(!rig.queue.is_empty(), "it is still on its way");
        let answer = rig.get(&format!("/channels/a?since=z-1&wait={wait}")).received();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("Throng-Id: z-2\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\nsecond"), "{answer}");
        assert!(!follower.received().contains("second"));
        rig.worker.work(true);
        assert_eq!(follower.received().matches("second").count(), 1);
    }
}

#[test]
fn a_poll_resumes_where_the_one_before_ended() {
    let mut rig = Rig::new();
    rig.publish("a", "1", None);
    rig.publish("b", "2", None);
    let answer = rig.get("/subscribe?channel=a&channel=b&history=5&wait=0").received();
    assert!(answer.contains("Throng-Id: z-1,z-1\r\n") && answer.ends_with("\r\n\r\n1\n2"));
    let answer = rig.get("/subscribe?channel=a&channel=b&since=z-1,z-1&wait=0").received();
    assert!(answer.starts_with("HTTP/1.1 204") && answer.contains("Throng-Id: z-1,z-1\r\n"));
    let waiting = rig.get("/subscribe?channel=a&channel=b&since=z-1,z-1&wait=9");
    assert_eq!(waiting.received(), "");
    rig.publish("b", "3", None);
    rig.worker.work(true);
    let answer = waiting.received();
    assert!(answer.contains("Throng-Id: z-1,z-2\r\n") && answer.ends_with("\r\n\r\n3"));
}

/// The worker has answered the first of two requests when it is held up for longer than it lets a
/// connection be idle.
#[test]
fn a_request_that_waits_for_its_turn_is_not_too_slow() {
    let mut rig = Rig::new();
    let poll = "GET /channels/a?wait=300 HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let client = rig.connect(&poll.repeat(2));
    rig.publish("a", "first", None);
    assert!(rig.worker.work(true), "the second request has its turn in the next slice");
    assert!(client.received().ends_with("\r\n\r\nfirst"));
    rig.pass(2000);
    assert_eq!(client.received(), "", "it waits for a message");
    rig.publish("a", "second", None);
    rig.work();
    assert!(client.received().ends_with("\r\n\r\nsecond"));
    assert_eq!(rig.count(Counter::RefusedTooSlow), 0);
}

/// A published message is never run as a script in the server's own origin.
#[test]
fn a_browser_does_not_run_a_message() {
    let mut rig = Rig::new();
    rig.publish("a", "<script>alert(1)</script>", None);
    let answer = rig.get("/channels/a?history=1&wait=0").received();
    for line in [
        "X-Content-Type-Options: nosniff\r\n",
        "Content-Security-Policy: sandbox; default-src 'none'\r\n",
    ] {
        assert!(answer.contains(line), "{answer}");
    }
    for target in ["/channels/a", "/channels/a?transport=sse", "/channels/%00"] {
        let head = rig.get(target).received();
        assert!(head.contains("X-Content-Type-Options: nosniff\r\n"), "{head}");
    }
}

/// The client chooses the length of the origin.
#[test]
fn the_origin_of_a_waiting_poll_counts_as_buffered() {
    let limits = Limits { max_buffered_bytes: 100_000, ..Limits::default() };
    let mut rig = Rig::with(Settings { limits, ..Settings::for_tests() });
    let origin = format!("http://{}.localhost", "a".repeat(10_000));
    let poll =
        format!("GET /channels/a?wait=9 HTTP/1.1\r\nHost: localhost\r\nOrigin: {origin}\r\n\r\n");
    let waiting: Vec<_> = (0..20).map(|_| rig.connect(&poll)).collect();
    let refused =
        waiting.iter().filter(|client| client.received().starts_with("HTTP/1.1 503 ")).count();
    assert_eq!(refused, 11, "nine times 10,000 bytes may be held");
    for client in &waiting {
        rig.hang_up(client);
    }
    let others: Vec<_> = (0..9).map(|_| rig.connect(&poll)).collect();
    assert!(others.iter().all(|client| client.received().is_empty()), "all is given back");
}
