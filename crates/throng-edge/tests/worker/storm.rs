//! Clients that come faster than they are served, and the moments that they are told.

use std::sync::Arc;
use std::time::{Duration, Instant};

use throng_core::{Admission, AdmissionSettings, QueueLook, QueueWatch};
use throng_edge::{Counter, Settings};

use crate::rig::{Client, Rig};

const WAIT: Duration = Duration::from_millis(500);

/// A rig whose clients are told moments at this rate.
fn rig(rate: u64) -> (Rig, Arc<Admission>) {
    let settings = AdmissionSettings { wait: WAIT, rate: Some(rate) };
    let admission = Arc::new(Admission::new(settings));
    let settings = Settings { admission: Arc::clone(&admission), ..Settings::for_tests() };
    let mut rig = Rig::with(settings);
    rig.pass(1);
    (rig, admission)
}

/// The queue of the worker's plain connections is long from now on, or short.
fn set_queue(rig: &mut Rig, is_long: bool) {
    rig.worker.set_crowd(false, queue(is_long));
}

fn queue(is_long: bool) -> QueueWatch {
    let mut queue = QueueWatch::default();
    if is_long {
        let (at, waited, rate) = (Instant::now(), 2 * WAIT, Some(10_000));
        // At the second look only the last ones are left, which take no time.
        for queued in [10_000, 0] {
            queue.observe(WAIT, QueueLook { at, waited, queued, accepted: 64, rate });
        }
    }
    queue
}

fn is_let_in(client: &Client) -> bool {
    let received = client.received();
    assert!(received.starts_with("HTTP/1.1 "), "{received}");
    let is_told = received.starts_with("HTTP/1.1 503 ") && received.contains("\r\nRetry-After: ");
    assert!(is_told != received.contains("\r\nThrong-Id: "), "{received}");
    !is_told
}

#[test]
fn as_many_get_in_as_were_told_once_their_moments_come() {
    let (mut rig, admission) = rig(10);
    set_queue(&mut rig, true);
    let told: Vec<Client> = (0..5).map(|_| rig.get("/channels/a")).collect();
    assert!(told.iter().all(|client| !is_let_in(client) && client.is_closed()));
    assert_eq!((admission.told(), rig.count(Counter::RefusedStorm)), (5, 5));
    // Half a second for the last of them, and a quarter for the first.
    assert_eq!(admission.ahead_ms(rig.now_ms()), 750);
    rig.pass(8);
    let back: Vec<Client> = (0..8).map(|_| rig.get("/channels/a")).collect();
    let let_in = back.iter().filter(|client| is_let_in(client)).count();
    assert_eq!(let_in, 5, "whoever they are");
    assert_eq!(rig.count(Counter::RefusedStorm), 8, "the others are told later moments");
    set_queue(&mut rig, false);
    assert!(is_let_in(&rig.get("/channels/a")));
}

#[test]
fn only_first_subscriptions_are_told() {
    let (mut rig, admission) = rig(1);
    let kept = rig.get("/channels/a?wait=0");
    assert!(kept.received().starts_with("HTTP/1.1 204 "));
    set_queue(&mut rig, true);
    rig.send(&kept, b"GET /channels/a?wait=0 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(kept.received().starts_with("HTTP/1.1 204 "), "it has its place");
    rig.get("/health");
    assert_eq!(rig.count(Counter::HandedOffToControl), 1, "it does not subscribe");
    assert!(is_let_in(&rig.get("/status/stream")));
    assert_eq!(admission.told(), 0);
    assert!(!is_let_in(&rig.get("/channels/a?wait=9")), "a poll subscribes like others");
}

#[test]
fn a_short_queue_does_not_hide_the_other_listeners() {
    let (mut rig, _) = rig(10);
    rig.worker.set_crowd(true, queue(true));
    set_queue(&mut rig, false);
    assert!(!is_let_in(&rig.get("/channels/a")), "one thread serves both");
    rig.worker.set_crowd(true, queue(false));
    assert!(is_let_in(&rig.get("/channels/a")));
}

#[test]
fn a_worker_heeds_the_queue_that_all_share() {
    let (mut rig, admission) = rig(10);
    admission.set_shared_queue(&queue(true));
    assert!(!is_let_in(&rig.get("/channels/a")));
    admission.set_shared_queue(&queue(false));
    assert!(is_let_in(&rig.get("/channels/a")));
}

#[test]
fn a_page_learns_its_moment() {
    let (mut rig, _) = rig(1000);
    set_queue(&mut rig, true);
    let stream = "GET /channels/a HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n";
    let received = rig.connect(stream).received();
    assert!(received.contains("\nretry: 250\n\n"), "{received}");
    let socket = rig.v1().received();
    assert!(socket.contains("reconnect in 251 ms"), "{socket}");
}

#[test]
fn a_worker_that_ends_tells_no_moment_of_its_own() {
    let (mut rig, admission) = rig(10);
    let first = rig.get("/channels/a?wait=0").received();
    let id = first.split("\r\nThrong-Id: ").nth(1).and_then(|rest| rest.lines().next());
    rig.publish("a", "accepted", None);
    set_queue(&mut rig, true);
    rig.queue.post(throng_core::Notification::StopAccepting);
    rig.work();
    let poll = rig.get(&format!("/channels/a?wait=9&since={}", id.expect("an id")));
    let received = poll.received();
    assert!(received.contains("accepted"), "it would be lost with the server: {received}");
    assert_eq!(admission.told(), 0);
}
