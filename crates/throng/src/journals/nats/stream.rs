//! The stream of all channels.

use throng_core::{Epoch, IDEMPOTENCY_MS, Retention, Rules};
use throng_nats::api::StreamSettings;

use crate::settings::{LogPlace, Settings};

/// The class of all channels: one stream has them all.
const CLASS: &str = "channels";

/// The largest message that settings allow, and its headers. The servers' `max_payload` is lower
/// mostly.
const MESSAGE_BYTES_MAX: u32 = (32 << 20) + (64 << 10);

/// A stream without an age would keep everything.
const AGE_MS_MIN: u64 = 60_000;

/// Names this process to others in NATS: letters and digits that no other one has.
pub(crate) fn nonce() -> String {
    Epoch::random().to_string() + &Epoch::random().to_string()
}

/// The stream of all channels in NATS: its retention is the largest of their rules. Reads leave out
/// messages beyond a channel's own rule.
pub(crate) fn stream(settings: &Settings, rules: &Rules) -> StreamSettings {
    let own = settings.journal_id(LogPlace::Nats);
    let most = |of: fn(&Retention) -> u64| {
        rules.retentions(own).map(|retention| of(&retention)).max().unwrap_or(0)
    };
    let retention = Retention {
        max_messages: most(|retention| retention.max_messages as u64) as usize,
        max_bytes: most(|retention| retention.max_bytes as u64) as usize,
        max_age_ms: most(|retention| retention.max_age_ms).max(AGE_MS_MIN),
    };
    StreamSettings {
        prefix: settings.nats_prefix.0.clone(),
        class: CLASS.into(),
        replicas: settings.nats_replicas.0,
        is_in_memory: false,
        retention,
        bytes_max: settings.history.total_bytes.0 as u64,
        message_bytes_max: MESSAGE_BYTES_MAX,
        duplicate_window_ms: IDEMPOTENCY_MS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings;

    #[test]
    fn the_stream_keeps_what_any_rule_keeps() {
        let of = |text: &str| {
            let settings = settings::read_text(text).unwrap();
            stream(&settings, &settings::rules(&settings))
        };
        let found = of("
            engine = 'nats'
            nats-prefix = 'chat'
            history = { messages = 7, age = '2h', total-bytes = '3MiB' }
            [[channels]]
            match = 'a'
            messages = 9
            age = '1h'
            [[channels]]
            users = '*'
            messages = 0
            [[channels]]
            match = 'b'
            journal = 'memory'
            messages = 99
        ");
        assert_eq!((found.name(), found.bytes_max), ("chat-channels".into(), 3 << 20));
        assert_eq!((found.retention.max_messages, found.retention.max_age_ms), (9, 7_200_000));
        let none = of("history = { messages = 0, age = 0 }");
        assert_eq!((none.per_channel(), none.retention.max_age_ms), (1, AGE_MS_MIN));
    }
}
