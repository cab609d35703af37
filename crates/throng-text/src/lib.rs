//! Numbers, times and sizes as people write and read them, the same in every command of Throng.
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | [`written`] | from text to a value: times, sizes, numbers, rates, ports |
//! | [`figures`] | from a value to text |
//! | [`suggest`] | what a misspelt word was meant to be |

pub mod figures;
pub mod suggest;
pub mod written;
