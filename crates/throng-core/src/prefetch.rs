//! Loads of memory that begin before they are needed.
//!
//! To follow or leave many channels touches many places of large tables. Each takes some hundred
//! cycles to load, one after the other. If the places are known ahead, the processor loads them at
//! the same time.
//!
//! # Safety
//!
//! The instruction is a hint. It changes nothing but caches and does not fault, whatever the
//! address: Intel SDM vol. 2B and AMD64 APM vol. 3, `PREFETCHT0`.

#![allow(unsafe_code)]

/// How many places are loaded ahead: about as many as a processor loads at the same time.
pub const AHEAD: usize = 16;

/// Begins to load the cache line at an address, whatever is there. Does nothing where there is no
/// such instruction in stable Rust.
#[inline]
pub(crate) fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: see the module.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
