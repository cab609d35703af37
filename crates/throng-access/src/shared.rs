//! Errors of changes to the tables that several servers share and each has whole.
//!
//! A change is written to the table first, and made here when it comes back from there, like the
//! changes of the other servers. So all servers make all changes in one order.

/// Why a change is not known to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShareError {
    /// Too many changes wait. It is not made.
    Busy,
    /// The table cannot be reached. It is not made.
    Away,
    /// It may be made, or not.
    Unknown,
    /// It is not made, and would not be a moment later.
    Refused(String),
}
