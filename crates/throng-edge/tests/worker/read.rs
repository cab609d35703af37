//! Read markers of users, on `throng.v1`.

use crate::rig::Rig;

#[test]
fn a_client_reads_and_moves_its_marker() {
    let mut rig = Rig::new();
    let client = rig.v1();
    client.received();
    let mut ask = |text: &str| {
        rig.send_frame(&client, text);
        rig.work();
        client.received()
    };
    let published = ask(r#"{"type":"publish","user":"ann","data":"x"}"#);
    assert!(published.contains("z-1"), "{published}");
    let unread = ask(r#"{"type":"read","user":"ann","ref":1}"#);
    assert!(unread.ends_with(r#"{"type":"read","user":"ann","unread":1,"ref":1}"#), "{unread}");
    let read = ask(r#"{"type":"read","user":"ann","id":"z-1"}"#);
    assert!(read.ends_with(r#"{"type":"read","user":"ann","read":"z-1","unread":0}"#), "{read}");
    let back = ask(r#"{"type":"read","user":"ann","id":"z-0","back":true}"#);
    assert!(back.ends_with(r#"{"type":"read","user":"ann","unread":1}"#), "{back}");
    assert!(ask(r#"{"type":"read","user":"ann","id":"1"}"#).contains("bad_id"));
    assert!(ask(r#"{"type":"read","channel":"ann"}"#).contains("bad_request"));
}
