//! Idempotency keys, and the publishers that they belong to.
//!
//! A key is its publisher's own: a client that guesses the keys of the application must not be able
//! to publish with them first, so that the application's message is taken for a duplicate. All
//! engines, and the nodes of a cluster, tell publishers apart by the same text:
//!
//! ```text
//! scoped key = U+0001, kind, name, U+0000, key
//! ```
//!
//! | kind | name | publisher |
//! |---|---|---|
//! | `a` | | clients without token and key, all together |
//! | `o` | | requests without token and key at the admin listener |
//! | `t` | | tokens without a user, all together |
//! | `u` | the user | a user, with any token, transport and node |
//! | `k` | the key's name | a server key |
//! | `n` | a number | a user whose name this node does not know |
//!
//! Neither names nor keys contain control characters.

/// The publisher of a message, for idempotency keys and shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Publisher<'a> {
    /// A client that has shown nothing, or that nothing backs: all of them are one.
    Anonymous,
    /// A request at the admin listener that has shown nothing.
    Operator,
    /// A token that names no user: all of them are one, because a renewed token has another id.
    Token,
    /// The user of a token, or of the application's decision.
    User(&'a str),
    /// The server key with this name.
    ServerKey(&'a str),
    /// A user of whom only a number is known, which other nodes do not know.
    Unnamed(u64),
}

impl Publisher<'_> {
    /// Appends what tells the publisher from others.
    fn write(self, out: &mut String) {
        out.push('\u{1}');
        match self {
            Publisher::Anonymous => out.push('a'),
            Publisher::Operator => out.push('o'),
            Publisher::Token => out.push('t'),
            Publisher::User(name) => out.extend(["u", name]),
            Publisher::ServerKey(name) => out.extend(["k", name]),
            Publisher::Unnamed(number) => out.extend(["n", &number.to_string()]),
        }
        out.push('\0');
    }
}

/// An idempotency key with its publisher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    scoped: Box<str>,
    /// Where the publisher ends.
    text_at: usize,
}

impl IdempotencyKey {
    /// The key with this text of a publisher.
    pub fn new(publisher: Publisher<'_>, text: &str) -> IdempotencyKey {
        let mut scoped = String::with_capacity(32 + text.len());
        publisher.write(&mut scoped);
        let text_at = scoped.len();
        scoped.push_str(text);
        IdempotencyKey { scoped: scoped.into(), text_at }
    }

    /// The text that tells the key from all others of its channel.
    pub fn scoped(&self) -> &str {
        &self.scoped
    }

    /// The part of the text that names the publisher.
    pub(crate) fn publisher(&self) -> &str {
        &self.scoped[..self.text_at]
    }

    /// True for a key of the anonymous publishers, who share one scope.
    pub(crate) fn is_anonymous(&self) -> bool {
        self.scoped.starts_with("\u{1}a\0")
    }
}

/// The key of a publisher that is not known.
impl From<String> for IdempotencyKey {
    fn from(text: String) -> IdempotencyKey {
        IdempotencyKey::from(&*text)
    }
}

/// The key of a publisher that is not known.
impl From<&str> for IdempotencyKey {
    fn from(text: &str) -> IdempotencyKey {
        IdempotencyKey::new(Publisher::Anonymous, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_different_publishers_differ() {
        let publishers = [
            Publisher::Anonymous,
            Publisher::Operator,
            Publisher::Token,
            Publisher::User("app"),
            Publisher::ServerKey("app"),
            Publisher::User("7"),
            Publisher::Unnamed(7),
        ];
        for (at, one) in publishers.into_iter().enumerate() {
            for other in &publishers[at + 1..] {
                let keys = [one, *other].map(|publisher| IdempotencyKey::new(publisher, "k"));
                assert_ne!(keys[0].scoped(), keys[1].scoped());
            }
        }
    }

    /// Other nodes, and data directories, have it.
    #[test]
    fn the_text_of_a_key_is_as_documented() {
        let key = IdempotencyKey::new(Publisher::User("ann"), "order-1");
        assert_eq!(key.scoped(), "\u{1}uann\0order-1");
        assert_eq!(IdempotencyKey::from("k").scoped(), "\u{1}a\0k");
    }
}
