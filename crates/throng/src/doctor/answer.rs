//! The findings of `throng doctor`, for the reports.

use throng_host::limits::{Cores, MemoryLimit};
use throng_host::preflight::{Applied, Preflight};

use super::arguments::Arguments;
use super::handshakes::Handshakes;

/// The flags and the result of the checks.
pub(super) struct DoctorAnswer<'a> {
    pub(super) arguments: &'a Arguments,
    /// The number asked for, or else the most that fit.
    pub(super) connections: u32,
    /// The processor time that programs started here may use.
    pub(super) cores: Cores,
    /// The memory that they may use, if the system says.
    pub(super) memory: Option<MemoryLimit>,
    /// The checks, after the changes of `--apply`.
    pub(super) found: Preflight,
    /// The settings that `--apply` changed; `None` without that flag.
    pub(super) applied: Option<Vec<Applied>>,
    /// `None` if no server is to run here.
    pub(super) handshakes: Option<Handshakes>,
}
