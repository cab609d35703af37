//! Tests of the task with a server that changes what it says.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use throng_access::keys::{KeySet as Keys, KeySources, PublishedKeys};
use throng_access::token::{Policy, TokenError};
use throng_access::{Authority, Refusal, Verdict};
use throng_core::{Answer, Later, Ticket};

use super::*;
use crate::fake_server::{FakeServer, Reply, ok, response};

/// Every set is read again after this time.
const LIFETIME_MS: u64 = 20;

const LONG: Duration = Duration::from_secs(30);

fn key(id: &str) -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[id.as_bytes()[0]; 32]).unwrap()
}

fn jwks(ids: &[&str]) -> String {
    let jwk = |id: &&str| {
        let x = URL_SAFE_NO_PAD.encode(key(id).public_key());
        format!(r#"{{"kty": "OKP", "crv": "Ed25519", "kid": "{id}", "x": "{x}"}}"#)
    };
    format!(r#"{{"keys": [{}]}}"#, ids.iter().map(jwk).collect::<Vec<_>>().join(","))
}

fn token(key_id: &str, sign_with: &str) -> String {
    let header = format!(r#"{{"alg": "EdDSA", "kid": "{key_id}"}}"#);
    let claims = format!(r#"{{"sub": "ann", "exp": {}}}"#, now().unix_s + 600);
    let signed = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part)).join(".");
    let signature = URL_SAFE_NO_PAD.encode(key(sign_with).sign(signed.as_bytes()));
    format!("{signed}.{signature}")
}

type Answering = dyn Fn() -> Reply + Send;

struct World {
    server: FakeServer,
    answer: Arc<Mutex<Box<Answering>>>,
    authenticator: Arc<Authenticator>,
    metrics: Arc<KeySetMetrics>,
}

/// A running task with one URL, which answers so at first.
async fn world(lifetime_ms: u64, answer: impl Fn() -> Reply + Send + 'static) -> World {
    world_with_timeout(lifetime_ms, LONG, answer).await
}

/// The same, for a test in which the timeout of a request passes.
async fn world_with_timeout(
    lifetime_ms: u64,
    timeout: Duration,
    answer: impl Fn() -> Reply + Send + 'static,
) -> World {
    let answer: Arc<Mutex<Box<Answering>>> = Arc::new(Mutex::new(Box::new(answer)));
    let answering = Arc::clone(&answer);
    let server = FakeServer::start(move |_| answering.lock().unwrap()()).await;
    let published = PublishedKeys::new(Keys::default());
    let sources = KeySources::new(Arc::clone(&published));
    let authority = Authority::new(published, Policy::default(), Arc::default(), 100);
    let mut task = KeySetTask::new(Trust::none());
    task.timeout = timeout;
    let authenticator =
        Arc::new(Authenticator::new(authority, sources, Arc::default(), task.waker()));
    let settings = RefreshSettings { lifetime_ms, ..RefreshSettings::default() };
    task.add(&authenticator, server.url("/keys").parse().unwrap(), settings);
    let metrics = task.metrics();
    tokio::spawn(task.run(Arc::clone(&authenticator)));
    World { server, answer, authenticator, metrics }
}

impl World {
    fn ask(&self, token: &str) -> Receiver<Option<Verdict>> {
        let (sender, receiver) = channel();
        let mut issue = || {
            let sender = sender.clone();
            Ticket::new(move |verdict| drop(sender.send(verdict)))
        };
        let mut verifier = self.authenticator.verifier();
        let later = Later::new(&mut issue);
        let answer = self.authenticator.verify(&mut verifier, token, || None, now(), later);
        if let Answer::Now(verdict) = answer {
            sender.send(Some(verdict)).unwrap();
        }
        receiver
    }

    async fn verify(&self, token: &str) -> Result<(), Refusal> {
        let answers = self.ask(token);
        let wait = move || answers.recv().unwrap().expect("a verdict").map(drop);
        tokio::task::spawn_blocking(wait).await.unwrap()
    }

    fn answer_with(&self, answer: impl Fn() -> Reply + Send + 'static) {
        *self.answer.lock().unwrap() = Box::new(answer);
    }

    fn count(&self, word: &str) -> u64 {
        self.metrics.outcomes().find(|(outcome, _)| *outcome == word).unwrap().1
    }

    /// Waits until this outcome was counted again.
    async fn until_counted(&self, word: &str) {
        let before = self.count(word);
        while self.count(word) == before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

const UNKNOWN: Result<(), Refusal> = Err(Refusal::Token(TokenError::UnknownKey));

#[tokio::test]
async fn tokens_wait_for_the_first_set() {
    let world = world(600_000, || ok(&jwks(&["a"]))).await;
    assert_eq!(world.verify(&token("a", "a")).await, Ok(()));
    assert_eq!(world.verify(&token("a", "b")).await, Err(Refusal::Token(TokenError::Signature)));
    assert!(world.metrics.age_s().is_some_and(|age_s| age_s < LONG.as_secs()));
    let request = &world.server.requests()[0];
    assert!(request.starts_with("GET /keys HTTP/1.1\r\n"), "{request}");
}

#[tokio::test]
async fn unknown_keys_cause_one_request() {
    let world = world(600_000, || ok(&jwks(&["a"]))).await;
    for id in 0..100 {
        assert_eq!(world.verify(&token(&format!("x{id}"), "x")).await, UNKNOWN);
    }
    assert_eq!(world.server.requests().len(), 1);
}

#[tokio::test]
async fn a_set_that_changes_is_followed() {
    let world = world(LIFETIME_MS, || ok(&jwks(&["a"]))).await;
    assert_eq!(world.verify(&token("a", "a")).await, Ok(()));
    world.answer_with(|| ok(&jwks(&["b"])));
    // The fetch that is under way may still get the old set.
    world.until_counted("fetched").await;
    world.until_counted("fetched").await;
    assert_eq!(world.verify(&token("b", "b")).await, Ok(()));
    assert_eq!(world.verify(&token("a", "a")).await, UNKNOWN);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_stays_is_never_refused_while_the_set_changes() {
    let world = Arc::new(world(LIFETIME_MS, || ok(&jwks(&["a", "b"]))).await);
    assert_eq!(world.verify(&token("a", "a")).await, Ok(()));
    let is_over = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (world, is_over) = (Arc::clone(&world), Arc::clone(&is_over));
            tokio::spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    // A hit in the cache looks at the present keys, too.
                    assert_eq!(world.verify(&token("a", "a")).await, Ok(()));
                }
            })
        })
        .collect();
    for others in ["b", "c", "d", "e"] {
        world.answer_with(move || ok(&jwks(&[others, "a"])));
        world.until_counted("fetched").await;
        world.until_counted("fetched").await;
        assert_eq!(world.verify(&token(others, others)).await, Ok(()), "{others}");
    }
    is_over.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    assert_eq!(world.verify(&token("b", "b")).await, UNKNOWN);
}

#[tokio::test]
async fn the_last_good_set_stays_while_the_url_has_something_else() {
    let redirect = "Location: http://127.0.0.1:1/\r\n";
    let huge = format!(r#"{{"keys": [], "x": "{}"}}"#, "x".repeat(JWKS_BYTES_MAX));
    let bad: [(&str, Vec<u8>); 7] = [
        ("status", response("500 Internal Server Error", "", &jwks(&["b"]))),
        ("status", response("302 Found", redirect, &jwks(&["b"]))),
        ("bad_set", response("200 OK", "", "<html>")),
        ("bad_set", response("200 OK", "", r#"{"keys": []}"#)),
        ("too_large", response("200 OK", "", &huge)),
        ("protocol", b"what is this\r\n\r\n".to_vec()),
        ("timeout", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{".to_vec()),
    ];
    let timeout = Duration::from_millis(500);
    let world = world_with_timeout(LIFETIME_MS, timeout, || ok(&jwks(&["a"]))).await;
    assert_eq!(world.verify(&token("a", "a")).await, Ok(()));
    for (outcome, bytes) in bad {
        world.answer_with(move || Reply::BytesAndHang(bytes.clone()));
        world.until_counted(outcome).await;
        assert_eq!(world.verify(&token("a", "a")).await, Ok(()), "{outcome}");
        let unavailable = world.verify(&token("b", "b")).await;
        let is_unavailable = matches!(unavailable, Err(Refusal::KeysUnavailable { .. }));
        assert!(is_unavailable, "{outcome}: {unavailable:?}");
    }
    world.answer_with(|| ok(&jwks(&["b"])));
    world.until_counted("fetched").await;
    assert_eq!(world.verify(&token("b", "b")).await, Ok(()));
}

#[tokio::test]
async fn a_url_that_is_down_at_the_start_is_asked_again() {
    let world = world(LIFETIME_MS, || Reply::BytesAndClose(Vec::new())).await;
    let refusal = world.verify(&token("a", "a")).await;
    assert!(matches!(refusal, Err(Refusal::KeysUnavailable { .. })), "{refusal:?}");
    assert_eq!(world.metrics.age_s(), None);
    world.answer_with(|| ok(&jwks(&["a"])));
    world.until_counted("fetched").await;
    assert_eq!(world.verify(&token("a", "a")).await, Ok(()));
}
