//! Returns freed memory to the system.
//!
//! # Why `unsafe`
//!
//! malloc_trim(3) is a foreign function; it takes no pointer and touches only free memory.

/// Returns the pages of freed memory to the system. Holds the allocator's locks meanwhile, for some
/// tenths of a second if gigabytes are free: call it only after many connections have closed.
pub fn release_unused_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) may be called at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
