//! "Did you mean …?"

/// The candidate that `written` was most likely meant to be, if any is near enough.
pub fn nearest<'a>(
    written: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let plain = |text: &str| text.to_ascii_lowercase().replace('_', "-");
    let written = plain(written);
    let edits_max = (written.len() / 3).clamp(1, 4);
    candidates
        .into_iter()
        .map(|candidate| (edits(&written, &plain(candidate)), candidate))
        // A name of one letter is "near" to every other one.
        .filter(|(edits, candidate)| *edits <= edits_max && *edits < candidate.len())
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

/// How many letters must be put in, left out or replaced, or neighbours swapped, to get from `from`
/// to `to`.
fn edits(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=to.len()).collect();
    for (i, &letter) in from.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, &other) in to.iter().enumerate() {
            let replaced = last[j] + usize::from(letter != other);
            let mut best = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && letter == to[j - 1] && from[i - 1] == other {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_meant() {
        let words = ["stream", "streams", "payload", "handshake-timeout", "i"];
        for (written, expected) in [
            ("strem", Some("stream")),
            ("paylaod", Some("payload")),
            ("handshake_timout", Some("handshake-timeout")),
            ("x", None),
            ("colour", None),
        ] {
            assert_eq!(nearest(written, words), expected, "{written}");
        }
    }
}
