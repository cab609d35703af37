//! Channels and users: most paths are there for both.

/// The two kinds of channels, with what paths and names of operations call them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Noun {
    /// `/channels/{channel}` or `/users/{user}`.
    pub(super) path: &'static str,
    /// The word in names of operations.
    pub(super) id: &'static str,
    /// The words in sentences.
    pub(super) words: &'static str,
    /// Whether it is a user's inbox.
    pub(super) is_user: bool,
}

pub(super) const NOUNS: [Noun; 2] = [
    Noun { path: "/channels/{channel}", id: "Channel", words: "a channel", is_user: false },
    Noun { path: "/users/{user}", id: "User", words: "a user's inbox", is_user: true },
];
