//! What a machine allows and what its processes cost.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | [`private_table`] | threads with a descriptor table of their own |
//! | [`proc`] | processor time and memory of a process, of the kernel; who listens on a port |
//! | [`processors`] | how busy the whole machine is, and with which programs |
//! | [`own`] | the same of this process, cheaply |
//! | [`sysctl`] | kernel settings: read, set, counted |
//! | [`cgroup`] | limits of the control groups that this process is in |
//! | [`preflight`] | can this machine hold so many connections, and what must change? |
//! | [`environment`] | the machine in a few lines, as it belongs under every figure |
//!
//! # Invariants
//!
//! - What cannot be read is absent, never zero: a missing figure is not a figure of nothing.
//! - The only `unsafe` of the measuring programs is the one call in [`private_table`].

pub mod cgroup;
pub mod environment;
pub mod own;
pub mod preflight;
pub mod private_table;
pub mod proc;
pub mod processors;
pub mod sysctl;
