//! The listeners of a server.

/// The listener that accepted a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Listener {
    /// The address that clients connect to.
    #[default]
    Public,
    /// The address for operators, and for the application where clients may only read.
    Admin,
}
