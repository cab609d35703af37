//! What a followed channel takes in the node, with everything that is allocated for it.

use throng_core::{ChannelId, ChannelName, Retention};
use throng_host::own::private_bytes;
use throng_nats::api::StreamSettings;
use throng_nats::journal::{JournalAction, JournalEvent, JournalSettings, StreamJournal};
use throng_nats::protocol::decoder::ServerMessage;
use throng_nats::protocol::headers::Headers;

const CHANNELS: u32 = 200_000;

/// The journal is half of what NATS adds to a channel, of which 400 bytes are allowed; the client
/// of the connection keeps nothing of it.
const BYTES_MAX: u64 = 160;

/// A server whose streams are empty: answers whatever the journal asks, until it asks no more.
fn answer_all(journal: &mut StreamJournal, mut actions: Vec<JournalAction>) {
    while !actions.is_empty() {
        for action in std::mem::take(&mut actions) {
            let (subject, reply, payload) = match action {
                JournalAction::Publish { subject, reply: Some(reply), payload, .. } => {
                    (subject, reply, payload)
                }
                _ => continue,
            };
            let mut headers = "";
            let answer = if subject.contains("DIRECT.GET") {
                headers = "NATS/1.0 404 No Results\r\n\r\n";
                String::new()
            } else if subject.contains("STREAM.CREATE") {
                let config = String::from_utf8_lossy(&payload);
                format!("{{\"config\":{config},\"created\":\"now\",\"state\":{{}}}}")
            } else if subject.contains("MSG.GET") {
                r#"{"error":{"code":404,"err_code":10037}}"#.to_owned()
            } else if subject.starts_with("$KV") {
                let bucket = subject.split('.').nth(1).unwrap_or_default();
                format!("{{\"stream\":\"KV_{bucket}\",\"seq\":1}}")
            } else {
                r#"{"error":{"code":404,"err_code":10059}}"#.to_owned()
            };
            let delivery = ServerMessage {
                subject: &reply,
                sid: 1,
                reply: None,
                headers: Headers::new(headers.as_bytes()),
                payload: answer.as_bytes(),
            };
            journal.step(2, JournalEvent::Received(delivery), &mut actions);
        }
    }
}

#[test]
fn a_followed_channel_takes_few_bytes() {
    let mut journal = StreamJournal::new(JournalSettings {
        stream: StreamSettings {
            prefix: "throng".into(),
            class: "default".into(),
            replicas: 1,
            is_in_memory: false,
            retention: Retention { max_messages: 100, max_bytes: 1 << 20, max_age_ms: 60_000 },
            bytes_max: 1 << 30,
            message_bytes_max: 1 << 17,
            duplicate_window_ms: 60_000,
        },
        nonce: "test".into(),
        successor_of: None,
        publish_ms: 5_000,
        tables: Vec::new(),
    });
    let before = private_bytes().expect("this is Linux");
    for first in (0..CHANNELS).step_by(1_000) {
        let wanted = (first..first + 1_000)
            .map(|index| (ChannelId(index), ChannelName::user(&format!("customer-{index:08}"))))
            .collect();
        let mut actions = Vec::new();
        journal.step(1, JournalEvent::Follow(wanted), &mut actions);
    }
    let mut actions = Vec::new();
    journal.step(1, JournalEvent::Connected { payload_bytes_max: 1 << 20 }, &mut actions);
    answer_all(&mut journal, actions);
    assert_eq!(journal.followed(), CHANNELS as usize);
    let each = private_bytes().expect("as above").saturating_sub(before) / u64::from(CHANNELS);
    assert!(each <= BYTES_MAX, "{each} bytes for each channel");
}
