//! Headers of every answer of a worker.

use throng_core::Notification;
use throng_edge::worker::Now;

use crate::rig::Rig;

const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

/// RFC 9110, section 6.6.1.
#[test]
fn every_answer_has_a_date() {
    let mut rig = Rig::new();
    rig.worker.set_now(Now::after(100, 784_111_777_000));
    let asks = |rig: &mut Rig, target: &str, fields: &str| {
        let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
        rig.connect(&request).received()
    };
    let waiting = rig.get("/channels/a?wait=9");
    let mut answers = vec![
        ("101", asks(&mut rig, "/channels/a", UPGRADE)),
        ("200", rig.get("/channels/a?transport=sse").received()),
        ("200", rig.get("/channels/a?transport=stream").received()),
        ("204", rig.get("/channels/a?wait=0").received()),
        ("400", rig.get("/channels/%00").received()),
        ("400", rig.connect("nonsense\r\n\r\n").received()),
        ("403", asks(&mut rig, "/channels/a", "Origin: http://elsewhere\r\n")),
    ];
    rig.publish("a", "1", None);
    rig.worker.work(true);
    answers.push(("200", waiting.received()));
    rig.queue.post(Notification::StopAccepting);
    rig.worker.work(true);
    answers.push(("101", asks(&mut rig, "/channels/a", UPGRADE)));
    answers.push(("200", rig.get("/channels/a?transport=sse").received()));
    answers.push(("503", rig.get("/channels/a?wait=0").received()));
    for (status, answer) in answers {
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        let (head, _) = answer.split_once("\r\n\r\n").expect("a head");
        let dates = head.matches("\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT").count();
        assert_eq!(dates, 1, "{head}");
    }
}
