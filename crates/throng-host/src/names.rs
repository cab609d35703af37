//! Resolution of host names by a statically linked glibc.
//!
//! # Why `unsafe`
//!
//! `__nss_configure_lookup` is a foreign function, which takes two C strings.

/// Makes this process resolve host names from `/etc/hosts` and the name servers of
/// `/etc/resolv.conf`, whatever `/etc/nsswitch.conf` says. Call it before the first thread starts.
///
/// Other sources are shared libraries of the machine's glibc. A program that contains a glibc of
/// its own must not load them: theirs may be of another version. Those two sources are part of
/// glibc since 2.34.
#[allow(unsafe_code)]
pub fn resolve_names_without_plugins() {
    #[cfg(target_env = "gnu")]
    {
        use std::ffi::{CStr, c_char, c_int};
        unsafe extern "C" {
            fn __nss_configure_lookup(database: *const c_char, sources: *const c_char) -> c_int;
        }
        const HOSTS: &CStr = c"hosts";
        const SOURCES: &CStr = c"files dns";
        // SAFETY: both strings end with a zero byte and live as long as the program. Nothing else
        // runs that could read the table of sources meanwhile.
        //
        // It fails for an unknown source only, and these two are known.
        let _ = unsafe { __nss_configure_lookup(HOSTS.as_ptr(), SOURCES.as_ptr()) };
    }
}
