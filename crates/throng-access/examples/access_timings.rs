//! What access control costs in time, on one thread, and in memory.
//!
//! ```sh
//! cargo run --release -p throng-access --example access_timings
//! ```
//!
//! Each line is the best of several rounds, because a busy machine only ever adds time.

#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use throng_access::address::{ForwardedHeader, Networks, client_address, parse_proxy_header};
use throng_access::algorithm::Algorithm;
use throng_access::keys::{Key, KeySet, PublishedKeys};
use throng_access::limit::{LimitKeys, LiveCounts, RateLimiter, RateMeter};
use throng_access::revocation::Revocations;
use throng_access::server_key::{KeyHash, ServerKey, ServerKeys, generate};
use throng_access::session::Tagger;
use throng_access::token::Signer;
use throng_access::{
    AccessRules, Authority, ChannelAccess, Credentials, GrantsTable, Lead, Permission, Policy,
    Session, may,
};
use throng_core::ChannelName;

const NOW_S: u64 = 1_800_000_000;
const ROUNDS: usize = 7;
const ROUND_TIME: Duration = Duration::from_millis(60);

/// Prints the time of one call, which gets the number of the call.
fn time(what: &str, mut call: impl FnMut(u64)) {
    let mut best = Duration::MAX;
    let mut number = 0;
    for _ in 0..ROUNDS {
        let (start, mut calls) = (Instant::now(), 0);
        while start.elapsed() < ROUND_TIME {
            for _ in 0..16 {
                call(number);
                number += 1;
                calls += 1;
            }
        }
        best = best.min(start.elapsed() / calls);
    }
    let nanoseconds = best.as_nanos();
    if nanoseconds < 10_000 {
        println!("{what:<52} {nanoseconds:>7} ns");
    } else {
        println!("{what:<52} {:>7.1} us", nanoseconds as f64 / 1000.0);
    }
}

fn policy() -> Policy {
    Policy { audiences: vec!["throng".into()], ..Policy::default() }
}

fn authority(key: Key, max_cache_entries: usize) -> Arc<Authority> {
    let keys = KeySet::new(vec![Arc::new(key)]).expect("one key is a set");
    let revocations = Arc::new(Revocations::default());
    Authority::new(PublishedKeys::new(keys), policy(), revocations, max_cache_entries)
}

fn fixture_tokens() -> serde_json::Map<String, serde_json::Value> {
    serde_json::from_str(include_str!("../tests/fixtures/pyjwt.json")).expect("a fixture")
}

fn fixture_key(algorithm: Algorithm) -> Key {
    let pem = match algorithm {
        Algorithm::Rs256 | Algorithm::Ps256 => include_str!("../tests/fixtures/rs256.pem"),
        Algorithm::Es256 => include_str!("../tests/fixtures/es256.pem"),
        Algorithm::Es384 => include_str!("../tests/fixtures/es384.pem"),
        Algorithm::EdDsa => include_str!("../tests/fixtures/eddsa.pem"),
        _ => {
            let secret = include_str!("../tests/fixtures/hs512.secret");
            let secret = &secret.as_bytes()[..algorithm.secret_bytes_min()];
            return Key::from_secret(None, algorithm, secret).expect("a fixture");
        }
    };
    Key::from_pem(None, Some(algorithm), pem).expect("a fixture")
}

/// The token with another first character of its signature.
fn forged(token: &str) -> String {
    let (signed, signature) = token.rsplit_once('.').expect("a token");
    let other = if signature.starts_with('A') { 'B' } else { 'A' };
    format!("{signed}.{other}{}", &signature[1..])
}

/// Verification of each algorithm, without the cache and with it.
fn verifications() {
    let tokens = fixture_tokens();
    for algorithm in Algorithm::ALL {
        let token = tokens[algorithm.name()].as_str().expect("a fixture");
        let authority = authority(fixture_key(algorithm), 0);
        let mut verifier = authority.verifier();
        time(&format!("verify {}, {} bytes", algorithm.name(), token.len()), |_| {
            black_box(verifier.verify(black_box(token), NOW_S)).expect("a good token");
        });
    }
    let token = tokens["ES256"].as_str().expect("a fixture");
    let authority = authority(fixture_key(Algorithm::Es256), 1024);
    let mut verifier = authority.verifier();
    time("the same ES256 token again (cache hit)", |_| {
        black_box(verifier.verify(black_box(token), NOW_S)).expect("a good token");
    });
    let forged = forged(token);
    time("a forged ES256 token", |_| {
        black_box(verifier.verify(black_box(&forged), NOW_S)).expect_err("a forged token");
    });
}

/// HS256: what a storm of users costs, each with a token of their own.
fn users() {
    let secret = [7; 32];
    let signer = Signer::new(None, Algorithm::Hs256, &secret).expect("a good secret");
    let token = |number: u64| {
        signer.sign(&format!(
            r#"{{"sub":"user-{number}","aud":"throng","iat":{NOW_S},"exp":{},
            "throng":{{"subscribe":["rooms/*","private/{{user}}"]}}}}"#,
            NOW_S + 600
        ))
    };
    let tokens: Vec<_> = (0..200_000).map(token).collect();
    let key = || Key::from_secret(None, Algorithm::Hs256, &secret).expect("a good secret");
    let pick = |number: u64| &tokens[number as usize % tokens.len()];

    let mut verifier = authority(key(), 0).verifier();
    time("verify HS256, 200,000 users in turn", |number| {
        black_box(verifier.verify(pick(number), NOW_S)).expect("a good token");
    });
    let forged: Vec<_> = tokens.iter().take(1000).map(|token| forged(token)).collect();
    time("a forged HS256 token", |number| {
        let forged = &forged[number as usize % forged.len()];
        black_box(verifier.verify(forged, NOW_S)).expect_err("a forged token");
    });

    let before = resident_bytes();
    let authority = authority(key(), 2 * tokens.len());
    let mut verifier = authority.verifier();
    for token in &tokens {
        verifier.verify(token, NOW_S).expect("a good token");
    }
    let grown = resident_bytes().saturating_sub(before);
    time("cache hit, 200,000 users in turn", |number| {
        black_box(verifier.verify(pick(number), NOW_S)).expect("a good token");
    });
    println!("{:<52} {:>7} bytes", "each token in the cache", grown / tokens.len());
}

/// Cache hits on all cores at a time: what the locks of the shards cost.
fn contention() {
    let secret = [7; 32];
    let signer = Signer::new(None, Algorithm::Hs256, &secret).expect("a good secret");
    let claims = |number| format!(r#"{{"sub":"{number}","aud":"throng","exp":{}}}"#, NOW_S + 600);
    let tokens: Vec<_> = (0..1000).map(|number| signer.sign(&claims(number))).collect();
    let key = Key::from_secret(None, Algorithm::Hs256, &secret).expect("a good secret");
    let authority = authority(key, 2000);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    const HITS: usize = 1_000_000;
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let mut verifier = authority.verifier();
            let tokens = &tokens;
            scope.spawn(move || {
                for number in 0..HITS {
                    let token = &tokens[number % tokens.len()];
                    black_box(verifier.verify(token, NOW_S)).expect("a good token");
                }
            });
        }
    });
    let nanoseconds = start.elapsed().as_nanos() / HITS as u128;
    println!("{:<52} {nanoseconds:>7} ns", format!("cache hit on {threads} threads at a time"));
}

/// From a verified token to a decision.
fn decisions() {
    let tokens = fixture_tokens();
    let token = tokens["HS256"].as_str().expect("a fixture");
    let authority = authority(fixture_key(Algorithm::Hs256), 16);
    let identity = authority.verifier().verify(token, NOW_S).expect("a good token");
    let tagger = Tagger::from_seed([1; 16]);
    let mut table = GrantsTable::default();
    let held = table.hold(identity.grants());
    time("hold and release grants", |_| {
        let id = table.hold(black_box(identity.grants()));
        table.release(id);
    });
    let session = Session::new(&identity, held, &tagger, Lead::NONE);
    time("make a session", |_| {
        black_box(Session::new(&identity, held, &tagger, Lead::NONE));
    });
    let wanted = tagger.of_user("bob");
    time("compare a session with a revocation", |_| {
        black_box(black_box(&session).may_match(&wanted));
    });
    let rules = AccessRules::new(Vec::new(), ChannelAccess::default());
    for channel in ["rooms/lobby", "private/ann", "elsewhere"] {
        let name = ChannelName::channel(channel);
        time(&format!("may: subscribe to {channel}"), |_| {
            let asker =
                Credentials::Known { user: identity.user(), grants: table.get(session.grants()) };
            let access = rules.find(&name);
            let _ = black_box(may(&access, asker, Permission::Subscribe, &name));
        });
    }
}

fn server_keys() {
    let keys: Vec<_> = (0..10).map(|_| generate().expect("random bytes")).collect();
    let known = keys.iter().enumerate().map(|(number, key)| {
        let hash = KeyHash::of(key).expect("a new key");
        ServerKey::new(&number.to_string(), hash, Vec::new(), None)
    });
    let known = ServerKeys::new(known.collect()).expect("different keys");
    time("find one of ten server keys", |_| {
        black_box(known.find(black_box(&keys[9]))).expect("a known key");
    });
}

fn limits_and_addresses() {
    let keys = LimitKeys::default();
    let addresses: Vec<IpAddr> =
        (0..100_000_u32).map(|bits| IpAddr::from(bits.to_be_bytes())).collect();
    let address = |number: u64| addresses[number as usize % addresses.len()];
    let mut limiter = RateLimiter::new(RateMeter { per_second: 10, burst: 20 }, 1 << 17);
    time("take from a bucket, 100,000 addresses in turn", |number| {
        let _ = black_box(limiter.take(keys.address(address(number)), 1, NOW_S * 1000 + number));
    });
    let mut counts = LiveCounts::default();
    time("count a connection in and out", |number| {
        let key = keys.address(address(number));
        counts.acquire(key, 1, 100).expect("below the limit");
        counts.release(key, 1);
    });
    let peer = "10.0.0.1".parse().expect("an address");
    let trusted = Networks::new(vec!["10.0.0.0/8".parse().expect("a network")]);
    let value = "198.51.100.1, 203.0.113.9, 10.1.1.1";
    time("the client in X-Forwarded-For", |_| {
        let values = [value.as_bytes()].into_iter();
        let header = ForwardedHeader::XForwardedFor;
        black_box(client_address(peer, &trusted, header, values)).expect("a good header");
    });
    let header = b"PROXY TCP4 203.0.113.9 10.0.0.1 4711 443\r\n";
    time("a PROXY header, version 1", |_| {
        black_box(parse_proxy_header(black_box(header))).expect("a good header");
    });
}

/// The memory of this process, in bytes.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = status.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.map_or(0, |pages: usize| pages * 4096)
}

fn main() {
    verifications();
    users();
    contention();
    decisions();
    server_keys();
    limits_and_addresses();
}
