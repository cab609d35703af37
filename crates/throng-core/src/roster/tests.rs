//! The roster against a simple model.
