//! Tokens and server keys on the control plane, and the login of the status page.

use std::sync::Arc;

use serde_json::json;
use throng_access::algorithm::Algorithm;
use throng_access::keys::{Key, KeySet, KeySources, PublishedKeys};
use throng_access::pattern::Pattern;
use throng_access::server_key::{KeyHash, ServerKeys, generate};
use throng_access::session::Tagger;
use throng_access::token::Signer;
use throng_access::{
    Access, AccessControl, AccessRules, AllowedPages, Authenticator, Authority, Policy,
    Revocations, Scope, ServerKey,
};
use throng_control::Settings;
use throng_core::{Kind, Listener, clock};

use crate::client::{Answer, get, post, request};
use crate::server::Server;

const SECRET: [u8; 32] = [7; 32];

/// The keys of a server, and the header lines that show them.
pub(crate) struct Keys {
    pub(crate) access: AccessControl,
    pub(crate) publisher: String,
    pub(crate) operator: String,
    /// It lists channels and users called `room*`.
    pub(crate) lister: String,
}

fn bearer(credential: &str) -> String {
    format!("Authorization: Bearer {credential}")
}

/// A token of `ann`, with more claims.
pub(crate) fn token(claims: serde_json::Value) -> String {
    let signer = Signer::new(None, Algorithm::Hs256, &SECRET).unwrap();
    let mut all = json!({ "sub": "ann", "exp": clock::machine_ms() / 1000 + 60 });
    all.as_object_mut().unwrap().extend(claims.as_object().unwrap().clone());
    bearer(&signer.sign(&all.to_string()))
}

pub(crate) fn keys() -> Keys {
    keys_with(Arc::new(Revocations::default()))
}

pub(crate) fn keys_with(revocations: Arc<Revocations>) -> Keys {
    let published = PublishedKeys::new(KeySet::default());
    let mut sources = KeySources::new(Arc::clone(&published));
    let source = sources.add();
    let hs256 = Key::from_secret(None, Algorithm::Hs256, &SECRET).unwrap();
    // No token has a signature of it: it makes tokens that name its algorithm take long.
    let pem = include_str!("../../../throng-access/tests/fixtures/es384.pem");
    let es384 = Key::from_pem(None, None, pem).unwrap();
    sources.replace(source, vec![Arc::new(hs256), Arc::new(es384)]).unwrap();
    let authority = Authority::new(published, Policy::default(), revocations, 100);
    let [publisher, operator, lister] = [generate(), generate(), generate()].map(Result::unwrap);
    let key =
        |name, key: &str, scope| ServerKey::new(name, KeyHash::of(key).unwrap(), vec![scope], None);
    let rooms = [Kind::Channel, Kind::User].map(|kind| Pattern::new(kind, "room*").unwrap());
    let listing = vec![Scope::Listing];
    let server_keys = ServerKeys::new(vec![
        key("publisher", &publisher, Scope::Publish),
        key("operator", &operator, Scope::Administration),
        ServerKey::new("lister", KeyHash::of(&lister).unwrap(), listing, Some(rooms.into())),
    ]);
    let access = AccessControl {
        tokens: Some(Arc::new(Authenticator::new(authority, sources, Arc::default(), || {}))),
        server_keys: Arc::new(server_keys.unwrap()).into(),
        tagger: Tagger::from_seed([1; 16]),
        token_cookie: Some("session".into()),
        ..AccessControl::open(Arc::new(AccessRules::default()) as Arc<dyn Access>)
    };
    let [publisher, operator, lister] = [publisher, operator, lister].map(|key| bearer(&key));
    Keys { access, publisher, operator, lister }
}

fn server() -> (Server, String, String) {
    let Keys { access, publisher, operator, .. } = keys();
    (Server::controlled(Settings::for_tests(), access), publisher, operator)
}

fn publish(server: &Server, field: &str) -> Answer {
    server.ask(post("/channels/a", &[field], "x"))
}

/// Expects a refusal with 401, and returns the challenge.
fn challenge(answer: &Answer, code: &str) -> String {
    answer.expect_refusal(401, code);
    answer.field("www-authenticate").unwrap().to_owned()
}

#[test]
fn a_token_may_do_what_it_grants() {
    let (server, ..) = server();
    let granting = token(json!({ "throng": { "publish": ["a"], "history": ["b"] } }));
    assert_eq!(publish(&server, &granting).status, 201);
    let with = |target| request("GET", target, &[&granting]);
    server.ask(with("/channels/a/history")).expect_refusal(403, "forbidden");
    assert_eq!(server.ask(with("/channels/b/history")).status, 200);
    server.ask(with("/channels/b/presence")).expect_refusal(403, "forbidden");
    for target in ["/channels/a%2Fb", "/channels/b"] {
        server.ask(post(target, &[&granting], "x")).expect_refusal(403, "forbidden");
    }
    let answer = server.ask(get("/channels/b/history"));
    assert_eq!(challenge(&answer, "unauthorized"), "Bearer");
    let basic = publish(&server, "Authorization: Basic YTpi");
    assert_eq!(challenge(&basic, "unauthorized"), "Bearer");
}

#[test]
fn each_line_of_a_batch_is_decided() {
    let (server, ..) = server();
    let granting = token(json!({ "throng": { "publish": ["a"] } }));
    let lines = "{\"channel\":\"a\",\"data\":1}\n{\"channel\":\"b\",\"data\":1}\n";
    let answer = server.ask(post("/publish", &[&granting], lines));
    let mut results = answer.text().lines();
    assert!(results.next().unwrap().contains("\"id\""));
    assert!(results.next().unwrap().contains("\"forbidden\""));
    let none = token(json!({}));
    server.ask(post("/publish", &[&none], lines)).expect_refusal(403, "forbidden");
    server.ask(post("/publish", &[], lines)).expect_refusal(401, "unauthorized");
}

#[test]
fn bad_credentials_are_refused_and_counted() {
    let (server, _, operator) = server();
    let good = token(json!({}));
    let forged = format!("{}AAAA", &good[..good.len() - 4]);
    let expired = token(json!({ "exp": 1000 }));
    // A header that demands ES384, so that another thread verifies it.
    let slow = bearer("eyJhbGciOiJFUzM4NCJ9.e30.AAAA");
    let unknown = bearer(&generate().unwrap());
    for (field, code, reason) in [
        (&forged, "invalid_token", "signature"),
        (&slow, "invalid_token", "signature"),
        (&bearer("x"), "invalid_token", "malformed"),
        (&bearer("throng_key_x"), "invalid_token", "malformed_server_key"),
        (&unknown, "invalid_token", "unknown_server_key"),
        (&expired, "token_expired", "expired"),
    ] {
        let before = refused(&server, &operator, reason);
        let answer = publish(&server, field);
        assert_eq!(challenge(&answer, code), "Bearer error=\"invalid_token\"");
        assert_eq!(refused(&server, &operator, reason), before + 1, "{reason}");
        let credential = field.rsplit(' ').next().unwrap();
        assert!(credential.len() < 5 || !answer.text().contains(credential), "{answer:?}");
    }
    let two = server.ask(post("/channels/a", &[&good, &operator], "x"));
    two.expect_refusal(400, "bad_request");
}

/// How many credentials were refused for this reason.
fn refused(server: &Server, operator: &str, reason: &str) -> u64 {
    let page = server.ask(request("GET", "/metrics", &[operator]));
    let name = format!("throng_http_credentials_refused_total{{reason=\"{reason}\"}} ");
    let line = page.text().lines().find_map(|line| line.strip_prefix(&name));
    line.expect("the metric").parse().unwrap()
}

#[test]
fn a_key_counts_in_the_header_and_not_from_a_page() {
    let (server, publisher, _) = server();
    assert_eq!(publish(&server, &publisher).status, 201);
    let history = request("GET", "/channels/a/history", &[&publisher]);
    server.ask(history).expect_refusal(403, "forbidden");
    let page = ["Origin: http://127.0.0.1", &publisher];
    server.ask(post("/channels/a", &page, "x")).expect_refusal(403, "forbidden");
    let cookie = publisher.replace("Authorization: Bearer ", "Cookie: session=");
    server.ask(post("/channels/a", &[&cookie], "x")).expect_refusal(403, "origin_refused");
}

#[test]
fn a_cookie_counts_for_listed_pages_only() {
    let allowed_origins = vec!["https://page.example".into(), "*".into()];
    let pages = AllowedPages::new(allowed_origins, Vec::new()).shared();
    let settings = Settings { pages, ..Settings::for_tests() };
    let server = Server::controlled(settings, keys().access);
    let granting = token(json!({ "throng": { "publish": ["a"], "history": ["a"] } }));
    let cookie = granting.replace("Authorization: Bearer ", "Cookie: session=");
    let from = |origin| {
        let fields = [cookie.as_str(), origin];
        (post("/channels/a", &fields, "x"), request("GET", "/channels/a/history", &fields))
    };
    let (write, read) = from("Origin: https://page.example");
    let answer = server.ask(write);
    assert_eq!(answer.status, 201);
    assert_eq!(answer.field("access-control-allow-credentials"), Some("true"));
    assert_eq!(server.ask(read).status, 200);
    let (write, read) = from("Origin: https://other.example");
    for request in [write, read.into()] {
        let answer = server.ask(request);
        answer.expect_refusal(403, "origin_refused");
        assert_eq!(answer.field("access-control-allow-credentials"), None);
    }
    let read = |fields: &[&str]| server.ask(request("GET", "/channels/a/history", fields));
    assert_eq!(read(&[&cookie]).status, 200);
    assert_eq!(read(&[&cookie, "Sec-Fetch-Site: same-origin"]).status, 200);
    for site in ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site"] {
        read(&[&cookie, site]).expect_refusal(403, "origin_refused");
    }
    server.ask(post("/channels/a", &[&cookie], "x")).expect_refusal(403, "origin_refused");
}

#[test]
fn a_head_request_is_decided_like_its_get() {
    let (server, ..) = server();
    let head = |target: &str, fields: &[&str]| {
        server.connect(request("HEAD", target, fields)).answer_to_head().status
    };
    let granting = token(json!({ "throng": { "subscribe": ["a"] } }));
    assert_eq!(head("/channels/a", &[&granting]), 200);
    assert_eq!(head("/channels/b", &[&granting]), 403);
    assert_eq!(head("/channels/a", &[]), 401);
    let query = granting.replace("Authorization: Bearer ", "/channels/a?token=");
    assert_eq!(head(&query, &[]), 200);
    assert_eq!(head("/channels/a?user=ann", &[&granting]), 200);
    assert_eq!(head("/channels/a?user=bob", &[&granting]), 403);
    assert_eq!(head("/channels/a?user=ann", &[]), 401);
    assert_eq!(head("/users/ann", &[&granting]), 200);
    assert_eq!(head("/users/bob", &[&granting]), 403);
}

#[test]
fn status_and_metrics_need_the_scope() {
    let (server, publisher, operator) = server();
    for target in ["/status", "/status.json", "/metrics"] {
        let ask = |fields: &[&str]| server.ask(request("GET", target, fields));
        let answer = ask(&[]);
        assert_eq!((answer.status, answer.field("www-authenticate")), (401, Some("Bearer")));
        ask(&[&publisher]).expect_refusal(403, "forbidden");
        ask(&[&token(json!({}))]).expect_refusal(403, "forbidden");
        // The first sample may not be there yet.
        assert!(matches!(ask(&[&operator]).status, 200 | 503), "{target}");
    }
    let stream = |fields: &[&str]| server.connect(request("GET", "/status/stream", fields));
    stream(&[]).answer().expect_refusal(401, "unauthorized");
    stream(&[&publisher]).answer().expect_refusal(403, "forbidden");
    let _viewer = stream(&[&operator]);
    let (listener, _, bytes) = server.edge.handed_off_by();
    assert_eq!(listener, Listener::Admin, "the worker need not check it again");
    assert!(bytes.starts_with(b"GET /status/stream "));
}

/// The answer to the form of the login page.
pub(crate) fn log_in(server: &Server, origin: &str, key: &str) -> Answer {
    let fields = [&*format!("Origin: {origin}"), "Content-Type: application/x-www-form-urlencoded"];
    let key = key.trim_start_matches("Authorization: Bearer ");
    server.ask(post("/status/login", &fields, format!("key={key}")))
}

#[test]
fn an_operator_logs_in_once() {
    let (server, publisher, operator) = server();
    let page = server.ask(get("/status"));
    assert!(page.text().contains("<form") && page.text().contains("id=\"refusal\""));
    assert!(page.field("content-security-policy").unwrap().contains("form-action 'self'"));
    let answer = log_in(&server, "http://127.0.0.1", &operator);
    assert_eq!((answer.status, answer.field("location")), (303, Some("/status")));
    let cookie = answer.field("set-cookie").unwrap();
    for attribute in ["; HttpOnly", "; SameSite=Strict", "; Path=/", "; Max-Age=43200"] {
        assert!(cookie.contains(attribute), "{cookie}");
    }
    let cookie = format!("Cookie: {}", cookie.split(';').next().unwrap());
    for target in ["/status", "/metrics"] {
        assert_eq!(server.ask(request("GET", target, &[&cookie])).status, 200, "{target}");
    }
    let publication = server.ask(post("/channels/a", &[&cookie], "x"));
    publication.expect_refusal(401, "unauthorized");
    let forged = cookie.replace('A', "B");
    assert_eq!(server.ask(request("GET", "/status", &[&forged])).status, 401);
    let out = server.ask(post("/status/logout", &[], ""));
    assert!(out.field("set-cookie").unwrap().contains("Max-Age=0"));
    assert_eq!(log_in(&server, "http://127.0.0.1", &publisher).status, 403);
}

#[test]
fn failed_logins_are_refused_on_the_page_and_limited() {
    let (server, _, operator) = server();
    let wrong = generate().unwrap();
    let answers: Vec<_> = (0..10).map(|_| log_in(&server, "http://localhost", &wrong)).collect();
    let first = &answers[0];
    assert_eq!(first.status, 401);
    assert!(first.text().contains("is not known here") && !first.text().contains(&wrong));
    let limited = answers.iter().find(|answer| answer.status == 429).expect("a limit");
    assert!(limited.field("retry-after").is_some());
    assert_eq!(log_in(&server, "http://localhost", &operator).status, 429);
}

#[test]
fn a_login_needs_tls_or_loopback() {
    let allowed_origins = vec!["http://page.example".into(), "https://page.example".into()];
    let pages = AllowedPages::new(allowed_origins, Vec::new()).shared();
    let settings = Settings { pages, ..Settings::for_tests() };
    let Keys { access, operator, .. } = keys();
    let server = Server::controlled(settings, access);
    let answer = log_in(&server, "http://page.example", &operator);
    assert_eq!((answer.status, answer.field("set-cookie")), (403, None));
    let answer = log_in(&server, "https://page.example", &operator);
    assert_eq!(answer.status, 303);
    assert!(answer.field("set-cookie").unwrap().ends_with("; Secure"));
    let fields = ["Content-Type: application/x-www-form-urlencoded"];
    assert_eq!(server.ask(post("/status/login", &fields, "key=x")).status, 403);
}

#[test]
fn a_server_without_keys_ignores_credentials() {
    let server = Server::new();
    for field in [bearer("x"), bearer("throng_key_x"), token(json!({ "exp": 1 }))] {
        assert_eq!(publish(&server, &field).status, 201);
        assert_eq!(server.ask(request("GET", "/metrics", &[&field])).status, 200);
    }
    let answer = log_in(&server, "http://127.0.0.1", "x");
    assert_eq!(answer.status, 404);
}
