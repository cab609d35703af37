//! The data that outlives the process: the logs of durable channels, on a disk.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | [`storage`] | ordered tables with atomic commits, on a disk or in a memory that fails |
//! | [`logs`] | the logs of channels: heads, messages, records, idempotency keys, retention |
//! | [`sync_policy`] | what is promised when a publication is acknowledged |
//! | [`journal`] | the thread that writes, with one sync for all that wait |
//! | [`engine`] | the engine that delivers what the journal has, and reads logs for others |
//! | [`records`] | other state that outlives the process |
//! | [`rewriter`] | the thread that has files rewritten after erasures |
//! | [`backup`] | a copy of the directory while a server runs |
//! | [`directory`] | the directory that has it all, for one server at a time |

#![forbid(unsafe_code)]

pub mod backup;
pub mod directory;
pub mod engine;
pub mod journal;
pub mod logs;
pub mod records;
pub mod rewriter;
pub mod storage;
pub mod sync_policy;
