//! "Did you mean …?"

/// The candidate that `written` was most likely meant to be, if any is near enough.
pub fn nearest<'a>(
    written: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let plain = |text: &str| text.to_ascii_lowercase().replace(['_', '.'], "-");
    let written = plain(written);
    let edits_max = (written.len() / 3).clamp(1, 4);
    candidates
        .into_iter()
        .map(|candidate| (strsim::osa_distance(&written, &plain(candidate)), candidate))
        // A name of one letter is "near" to every other one.
        .filter(|(edits, candidate)| *edits <= edits_max && *edits < candidate.len())
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_meant() {
        let keys = ["listen", "log", "max-message-bytes", "history.messages", "stream", "i"];
        for (written, expected) in [
            ("lisen", Some("listen")),
            ("listne", Some("listen")),
            ("Listen", Some("listen")),
            ("lgo", Some("log")),
            ("max_message_bytes", Some("max-message-bytes")),
            ("max-mesage-byte", Some("max-message-bytes")),
            ("history-messages", Some("history.messages")),
            ("strem", Some("stream")),
            ("x", None),
            ("colour", None),
        ] {
            assert_eq!(nearest(written, keys), expected, "{written}");
        }
    }
}
