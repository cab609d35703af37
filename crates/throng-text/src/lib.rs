//! Numbers, times and sizes as people write and read them, and their colours, the same in every
//! command of Throng.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | [`written`] | from text to a value: times, sizes, numbers, rates, ports |
//! | [`figures`] | from a value to text |
//! | [`paint`] | colours of a terminal, and text of strangers that cannot steer it |
//! | [`suggest`] | what a misspelt word was meant to be |
//! | [`toml_fault`] | what is wrong with text that is not TOML |

pub mod figures;
pub mod paint;
pub mod suggest;
pub mod toml_fault;
pub mod written;
