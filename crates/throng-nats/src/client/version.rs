//! Which servers are too old for a node.

/// Batches of direct gets came with it.
const VERSION_MIN: (u32, u32) = (2, 11);

/// The required version, for people.
pub const NEEDED: &str = "2.11 or later";

/// Why it is needed.
pub const REASON: &str = "nodes read several messages with one request, which older servers cannot";

/// True if a server with this version, as in its INFO, is too old. One that says none is taken for
/// recent.
pub fn is_old(version: &str) -> bool {
    let mut parts = version.split(['.', '-']).map(|part| part.parse::<u32>().ok());
    let version = (parts.next().flatten(), parts.next().flatten());
    version.0.is_some_and(|major| (major, version.1.unwrap_or(0)) < VERSION_MIN)
}

/// The error for a server that is too old.
pub fn sentence(version: &str) -> String {
    format!("nats-server {version} is too old, {NEEDED} is needed: {REASON}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_before_2_11_are_old() {
        for (version, expected) in [
            ("2.9.10", true),
            ("2.10.29", true),
            ("1.4.1", true),
            ("2.11.0", false),
            ("2.11.0-RC.1", false),
            ("2.15.3", false),
            ("3.0", false),
            ("", false),
        ] {
            assert_eq!(is_old(version), expected, "{version}");
        }
    }
}
