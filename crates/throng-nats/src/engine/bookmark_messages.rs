//! What nodes tell each other of bookmarks, as JSON.

use serde::{Deserialize, Serialize};

/// A bookmark that was left with a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LeftElsewhere {
    pub(super) channel: u64,
    pub(super) user: u64,
    pub(super) for_ms: u64,
}

/// The answer to [`Question::Bookmark`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BookmarkAnswer {
    pub(super) node: Box<str>,
    /// The id of the last message that the user need not be sent again; none: there is no bookmark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) place: Option<String>,
    /// For how long it still has one, in milliseconds.
    #[serde(default)]
    pub(super) left_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_words_about_bookmarks_are_read() {
        let answers = [
            BookmarkAnswer { node: "n1".into(), place: Some("k3v9x2-17".into()), left_ms: 5 },
            BookmarkAnswer { node: "n2".into(), place: None, left_ms: 0 },
        ];
        let lines = answers.each_ref().map(|answer| serde_json::to_string(answer).unwrap());
        let kept = crate::kept::lines("bookmark-answers", &lines);
        let read: Vec<BookmarkAnswer> =
            kept.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(read, answers);
    }
}
