//! The close codes that the server sends, except echoes of a client's own. Codes below 4000 are
//! from RFC 6455 and its registry.
//!
//! From [`DISCONNECTED`] on they are the application's: it closes connections through the control
//! plane with a code of its own. From [`DISCONNECTED_FOR_GOOD`] on clients do not come back.

/// All is done: the channels of the connection have ended.
pub const NORMAL: u16 = 1000;
/// The client breaks RFC 6455.
pub const PROTOCOL_ERROR: u16 = 1002;
/// A type of message that the protocol does not have.
pub const UNSUPPORTED_DATA: u16 = 1003;
/// Text that is not UTF-8.
pub const INVALID_PAYLOAD: u16 = 1007;
/// The request is not allowed.
pub const POLICY_VIOLATION: u16 = 1008;
/// A message over the limit.
pub const MESSAGE_TOO_BIG: u16 = 1009;
/// The server is shutting down.
pub const SERVICE_RESTART: u16 = 1012;
/// The server is full or overloaded.
pub const TRY_AGAIN_LATER: u16 = 1013;
/// A message of the client took too long to arrive.
pub const TIMEOUT: u16 = 3008;
/// The client lags: messages that it has not read are gone.
pub const LAGGING: u16 = 4000;
/// The client answered no ping in time.
pub const PING_TIMEOUT: u16 = 4001;
/// The client's permission has ended, or its token had expired already.
pub const EXPIRED: u16 = 4002;
/// The client's token is missing or bad.
pub const UNAUTHORIZED: u16 = 4003;
/// The client's token is revoked.
pub const REVOKED: u16 = 4004;
/// The client may not follow what it follows or asks to follow.
pub const FORBIDDEN: u16 = 4005;
/// The client's address, user or key has more connections than it may, or does more.
pub const LIMIT: u16 = 4006;
/// A compressed message does not inflate by itself. The client may come back without compression.
pub const BAD_COMPRESSION: u16 = 4007;
/// The client acknowledges frames that it was not sent.
pub const BAD_ACK: u16 = 4008;
/// The application has closed the connection. The client may come back.
pub const DISCONNECTED: u16 = 4100;
/// The application has closed the connection. The client should not come back.
pub const DISCONNECTED_FOR_GOOD: u16 = 4500;
/// The last code that an application can use.
pub const LAST: u16 = 4999;

/// All codes but the application's.
pub const ALL: [u16; 18] = [
    NORMAL,
    PROTOCOL_ERROR,
    UNSUPPORTED_DATA,
    INVALID_PAYLOAD,
    POLICY_VIOLATION,
    MESSAGE_TOO_BIG,
    SERVICE_RESTART,
    TRY_AGAIN_LATER,
    TIMEOUT,
    LAGGING,
    PING_TIMEOUT,
    EXPIRED,
    UNAUTHORIZED,
    REVOKED,
    FORBIDDEN,
    LIMIT,
    BAD_COMPRESSION,
    BAD_ACK,
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
