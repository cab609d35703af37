//! Values read anew for each connection, since files change: logins and certificates expire.

use std::fmt;
use std::sync::Arc;

/// Makes a value for each connection, or says in one sentence why it cannot.
pub struct Source<T>(Arc<dyn Fn() -> Result<T, String> + Send + Sync>);

impl<T> Source<T> {
    /// A source that calls `make`.
    pub fn new(make: impl Fn() -> Result<T, String> + Send + Sync + 'static) -> Source<T> {
        Source(Arc::new(make))
    }

    /// The value for a connection that begins now.
    pub(super) fn get(&self) -> Result<T, String> {
        self.0()
    }
}

impl<T: Clone + Send + Sync + 'static> From<T> for Source<T> {
    fn from(value: T) -> Source<T> {
        Source::new(move || Ok(value.clone()))
    }
}

impl<T> Clone for Source<T> {
    fn clone(&self) -> Source<T> {
        Source(Arc::clone(&self.0))
    }
}

/// Without the value, which is secret mostly.
impl<T> fmt::Debug for Source<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source")
    }
}
