//! Suggestions for misspelt words: "did you mean …?"

/// The candidate with the smallest edit distance to `written`, if one is within a third of its
/// length. Case and the choice of `-`, `_` and `.` do not count as edits.
pub fn nearest<'a>(
    written: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let plain = |text: &str| text.to_ascii_lowercase().replace(['_', '.'], "-");
    let written = plain(written);
    let max_edits = (written.len() / 3).clamp(1, 4);
    candidates
        .into_iter()
        .map(|candidate| (strsim::osa_distance(&written, &plain(candidate)), candidate))
        // Every one-letter name is within one edit of any other.
        .filter(|(edits, candidate)| *edits <= max_edits && *edits < candidate.len())
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_candidate_is_suggested() {
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
