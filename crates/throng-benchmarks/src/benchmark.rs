//! A benchmark: its definition, and the function that runs it.

use crate::context::{Abort, Context};
use crate::definition::Definition;

/// A benchmark that can be run.
pub(crate) struct Benchmark {
    /// Its name, story, measurements and size.
    pub(crate) definition: &'static Definition,
    /// Runs it against the server of the context, and records the results there.
    pub(crate) run: fn(&mut Context<'_>) -> Result<(), Abort>,
}
