//! Picks how a worker writes to many sockets: io_uring, or Linux AIO, or a call for each socket.

use super::error::{StartError, system};
use crate::settings::IoUringSetting;
use crate::sys::io_uring::IoUring;
use crate::sys::linux_aio::LinuxAio;

/// The system calls that write fan-outs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SendMethod {
    /// Through io_uring: one call for each slice.
    IoUring,
    /// Through Linux AIO: one call for each slice.
    LinuxAio {
        /// Why io_uring is not used: the kernel's is too old, or a sandbox forbids it. `None` if
        /// the settings turn it off.
        without_io_uring: Option<String>,
    },
    /// One call for each socket.
    Single {
        /// Why io_uring is not used; `None` if the settings turn it off.
        without_io_uring: Option<String>,
        /// Why Linux AIO is not used.
        without_aio: String,
    },
}

/// Opens io_uring or Linux AIO for the calling thread: at most one of the two.
pub(super) fn open(
    setting: IoUringSetting,
) -> Result<(Option<IoUring>, Option<LinuxAio>, SendMethod), StartError> {
    let without_io_uring = match setting {
        IoUringSetting::Off => None,
        IoUringSetting::Auto | IoUringSetting::On => match IoUring::open() {
            Ok(io_uring) => return Ok((Some(io_uring), None, SendMethod::IoUring)),
            Err(error) if setting == IoUringSetting::On => {
                return Err(system("use io_uring")(error));
            }
            Err(error) => Some(error.to_string()),
        },
    };
    Ok(match LinuxAio::open() {
        Ok(aio) => (None, Some(aio), SendMethod::LinuxAio { without_io_uring }),
        Err(error) => {
            let without_aio = error.to_string();
            (None, None, SendMethod::Single { without_io_uring, without_aio })
        }
    })
}
