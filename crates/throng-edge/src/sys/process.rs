//! Freed memory of the process.
//!
//! # Why `unsafe`
//!
//! malloc_trim(3) is a foreign function; it takes no pointer and touches only free memory.

/// Returns the pages of freed memory to the system. It holds the allocator's locks meanwhile, up to
/// some tenths of a second after gigabytes were freed: call it only then.
pub fn release_unused_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) may be called at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
