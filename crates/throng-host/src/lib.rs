//! Readings of a Linux host: its limits, and what its processes use.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | [`private_table`] | threads with a private descriptor table |
//! | [`proc`] | CPU time and memory of any process; listeners of a port |
//! | [`processors`] | CPU time of the whole machine, and of its programs |
//! | [`own`] | memory and threads of this process, cheap enough to read every second |
//! | [`sysctl`] | kernel settings: read and set |
//! | [`limits`] | how much memory and processor time this process may use, and what says so |
//! | [`names`] | host names in a static program |
//! | `cgroup` | limits of the control groups of this process |
//! | [`preflight`] | whether the machine can hold a number of connections, and what must change |
//! | [`environment`] | kernel, processor, memory and settings, for reports |
//!
//! # Invariants
//!
//! - A value that cannot be read is `None`, never zero.
//! - `unsafe` is allowed in [`private_table`] and [`names`] only.

mod cgroup;
pub mod environment;
pub mod limits;
pub mod names;
pub mod own;
pub mod preflight;
pub mod private_table;
pub mod proc;
pub mod processors;
pub mod sysctl;
