//! `throng subscriptions`: which channels users follow, as a server keeps it.
//!
//! | module | contents |
//! |---|---|
//! | `import` | sends a file of changes |
//! | `parts` | cuts the file into requests |
//! | `progress` | says how far an import is |

mod import;
mod parts;
mod progress;

use anyhow::Result;

use crate::cli::{SubscriptionsArguments, SubscriptionsCommand};

pub(crate) fn subscriptions(arguments: &SubscriptionsArguments) -> Result<()> {
    let SubscriptionsCommand::Import(arguments) = &arguments.command;
    import::import(arguments)
}
