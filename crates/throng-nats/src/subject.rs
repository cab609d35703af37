//! The subjects of a stream: which channel a message belongs to.
//!
//! A channel's name becomes exactly one token. Characters with a meaning in subjects are written as
//! `%` and two digits, so that no name reaches another subject, and no wildcard gets into one.

use throng_core::{ChannelName, Kind};

/// The token of a channel's kind, and a dot; `None` if its log stays in the node.
fn kind(channel: &ChannelName) -> Option<&'static str> {
    match channel.kind() {
        Kind::Channel => Some("c."),
        Kind::User => Some("u."),
        // Presence events are of this kind, too.
        Kind::Internal => None,
    }
}

pub(crate) fn has_suffix(channel: &ChannelName) -> bool {
    kind(channel).is_some()
}

/// The token of the kind, a dot, and the token of the name. A channel's subjects end with it.
pub fn suffix(channel: &ChannelName) -> Option<Box<str>> {
    let kind = kind(channel)?;
    let mut suffix = String::with_capacity(kind.len() + channel.name().len());
    suffix.push_str(kind);
    push_token(&mut suffix, channel.name());
    Some(suffix.into_boxed_str())
}

/// Appends a text as one token.
fn push_token(subject: &mut String, text: &str) {
    for char in text.chars() {
        if matches!(char, '.' | '*' | '>' | '%' | '\0'..=' ' | '\u{7f}') {
            // All of these are one byte.
            subject.push_str(&format!("%{:02X}", char as u32));
        } else {
            subject.push(char);
        }
    }
}

/// The channel with this suffix; `None` if it is none.
pub(crate) fn channel(suffix: &str) -> Option<ChannelName> {
    let (kind, token) = match suffix.split_at_checked(2)? {
        ("c.", token) => (Kind::Channel, token),
        ("u.", token) => (Kind::User, token),
        _ => return None,
    };
    Some(ChannelName::new(kind, &text_of(token)?))
}

/// The text that is this token; `None` if it is none.
fn text_of(token: &str) -> Option<String> {
    let mut pieces = token.split('%');
    let mut text = pieces.next()?.to_owned();
    for piece in pieces {
        let (code, rest) = piece.split_at_checked(2)?;
        text.push(u8::from_str_radix(code, 16).ok().filter(u8::is_ascii)?.into());
        text.push_str(rest);
    }
    Some(text)
}

/// Begins the suffix of the record of a log, before the suffix of its channel.
pub(crate) const RECORD: &str = "r.";

/// The subjects of one stream.
#[derive(Debug, Clone)]
pub struct Subjects {
    ingest: Box<str>,
    live: Box<str>,
    hint: Box<str>,
    nodes: Box<str>,
    ask: Box<str>,
}

impl Subjects {
    /// The subjects of the stream `class` of the installation `prefix`.
    pub fn new(prefix: &str, class: &str) -> Subjects {
        Subjects {
            ingest: format!("{prefix}.in.{class}.").into(),
            live: format!("{prefix}.live.{class}.").into(),
            hint: format!("{prefix}.hint.{class}").into(),
            nodes: format!("{prefix}.node.{class}").into(),
            ask: format!("{prefix}.ask.{class}").into(),
        }
    }

    /// Where publications to a channel go.
    pub fn ingest(&self, suffix: &str) -> String {
        [&*self.ingest, suffix].concat()
    }

    /// Where the record of a channel's log is.
    pub(crate) fn record(&self, suffix: &str) -> String {
        [&*self.ingest, RECORD, suffix].concat()
    }

    /// The channel whose record has this subject.
    pub(crate) fn channel_of_record(&self, subject: &str) -> Option<ChannelName> {
        channel(self.suffix_of(subject)?.strip_prefix(RECORD)?)
    }

    /// The messages of all channels of a kind, and the records of their logs and states.
    pub(crate) fn all_of(&self, kind: Kind) -> Vec<String> {
        let of = |rest: &str| [&*self.ingest, rest].concat();
        match kind {
            Kind::Channel => vec![of("c.>"), of("r.c.>"), of("k.c.*.%")],
            Kind::User => vec![of("u.>"), of("r.u.>"), of("k.u.*.%")],
            Kind::Internal => Vec::new(),
        }
    }

    /// The same of all channels.
    pub(crate) fn all_records(&self) -> String {
        [&*self.ingest, "r.>"].concat()
    }

    /// Where it is written down which messages of a channel were erased.
    pub(crate) fn erasures(&self, suffix: &str) -> String {
        [&*self.ingest, "e.", suffix].concat()
    }

    /// The same of the channel whose messages have this subject.
    pub(crate) fn erasures_beside(&self, subject: &str) -> String {
        self.erasures(self.suffix_of(subject).unwrap_or_default())
    }

    /// The same of all channels.
    pub(crate) fn all_erasures(&self) -> String {
        [&*self.ingest, "e.>"].concat()
    }

    /// Where a message goes that is there only for its condition on another subject.
    pub(crate) fn guard(&self, suffix: &str) -> String {
        [&*self.ingest, "g.", suffix].concat()
    }

    /// Where the copy of the newest message of a key is.
    pub(crate) fn key(&self, suffix: &str, key: &str) -> String {
        let mut subject = [&*self.ingest, "k.", suffix, "."].concat();
        push_token(&mut subject, key);
        subject
    }

    /// Where the record of a channel's state is: no key is this token.
    pub(crate) fn state(&self, suffix: &str) -> String {
        [&*self.ingest, "k.", suffix, ".%"].concat()
    }

    /// That record and the copies of all keys.
    pub(crate) fn keys(&self, suffix: &str) -> String {
        [&*self.ingest, "k.", suffix, ".*"].concat()
    }

    /// The same of all channels.
    pub(crate) fn all_keys(&self) -> String {
        [&*self.ingest, "k.>"].concat()
    }

    /// The suffix of the channel whose key or state has this subject, and whether it is the state.
    pub(crate) fn channel_of_key<'a>(&self, subject: &'a str) -> Option<(&'a str, bool)> {
        let (suffix, token) = self.suffix_of(subject)?.strip_prefix("k.")?.rsplit_once('.')?;
        Some((suffix, token == "%"))
    }

    /// The key whose newest message is there.
    pub(crate) fn key_of(&self, subject: &str) -> Option<Box<str>> {
        let (_, token) = self.suffix_of(subject)?.strip_prefix("k.")?.rsplit_once('.')?;
        text_of(token).map(String::into_boxed_str)
    }

    /// Where it is written down which message of a channel with a state has an idempotency key.
    pub(crate) fn idempotency(&self, suffix: &str, id: &str) -> String {
        [&*self.ingest, "i.", suffix, ".", id].concat()
    }

    /// Where messages go that show how far the stream's age limit has come: see `beats`.
    pub(crate) fn beat(&self, number: u64) -> String {
        format!("{}b.{number}", self.ingest)
    }

    /// Where the stream republishes what it has stored, and nodes send volatile messages: each node
    /// has one subscription for both, and a channel's messages keep their order.
    pub fn live(&self, suffix: &str) -> String {
        [&*self.live, suffix].concat()
    }

    /// Where nodes tell each other of messages that may not have been republished.
    pub fn hint(&self) -> &str {
        &self.hint
    }

    /// Where nodes say that they are there.
    pub(crate) fn nodes(&self) -> &str {
        &self.nodes
    }

    /// Where nodes ask all others.
    pub fn ask(&self) -> &str {
        &self.ask
    }

    /// The suffix of a subject that publications go to.
    pub(crate) fn suffix_of<'a>(&self, subject: &'a str) -> Option<&'a str> {
        subject.strip_prefix(&*self.ingest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_means_something_in_a_subject_is_encoded() {
        let channel = suffix(&ChannelName::channel("a.b *>%/ü"));
        assert_eq!(channel.as_deref(), Some("c.a%2Eb%20%2A%3E%25/ü"));
        assert_eq!(suffix(&ChannelName::user("7")).as_deref(), Some("u.7"));
        assert_eq!(suffix(&ChannelName::status()), None);
        for none in ["", "c", "x.a", "c.%", "c.%2", "c.%GG", "c.%FF", "c.%ü"] {
            assert_eq!(super::channel(none), None, "{none}");
        }
        assert_eq!(suffix(&ChannelName::presence_events("a")), None);
        let subjects = Subjects::new("throng", "default");
        assert_eq!(subjects.ingest("c.a"), "throng.in.default.c.a");
        assert_eq!(subjects.live("c.a"), "throng.live.default.c.a");
        assert_eq!(subjects.suffix_of("throng.in.default.c.a"), Some("c.a"));
        assert_eq!(subjects.suffix_of("throng.in.other.c.a"), None);
        let [key, state] = [subjects.key("c.a", "x.%"), subjects.state("c.a")];
        assert_eq!(key, "throng.in.default.k.c.a.x%2E%25");
        assert_eq!(subjects.channel_of_key(&key), Some(("c.a", false)));
        assert_eq!(subjects.channel_of_key(&state), Some(("c.a", true)));
        assert_eq!(subjects.key_of(&state), None);
        let records = [subjects.record("c.a"), subjects.erasures("c.a"), subjects.guard("c.a")];
        for beside in records.into_iter().chain([key, state]) {
            let suffix = subjects.suffix_of(&beside).expect("it is in the same stream");
            assert_eq!(super::channel(suffix), None, "it is no channel");
        }
    }

    proptest! {
        #[test]
        fn a_name_is_one_token_of_its_own(names in prop::array::uniform2("(?s).{1,40}")) {
            let suffixes = names.each_ref().map(|name| suffix(&ChannelName::channel(name)));
            let [first, second] = suffixes.each_ref().map(|suffix| suffix.as_deref().unwrap_or(""));
            for token in [first, second].map(|suffix| &suffix[2..]) {
                prop_assert!(!token.is_empty());
                prop_assert!(!token.contains(['.', '*', '>', ' ', '\r', '\n', '\t', '\0']));
            }
            prop_assert_eq!(first == second, names[0] == names[1]);
            prop_assert_eq!(super::channel(first), Some(ChannelName::channel(&names[0])));
        }
    }
}
