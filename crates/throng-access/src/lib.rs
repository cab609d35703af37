//! Access control: who may follow, publish to and read which channel.
//!
//! This crate decides; it serves nothing. Apart from the file of revocations and the
//! log it does no I/O, and the clock is passed in, so that both planes can use it and tests need no
//! waiting.
//!
//! # From a token to a decision
//!
//! ```text
//! token ─► Verifier: cache, else signature and claims ─► Identity { user, grants, expiry }
//!                                                           │
//!            GrantsTable of the worker ◄── connection keeps a Session (16 bytes)
//!                                                           │
//! channel ─► AccessRules ─► ChannelAccess ─► may(…) ◄── Credentials { user, grants }
//! ```
//!
//! # Layout
//!
//! | module | what it is |
//! |---|---|
//! | [`policy`] | the interface of a policy: who asks, what for, the decision |
//! | `access_control` | what both planes share |
//! | [`apps`] | applications whose clients speak the Pusher protocol |
//! | `certificate` | who a client is by its certificate |
//! | [`connect`] | who a client without a credential is |
//! | [`algorithm`] | the signature algorithms of tokens |
//! | [`keys`] | the keys that verify tokens, and when a key set is read again |
//! | [`token`] | verifies a token and its claims |
//! | [`identification`] | who a client is, by what its request shows |
//! | `cache` | tokens that were verified lately |
//! | [`verifier`] | keys, cache and revocations together: what a worker calls |
//! | [`authenticator`] | lets tokens with unknown keys wait for newer key sets |
//! | [`pattern`] | patterns of channels and users, with `{user}` |
//! | [`permission`] | what can be allowed on a channel |
//! | [`grants`] | what a token grants; one copy for everybody with the same claim |
//! | [`rule`] | who has which permission on a channel, and the decision |
//! | [`server_key`] | keys for servers, with scopes |
//! | [`refusal_log`] | tells the operator about refused clients |
//! | `refused_credentials` | counts credentials that are refused, by reason |
//! | `refusal` | why a credential is refused, as the client's response |
//! | [`revocation`] | tokens that are refused although they have not expired |
//! | [`kept`] | the channels that users follow without asking for them |
//! | [`shared`] | what several servers share, in tables that each of them has whole |
//! | [`session`] | what a connection keeps of its token |
//! | [`pages`] | which pages may use the server, and under which names |
//! | [`limit`] | rates and numbers per address, user and key |
//! | [`address`] | the client's address behind proxies |
//! | [`clients`] | addresses and limits of a server's clients, which both planes share |
//!
//! # What it costs
//!
//! A connection with a token has a [`Session`](session::Session) of 16 bytes. That is all, where
//! others have the same grants. Everything else is shared or bounded by a setting:
//!
//! | | bytes |
//! |---|---|
//! | different grants | 28 on each worker that has them; once 48, and 32 and the text per pattern |
//! | a token in the cache | 69, and 88 for what it says, and the user's name |
//! | a revocation | 21 for a token, 21 and the name for a user |
//! | a bucket of a rate | 16, in a table of fixed size |
//! | a client that holds live connections, where they are limited | 9 to 18 |
//!
//! A connection that follows its user's inbox has the user's name there. Other connections are
//! found by the user's tag, so that they need not keep the name.
//!
//! The hot path, a cache hit and a matching of grants, allocates nothing. Its only lock is one of
//! the cache's 64 shards, held for some 50 ns.
//!
//! # Invariants
//!
//! * Nothing of a token is believed before its signature holds, and no key accepts an algorithm
//!   that it was not made for.
//! * No error and no debug output contains a token, a key, a secret or a part of one.
//! * A revocation holds from the moment it is answered, on the disk and in every cache.
//! * Whatever peers send, memory and time are bounded.

mod access_control;
pub mod address;
pub mod algorithm;
pub mod apps;
pub mod authenticator;
mod cache;
mod certificate;
pub mod clients;
pub mod connect;
pub mod grants;
pub mod identification;
mod json;
pub mod kept;
pub mod keys;
pub mod limit;
pub mod pages;
pub mod pattern;
pub mod permission;
pub mod policy;
mod refusal;
pub mod refusal_log;
mod refused_credentials;
pub mod revocation;
pub mod rule;
pub mod server_key;
pub mod session;
pub mod shared;
pub mod token;
pub mod verifier;

pub use access_control::AccessControl;
pub use apps::{AppSettings, Apps, ClientApp};
pub use authenticator::{Authenticator, Refusal, Verdict};
pub use cache::CacheCounts;
pub use certificate::{CertificateUsers, Certified};
pub use clients::{Clients, CountedAddress, OpenQuestion};
pub use connect::{
    Connect, ConnectVerdict, Details, Draft, Newcomer, Passed, PassedHeaders, ShownToken,
};
pub use grants::{Grants, GrantsId, GrantsPool, GrantsTable};
pub use identification::{Answers, Client, Identification, Refused, Shown, Step};
pub use kept::{
    KeptChange, KeptChanged, KeptCounts, KeptError, KeptPage, KeptPlan, KeptSubscriptions,
};
pub use pages::{AllowedPages, SharedPages};
pub use permission::{Permission, Permissions};
pub use policy::{Access, Action, AllowAll, Asker, Credentials, Decision, ReadOnlyClients};
pub use refusal::KeyRefusal;
pub use refusal_log::{RefusalLog, RefusedClient};
pub use refused_credentials::RefusedCredentials;
pub use revocation::{Revocation, RevocationLog, Revocations, Subject};
pub use rule::{AccessRules, ChannelAccess, Denial, Who, may};
pub use server_key::{Scope, ServerKey, ServerKeys};
pub use session::{Lead, Session, Tagger};
pub use token::{Identity, Policy, TokenError};
pub use verifier::{Authority, Verifier};
