//! When somebody was a member of a channel last.

use std::collections::BTreeMap;

/// By channel and key, when somebody was a member last: for sure, and as far as clients know. One
/// without a key is a connection that does not know its name.
#[derive(Debug, Default)]
pub(super) struct MemberTimes {
    pub(super) sure_ms: BTreeMap<(usize, String), u64>,
    pub(super) possible_ms: BTreeMap<(usize, Option<String>), u64>,
}
