//! Memory that the allocator keeps although nobody uses it.
//!
//! # Why `unsafe`
//!
//! The C library's function is foreign to Rust. It takes no pointer and touches only what is free.

/// Gives the pages of freed memory back to the system. Takes the allocator's locks while it does:
/// up to some tenths of a second after gigabytes were freed, so only for then.
pub fn release_unused() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) may be called at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
