//! The engine against its promises.
