//! Returns freed memory to the system.
//!
//! # Why `unsafe`
//!
//! malloc_trim(3) and mallopt(3) are foreign functions; they take no pointer and touch only free
//! memory and settings of the allocator.

/// Returns the pages of freed memory to the system. Holds the allocator's locks meanwhile, for some
/// tenths of a second if gigabytes are free: call it only after many connections have closed.
pub fn release_unused_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) may be called at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Has the allocator return memory to the system as soon as it is free at the end of what a thread
/// allocates from, which [`release_unused_memory`] leaves alone; or takes that back. Without it,
/// each of these ends keeps twice as much as the largest piece of memory that was ever freed.
pub(crate) fn return_memory_at_once(at_once: bool) {
    #[cfg(target_env = "gnu")]
    {
        let kept_bytes = if at_once { 16 << 10 } else { KEPT_BYTES };
        for setting in [libc::M_TRIM_THRESHOLD, libc::M_TOP_PAD] {
            // SAFETY: mallopt(3) may be called at any time from any thread.
            unsafe { libc::mallopt(setting, kept_bytes) };
        }
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = at_once;
}

/// Bytes that the allocator keeps at each end unless told otherwise.
#[cfg(target_env = "gnu")]
const KEPT_BYTES: libc::c_int = 128 << 10;
