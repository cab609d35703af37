//! Tests of the authenticator, with fetches that the tests report.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};

use super::*;
use crate::algorithm::Algorithm;
use crate::keys::{KeySet, PublishedKeys, REFETCH_MS_MIN};
use crate::limit::{LimitSettings, Limiter, Quantity, Subject};
use crate::revocation::Revocations;
use crate::token::{Policy, Signer};

const UNIX_S: u64 = 1_800_000_000;

struct World {
    authenticator: Authenticator,
    url: SourceId,
    wakes: Arc<AtomicUsize>,
}

fn now(steady_ms: u64) -> Now {
    Now { steady_ms, unix_s: UNIX_S }
}

fn fetched(ids: &[&str]) -> Option<Fetched> {
    let key = |id: &&str| {
        let secret = [id.as_bytes()[0]; 32];
        Arc::new(Key::from_secret(Some(id), Algorithm::Hs256, &secret).unwrap())
    };
    Some(Fetched { keys: ids.iter().map(key).collect(), lifetime_ms: None })
}

fn token(key_id: &str) -> String {
    let secret = [key_id.as_bytes()[0]; 32];
    let signer = Signer::new(Some(key_id), Algorithm::Hs256, &secret).unwrap();
    signer.sign(&format!(r#"{{"sub": "ann", "exp": {}}}"#, UNIX_S + 60))
}

/// An authenticator with one URL, which has not been fetched yet.
fn world() -> World {
    world_with(Arc::default())
}

fn world_with(clients: Arc<Clients>) -> World {
    let keys = PublishedKeys::new(KeySet::default());
    let sources = KeySources::new(Arc::clone(&keys));
    let revocations = Arc::new(Revocations::default());
    let authority = Authority::new(keys, Policy::default(), revocations, 100);
    let wakes = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&wakes);
    let wake = move || {
        counter.fetch_add(1, Ordering::Relaxed);
    };
    let authenticator = Authenticator::new(authority, sources, clients, wake);
    let url = authenticator.add_url(RefreshSettings::default(), now(0));
    World { authenticator, url, wakes }
}

impl World {
    /// Verifies, and sends the answer whenever it comes.
    fn verify(&self, token: &str, now: Now) -> Receiver<Option<Verdict>> {
        self.verify_from(None, token, now)
    }

    fn verify_from(
        &self,
        address: Option<&str>,
        token: &str,
        now: Now,
    ) -> Receiver<Option<Verdict>> {
        let address = address.map(|address| address.parse().unwrap());
        let (sender, receiver) = channel();
        let mut issue = || {
            let sender = sender.clone();
            Ticket::new(move |verdict| sender.send(verdict).unwrap())
        };
        let mut verifier = self.authenticator.verifier();
        let later = Later::new(&mut issue);
        let answer = self.authenticator.verify(&mut verifier, token, || address, now, later);
        if let Answer::Now(verdict) = answer {
            sender.send(Some(verdict)).unwrap();
        }
        receiver
    }

    fn fetch(&self, ids: Option<&[&str]>, now: Now) {
        assert_eq!(self.authenticator.begin(now), [self.url]);
        self.authenticator.fetched(self.url, ids.and_then(fetched), now).unwrap();
    }
}

/// The answer that is there.
fn answer(answers: &Receiver<Option<Verdict>>) -> Result<(), Refusal> {
    answers.try_recv().expect("an answer").expect("a verdict").map(|_| ())
}

const UNKNOWN: Result<(), Refusal> = Err(Refusal::Token(TokenError::UnknownKey));

#[test]
fn tokens_wait_for_the_first_key_set() {
    let world = world();
    let [good, unknown] = ["a", "x"].map(|id| world.verify(&token(id), now(0)));
    assert!(good.try_recv().is_err() && unknown.try_recv().is_err());
    assert_eq!(world.wakes.load(Ordering::Relaxed), 2);
    world.fetch(Some(&["a"]), now(10));
    assert_eq!(answer(&good), Ok(()));
    assert_eq!(answer(&unknown), UNKNOWN);
    assert_eq!(answer(&world.verify(&token("a"), now(20))), Ok(()));
    assert_eq!(answer(&world.verify(&token("x"), now(20))), UNKNOWN, "the set is new");
    assert_eq!(world.wakes.load(Ordering::Relaxed), 2);
}

#[test]
fn a_new_key_is_fetched_when_the_first_token_names_it() {
    let world = world();
    world.fetch(Some(&["a"]), now(0));
    assert!(world.authenticator.due_ms().unwrap() > REFETCH_MS_MIN);
    let waiting = world.verify(&token("b"), now(REFETCH_MS_MIN));
    assert_eq!(world.authenticator.due_ms(), Some(REFETCH_MS_MIN));
    assert_eq!(world.authenticator.begin(now(REFETCH_MS_MIN)), [world.url]);
    let also_waiting = world.verify(&token("b"), now(REFETCH_MS_MIN + 1));
    let at = now(REFETCH_MS_MIN + 2);
    let changed = world.authenticator.fetched(world.url, fetched(&["a", "b"]), at);
    assert_eq!(changed, Ok(true));
    assert_eq!((answer(&waiting), answer(&also_waiting)), (Ok(()), Ok(())));
}

#[test]
fn while_the_url_is_down_the_last_good_set_stays() {
    let world = world();
    world.fetch(Some(&["a"]), now(0));
    let waiting = world.verify(&token("b"), now(REFETCH_MS_MIN));
    world.fetch(None, now(REFETCH_MS_MIN));
    assert_eq!(answer(&waiting), Err(Refusal::KeysUnavailable { retry_ms: 1000 }));
    assert_eq!(answer(&world.verify(&token("a"), now(REFETCH_MS_MIN))), Ok(()));
    let unavailable = world.verify(&token("b"), now(REFETCH_MS_MIN + 400));
    assert_eq!(answer(&unavailable), Err(Refusal::KeysUnavailable { retry_ms: 600 }));
}

#[test]
fn a_token_waits_for_all_urls() {
    let world = world();
    let other = world.authenticator.add_url(RefreshSettings::default(), now(0));
    let waiting = world.verify(&token("b"), now(0));
    assert_eq!(world.authenticator.begin(now(0)), [world.url, other]);
    world.authenticator.fetched(world.url, fetched(&["a"]), now(1)).unwrap();
    assert!(waiting.try_recv().is_err());
    world.authenticator.fetched(other, fetched(&["b"]), now(2)).unwrap();
    assert_eq!(answer(&waiting), Ok(()));
}

/// Before the first fetch a token without an id has nothing that could be unknown.
#[test]
fn a_token_without_an_id_waits_for_the_first_key_set() {
    let world = world();
    let other = world.authenticator.add_url(RefreshSettings::default(), now(0));
    let signed_with = |byte| {
        let signer = Signer::new(None, Algorithm::Hs256, &[byte; 32]).unwrap();
        signer.sign(&format!(r#"{{"exp": {}}}"#, UNIX_S + 60))
    };
    let token = signed_with(b'b');
    assert_eq!(world.authenticator.begin(now(0)), [world.url, other]);
    world.authenticator.fetched(world.url, fetched(&["a"]), now(1)).unwrap();
    let waiting = world.verify(&token, now(2));
    assert!(waiting.try_recv().is_err(), "its signature is wrong by the keys so far");
    world.authenticator.fetched(other, fetched(&["b"]), now(3)).unwrap();
    assert_eq!(answer(&waiting), Ok(()));
    let forged = world.verify(&signed_with(b'x'), now(4));
    assert_eq!(answer(&forged), Err(Refusal::Token(TokenError::Signature)));
}

#[test]
fn the_number_of_waiting_tokens_is_limited() {
    let world = world();
    let waiting: Vec<_> = (0..WAITING_MAX).map(|_| world.verify(&token("a"), now(0))).collect();
    let beyond = world.verify(&token("a"), now(0));
    assert_eq!(answer(&beyond), Err(Refusal::TooManyWaiting));
    world.fetch(Some(&["a"]), now(1));
    assert!(waiting.iter().all(|answers| answer(answers) == Ok(())));
}

#[test]
fn a_server_without_urls_refuses_at_once() {
    let keys = PublishedKeys::new(KeySet::default());
    let sources = KeySources::new(Arc::clone(&keys));
    let authority = Authority::new(keys, Policy::default(), Arc::default(), 100);
    let authenticator =
        Authenticator::new(authority, sources, Arc::default(), || panic!("nothing to fetch"));
    let mut issue = || panic!("nothing to wait for");
    let mut verifier = authenticator.verifier();
    let later = Later::new(&mut issue);
    let address = || panic!("nothing is limited");
    let verdict = authenticator.verify(&mut verifier, &token("a"), address, now(0), later);
    assert_eq!(verdict.now(), Some(Err(Refusal::Token(TokenError::UnknownKey))));
    assert_eq!(authenticator.due_ms(), None);
}

#[test]
fn files_that_are_read_again_replace_their_keys() {
    let published = PublishedKeys::new(KeySet::default());
    let mut sources = KeySources::new(Arc::clone(&published));
    let files = sources.add();
    let keys = |id| fetched(&[id]).unwrap().keys;
    sources.replace(files, keys("a")).unwrap();
    let revocations = Arc::new(Revocations::default());
    let authority = Authority::new(published, Policy::default(), revocations, 100);
    let authenticator = Authenticator::new(authority, sources, Arc::default(), || {});
    let mut verifier = authenticator.verifier();
    assert!(verifier.verify(&token("a"), UNIX_S).is_ok());
    assert_eq!(authenticator.replace(files, keys("b")), Ok(true));
    assert_eq!(authenticator.replace(files, keys("b")), Ok(false));
    assert!(verifier.verify(&token("a"), UNIX_S).is_err(), "also from the cache");
    assert!(verifier.verify(&token("b"), UNIX_S).is_ok());
}

/// With a limit of three forged tokens per second, whatever they lack.
fn limited_world() -> World {
    let limits = LimitSettings { bad_tokens_per_s: 3, ..LimitSettings::default() };
    world_with(Arc::new(Clients { limiter: Limiter::new(limits), ..Clients::default() }))
}

/// The milliseconds after which the address may send tokens again.
fn limited_ms(result: Result<(), Refusal>) -> u64 {
    match result {
        Err(Refusal::Limited(refusal)) => refusal.after_ms.expect("a moment to come back"),
        result => panic!("not limited: {result:?}"),
    }
}

#[test]
fn forged_tokens_count_against_their_address() {
    let world = limited_world();
    world.fetch(Some(&["a"]), now(0));
    let [here, elsewhere] = [Some("192.0.2.1"), Some("192.0.2.2")];
    let known = token("a");
    assert_eq!(answer(&world.verify_from(here, &known, now(1))), Ok(()));
    let forged = format!("{}x", token("a"));
    for token in [&forged, "no token", &"x".repeat(100 << 10)] {
        assert!(matches!(answer(&world.verify_from(here, token, now(1))), Err(Refusal::Token(_))));
    }
    for token in [&forged, &token("x"), "no token"] {
        assert_eq!(limited_ms(answer(&world.verify_from(here, token, now(1)))), 334);
    }
    assert_eq!(answer(&world.verify_from(here, &known, now(1))), Ok(()), "it was verified before");
    assert_eq!(answer(&world.verify_from(elsewhere, &token("x"), now(1))), UNKNOWN);
    assert_eq!(answer(&world.verify(&token("x"), now(1))), UNKNOWN, "its address is not known");
    assert_eq!(answer(&world.verify_from(here, &token("x"), now(335))), UNKNOWN);
    let limiter = &world.authenticator.clients.limiter;
    assert_eq!(limiter.refused(Subject::Address, Quantity::BadTokens), 3);
}

#[test]
fn few_tokens_of_one_address_wait_for_keys() {
    let limits = LimitSettings { questions: 2, ..LimitSettings::default() };
    let world =
        world_with(Arc::new(Clients { limiter: Limiter::new(limits), ..Clients::default() }));
    let [here, elsewhere] = [Some("192.0.2.1"), Some("192.0.2.2")];
    let waiting: Vec<_> = [here, here, elsewhere, None, None, None]
        .map(|address| world.verify_from(address, &token("a"), now(0)))
        .into();
    let refused = answer(&world.verify_from(here, &token("a"), now(0)));
    assert!(matches!(refused, Err(Refusal::Limited(_))), "{refused:?}");
    world.fetch(Some(&["b"]), now(10));
    assert!(waiting.iter().all(|late| answer(late) == UNKNOWN));
    let limiter = &world.authenticator.clients.limiter;
    assert_eq!(limiter.refused(Subject::Address, Quantity::Questions), 1);
    assert_eq!(limiter.holders(), 0);
}

#[test]
fn expired_and_waiting_tokens_do_not_count_as_forged() {
    let world = limited_world();
    let here = Some("192.0.2.1");
    let waiting: Vec<_> = (0..5).map(|_| world.verify_from(here, &token("a"), now(0))).collect();
    world.fetch(None, now(1));
    assert!(
        waiting.iter().all(|late| matches!(answer(late), Err(Refusal::KeysUnavailable { .. })))
    );
    world.fetch(Some(&["a"]), now(2000));
    let expired = Now { unix_s: UNIX_S + 3600, ..now(2001) };
    for _ in 0..5 {
        let late = world.verify_from(here, &token("a"), expired);
        assert_eq!(answer(&late), Err(Refusal::Token(TokenError::Expired)));
    }
}

#[test]
fn a_token_whose_key_nobody_has_counts_when_that_turns_out() {
    let world = limited_world();
    let here = Some("192.0.2.1");
    let waiting: Vec<_> = (0..5).map(|_| world.verify_from(here, &token("x"), now(0))).collect();
    world.fetch(Some(&["a"]), now(10));
    assert!(waiting.iter().all(|late| answer(late) == UNKNOWN));
    assert_eq!(limited_ms(answer(&world.verify_from(here, &token("a"), now(10)))), 1000);
}

#[test]
fn a_token_whose_signature_takes_long_is_verified_elsewhere() {
    let pem = include_str!("../../tests/fixtures/es384.pem");
    let es384 = Arc::new(Key::from_pem(None, None, pem).unwrap());
    let keys = PublishedKeys::new(KeySet::new(vec![es384]).unwrap());
    let sources = KeySources::new(Arc::clone(&keys));
    let authority = Authority::new(keys, Policy::default(), Arc::default(), 100);
    let authenticator = Authenticator::new(authority, sources, Arc::default(), || ());
    let mut verifier = authenticator.verifier();
    let (sender, verdicts) = channel();
    let mut verify = |token: &str| {
        let sender = sender.clone();
        let mut issue = || {
            let sender = sender.clone();
            Ticket::new(move |verdict: Option<Verdict>| {
                sender.send(verdict.expect("an answer")).expect("the test listens");
            })
        };
        let later = Later::new(&mut issue);
        authenticator.verify_shortly(&mut verifier, token, || None, now(0), later)
    };
    // Its header demands ES384.
    let forged = format!("eyJhbGciOiJFUzM4NCJ9.e30.{}", "AA".repeat(64));
    assert!(matches!(verify(&forged), Answer::Later(_)));
    let verdict = verdicts.recv().expect("the other thread answers");
    assert_eq!(verdict, Err(Refusal::Token(TokenError::Signature)));
    assert!(matches!(verify("x"), Answer::Now(Err(_))), "nothing to verify");
    assert_eq!(authenticator.slow_counts(), (1, 0));
}
