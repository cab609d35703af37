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

/// Length of a name from which on two edits are a slip, and not another word.
const LONG_NAME: usize = 10;

/// True if `written` is so near to `meant` that its writer can have meant nothing else: one edit
/// away, or two if it is long.
pub fn is_slip(written: &str, meant: &str) -> bool {
    let edits_max = if written.len() < LONG_NAME { 1 } else { 2 };
    strsim::osa_distance(written, meant) <= edits_max
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_nearer_than_a_suggestion() {
        assert!(is_slip("HARTBEAT", "HEARTBEAT") && is_slip("LISTNE", "LISTEN"));
        assert!(is_slip("MAX_MESAGE_BYTE", "MAX_MESSAGE_BYTES"));
        assert!(!is_slip("TLS_PORT", "TLS_CERT") && !is_slip("ADMIN_URL", "ADMIN_TLS"));
    }

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
