//! Paths that have the name of a channel or user in their query.

use super::noun::NOUNS;
use crate::operation::Operation;

/// The paths below those of channels and users, and the path with the name in the query. `POST` of
/// `/publish` and of `/subscriptions` and `GET` of `/connections` have a meaning of their own, and
/// say there that they take a name.
const PARTS: [(&str, &str); 7] = [
    ("", "/publish"),
    ("/history", "/history"),
    ("/presence", "/presence"),
    ("/connections", "/connections"),
    ("/read", "/read"),
    ("/subscriptions", "/subscriptions"),
    ("/followers", "/followers"),
];

/// The operations of these paths, made of those that have the name in their path.
pub(super) fn operations(all: &[Operation]) -> Vec<Operation> {
    let find = |method, path: &str| all.iter().find(|it| it.method == method && it.path == path);
    let mut named = Vec::new();
    for (part, path) in PARTS {
        for method in ["GET", "PUT", "POST", "DELETE"] {
            // A subscription has `/subscribe`.
            let is_subscription = part.is_empty() && method == "GET";
            if is_subscription || find(method, path).is_some() {
                continue;
            }
            let [channel, user] = NOUNS.map(|noun| find(method, &format!("{}{part}", noun.path)));
            named.extend(match (channel, user) {
                (Some(channel), user) => Some(channel.by_query(path, user)),
                (None, Some(user)) => Some(user.by_query(path, None)),
                (None, None) => None,
            });
        }
    }
    named
}
