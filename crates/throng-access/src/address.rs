//! The address of a client, directly or behind proxies.
//!
//! | module | what it is |
//! |---|---|
//! | `network` | addresses by prefix: the proxies that are trusted |
//! | `forwarded` | the headers `Forwarded` and `X-Forwarded-For` |
//! | `proxy_protocol` | the PROXY protocol, versions 1 and 2 |
//! | `source` | which of these a server uses |

mod forwarded;
mod network;
mod proxy_protocol;
mod source;

pub use forwarded::{ClientAddress, ForwardedHeader, HeaderError, client_address};
pub use network::{Network, NetworkError, Networks};
pub use proxy_protocol::{PROXY_BYTES_MAX, Proxied, ProxyError, ProxyHeader, parse_proxy_header};
pub use source::{AddressMethod, AddressSource};
