//! The server's TLS, as this crate needs it.

use crate::validation::ChallengeCertificate;

/// The server's TLS.
pub trait ChallengeResponder: Send + Sync {
    /// Answers authorities that validate names with these certificates from now on, and no others.
    ///
    /// # Errors
    ///
    /// One sentence that says what is wrong, for the log.
    fn answer(&self, answers: Vec<ChallengeCertificate>) -> Result<(), String>;

    /// A certificate was stored, to be shown from now on.
    fn has_changed(&self);
}
