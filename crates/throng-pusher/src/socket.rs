//! The names of connections, `socket_id`.

use std::fmt;
use std::str::FromStr;

/// The name of a connection: two numbers in decimal digits, as the libraries demand. Signatures of
/// channels do not expire: nothing but this name, which never returns and which nobody can foresee,
/// restricts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SocketId {
    /// A random number of the node.
    pub node: u64,
    /// The connection among those of the node, [hidden](crate::hide::Hider::hide).
    pub number: u64,
}

/// A text that is no name of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a socket id is two numbers with a dot between them")]
pub struct NoSocketId;

impl fmt::Display for SocketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.node, self.number)
    }
}

impl FromStr for SocketId {
    type Err = NoSocketId;

    fn from_str(text: &str) -> Result<SocketId, NoSocketId> {
        let number = |digits: &str| {
            let are_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse().ok().filter(|_| are_digits).ok_or(NoSocketId)
        };
        let (node, rest) = text.split_once('.').ok_or(NoSocketId)?;
        Ok(SocketId { node: number(node)?, number: number(rest)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_id_is_two_numbers() {
        for (node, number) in [(0, 0), (1234, 1234), (u64::MAX, u64::MAX)] {
            let id = SocketId { node, number };
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        for bad in ["", "1", "1.", ".1", "1.2.3", "+1.2", "-1.2", " 1.2", "1.18446744073709551616"]
        {
            assert_eq!(bad.parse::<SocketId>(), Err(NoSocketId), "{bad}");
        }
    }
}
