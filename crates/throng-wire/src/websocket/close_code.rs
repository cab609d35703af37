//! The close codes that the server sends, but for those that echo a client's own close. Below 4000
//! they are those of RFC 6455 and its registry.

/// The client breaks RFC 6455.
pub const PROTOCOL_ERROR: u16 = 1002;
/// A type of message that the protocol does not have.
pub const UNSUPPORTED_DATA: u16 = 1003;
/// Text that is not UTF-8.
pub const INVALID_PAYLOAD: u16 = 1007;
/// What the client asks for is not allowed, or came too slowly.
pub const POLICY_VIOLATION: u16 = 1008;
/// A message over the limit.
pub const MESSAGE_TOO_BIG: u16 = 1009;
/// The server is shutting down.
pub const SERVICE_RESTART: u16 = 1012;
/// The server is full or overloaded.
pub const TRY_AGAIN_LATER: u16 = 1013;
/// The client lags: messages that it has not read are gone.
pub const LAGGING: u16 = 4000;
/// The client answered no ping in time.
pub const PING_TIMEOUT: u16 = 4001;
/// What the client was allowed to do has ended.
pub const EXPIRED: u16 = 4002;

/// All of them.
pub const ALL: [u16; 10] = [
    PROTOCOL_ERROR,
    UNSUPPORTED_DATA,
    INVALID_PAYLOAD,
    POLICY_VIOLATION,
    MESSAGE_TOO_BIG,
    SERVICE_RESTART,
    TRY_AGAIN_LATER,
    LAGGING,
    PING_TIMEOUT,
    EXPIRED,
];

#[cfg(test)]
mod tests {
    use super::*;

    const REFERENCE: &str = include_str!("../../../../docs/reference/websocket.md");

    #[test]
    fn the_reference_lists_the_same_codes() {
        let (_, section) = REFERENCE.split_once("\n## Close codes\n").expect("the section");
        let cells = section.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
        let documented: Vec<u16> = cells.filter_map(|cell| cell.parse().ok()).collect();
        assert_eq!(documented, ALL);
    }
}
