//! The limits of a token.

/// The longest token. It travels in a request head, which has at most 16 KiB by default.
pub const TOKEN_BYTES_MAX: usize = 8 << 10;

/// The longest header part, in base64url. Everybody can make the server parse one.
pub(crate) const HEADER_BYTES_MAX: usize = 2 << 10;

/// The longest signature: by the largest RSA key.
pub(super) const SIGNATURE_BYTES_MAX: usize = 1 << 10;

/// The most claims of a token. Each name is compared with all others.
pub const CLAIMS_MAX: usize = 64;

/// The most values of `aud`.
pub(crate) const AUDIENCES_MAX: usize = 32;

/// The longest `name` that messages show, in bytes. A longer one counts as none.
pub(super) const SHOWN_NAME_BYTES_MAX: usize = 256;

/// The longest `jti`, in bytes.
pub(super) const TOKEN_ID_BYTES_MAX: usize = 255;
