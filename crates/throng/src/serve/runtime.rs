//! The runtime of the control plane.

use std::io;
use std::num::NonZeroUsize;
use std::thread;

use tokio::runtime::{Builder, Runtime};

/// Starts it, with a thread for each core. Left to itself, tokio would read their number from a
/// variable that may be meant for another program of the host, and panic if it is none.
pub(super) fn start() -> io::Result<Runtime> {
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    Builder::new_multi_thread().worker_threads(threads).enable_all().build()
}
