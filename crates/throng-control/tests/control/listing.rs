//! `GET /channels` and `GET /users`.

use serde_json::{Value, json};
use throng_control::Settings;
use throng_core::ChannelName;

use crate::client::{get, get_from, post, request};
use crate::credentials::{Keys, keys, token};
use crate::server::Server;

fn publish(server: &Server, target: &str) {
    assert_eq!(server.ask(post(target, &[], "x")).status, 201);
}

/// All pages of a list, with these header lines: the names, and the number of pages.
fn names(server: &Server, target: &str, fields: &[&str]) -> (Vec<String>, usize) {
    let [field, plural] =
        if target.starts_with("/users") { ["user", "users"] } else { ["channel", "channels"] };
    let (mut names, mut pages, mut after) = (Vec::new(), 0, String::new());
    loop {
        let page = server.ask(request("GET", &format!("{target}{after}"), fields)).json();
        let entries = page[plural].as_array().unwrap();
        names.extend(entries.iter().map(|entry| entry[field].as_str().unwrap().to_owned()));
        pages += 1;
        assert_eq!(page["more"].as_bool().unwrap(), page.get("after").is_some());
        match page.get("after") {
            Some(cursor) => after = format!("&after={}", cursor.as_str().unwrap()),
            None => break,
        }
    }
    names.sort();
    (names, pages)
}

#[test]
fn a_list_says_what_each_channel_has() {
    let server = Server::new();
    publish(&server, "/channels/news");
    publish(&server, "/channels/news");
    publish(&server, "/users/ann");
    server.follow(&ChannelName::channel("news"));
    let news = json!({ "channel": "news", "subscribers": 1, "id": "z-2", "messages": 2 });
    let answer = server.ask(get("/channels"));
    assert_eq!(answer.json(), json!({ "channels": [news], "more": false }));
    let ann = json!({ "user": "ann", "subscribers": 0, "id": "z-1", "messages": 1 });
    assert_eq!(server.ask(get("/users")).json(), json!({ "users": [ann], "more": false }));
    let head = server.connect(request("HEAD", "/users", &[])).answer_to_head();
    assert_eq!(head.status, 200);
}

#[test]
fn pages_name_each_channel_once() {
    let server = Server::new();
    let mut rooms: Vec<_> = (0..300).map(|nth| format!("room-{nth}")).collect();
    for name in rooms.iter().chain([&"news".to_owned(), &"a/b c".to_owned()]) {
        publish(&server, &format!("/channels/{}", name.replace('/', "%2F").replace(' ', "%20")));
    }
    rooms.sort();
    let (found, pages) = names(&server, "/channels?limit=7&pattern=room-*", &[]);
    assert_eq!(found, rooms);
    assert!(pages >= 300 / 7, "{pages}");
    assert_eq!(names(&server, "/channels?pattern=*b%20c", &[]).0, ["a/b c"]);
    assert_eq!(names(&server, "/channels?pattern=room", &[]).0, [""; 0]);
    assert_eq!(names(&server, "/channels?limit=1000", &[]).0.len(), 302);
}

#[test]
fn a_request_works_for_a_short_time() {
    let server = Server::new();
    let name = |nth| format!("{nth:04}{}", "a".repeat(250));
    (0..2000).for_each(|nth| publish(&server, &format!("/channels/{}", name(nth))));
    let pattern = format!("*{}b", "a".repeat(120));
    let (found, pages) = names(&server, &format!("/channels?pattern={pattern}"), &[]);
    assert!(found.is_empty() && pages > 1, "{pages} pages");
    assert_eq!(server.metric("throng_http_lists_cut_total"), pages as u64 - 1);
}

#[test]
fn parameters_are_checked() {
    let server = Server::new();
    for query in [
        "limit=0",
        "limit=1001",
        "pattern=",
        "prefix=a",
        "after=",
        "after=1",
        "after=xyz",
        "after=0000000000",
        "limit=1&limit=1",
    ] {
        let answer = server.ask(get(&format!("/channels?{query}")));
        answer.expect_refusal(400, "bad_parameter");
    }
    let long = format!("/users?pattern={}", "x".repeat(256));
    server.ask(get(&long)).expect_refusal(400, "bad_parameter");
    for method in ["POST", "PUT", "DELETE"] {
        let answer = server.ask(request(method, "/channels", &[]));
        answer.expect_refusal(405, "method_not_allowed");
        assert_eq!(answer.field("allow"), Some("GET, HEAD, OPTIONS"));
    }
}

#[test]
fn a_key_with_the_scope_sees_what_its_patterns_match() {
    let Keys { access, publisher, operator, lister } = keys();
    let server = Server::controlled(Settings::for_tests(), access);
    for target in ["/channels/rooms", "/channels/news", "/users/roomer", "/users/ann"] {
        assert_eq!(server.ask(post(target, &[&publisher], "x")).status, 201);
    }
    let names = |target| names(&server, target, &[&lister]).0;
    assert_eq!(names("/channels?"), ["rooms"]);
    assert_eq!(names("/channels?pattern=*"), ["rooms"]);
    assert_eq!(names("/channels?pattern=news"), [""; 0]);
    assert_eq!(names("/users?"), ["roomer"]);
    for target in ["/channels", "/users", "/channels?after=bad"] {
        server.ask(get(target)).expect_refusal(401, "unauthorized");
        let granting = token(json!({ "throng": { "presence": ["*"], "subscribe": ["*"] } }));
        for credential in [&publisher, &operator, &granting] {
            let answer = server.ask(request("GET", target, &[credential]));
            answer.expect_refusal(403, "forbidden");
        }
        let page = [lister.as_str(), "Origin: http://127.0.0.1:8080"];
        server.ask(request("GET", target, &page)).expect_refusal(403, "forbidden");
    }
}

#[test]
fn without_keys_the_lists_are_where_the_status_is() {
    let server = Server::with(Settings { has_admin_listener: true, ..Settings::for_tests() });
    server.ask(get("/channels")).expect_refusal(403, "forbidden");
    let server = Server::with(Settings { listen: [192, 0, 2, 1].into(), ..Settings::for_tests() });
    server.ask(get_from("192.0.2.1", "/channels")).expect_refusal(403, "forbidden");
    let server = Server::new();
    assert_eq!(server.ask(get("/channels")).json()["channels"], Value::Array(vec![]));
}
