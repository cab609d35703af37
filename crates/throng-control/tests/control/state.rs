//! `/channels/{channel}/state`: pages of keys, one key, and its change.

use serde_json::{Value, json};
use throng_control::Settings;

use crate::client::{Answer, get, post, request};
use crate::credentials::{keys, token};
use crate::server::Server;

fn write(server: &Server, method: &str, target: &str, headers: &[&str], body: &str) -> Answer {
    let length = format!("Content-Length: {}", body.len());
    let headers: Vec<_> = headers.iter().copied().chain([&*length]).collect();
    server.ask(request(method, target, &headers) + body)
}

fn put(server: &Server, key: &str, body: &str) -> String {
    let answer = write(server, "PUT", &format!("/channels/a/state/{key}"), &[], body);
    assert_eq!(answer.status, 201, "{answer:?}");
    answer.json()["id"].as_str().expect("it is kept").to_owned()
}

fn page(server: &Server, query: &str) -> Value {
    let answer = server.ask(get(&format!("/channels/a/state{query}")));
    assert_eq!(answer.status, 200, "{query}: {answer:?}");
    assert_eq!(answer.field("throng-id"), answer.json()["id"].as_str());
    answer.json()
}

/// Keys and values of a page.
fn values(page: &Value) -> Vec<(&str, &str)> {
    let messages = page["messages"].as_array().unwrap().iter();
    messages.map(|it| (it["state_key"].as_str().unwrap(), it["data"].as_str().unwrap())).collect()
}

#[test]
fn a_key_is_set_read_and_removed() {
    let server = Server::new();
    put(&server, "b", "1");
    put(&server, "a%2Fb", "2");
    let newest = put(&server, "b", "3");
    assert_eq!(values(&page(&server, "")), [("a/b", "2"), ("b", "3")]);
    for target in ["/channels/a/state/b", "/channels/a/state?key=b", "/state?channel=a&key=b"] {
        let answer = server.ask(get(target));
        assert_eq!(answer.field("etag"), Some(&*format!("\"{newest}\"")), "{target}");
        let mut message = answer.json();
        message["time"].take();
        let expected = json!({"type": "message", "channel": "a", "id": newest, "time": null,
            "state_key": "b", "data": "3"});
        assert_eq!(message, expected, "{target}");
    }
    let removed = write(&server, "DELETE", "/channels/a/state/b", &[], "");
    assert_eq!(removed.status, 201, "{removed:?}");
    server.ask(get("/channels/a/state/b")).expect_refusal(404, "not_found");
    write(&server, "DELETE", "/channels/a/state?key=b", &[], "").expect_refusal(404, "not_found");
    assert_eq!(values(&page(&server, "")), [("a/b", "2")]);
    let history = server.ask(get("/channels/a/history?limit=1")).json();
    assert_eq!(history["messages"][0]["tombstone"], true);
    assert_eq!(history["messages"][0]["data"], Value::Null);
    let mut client = server.connect_again();
    client.send(request("HEAD", "/channels/a/state/a%2Fb", &[]));
    assert_eq!(client.answer_to_head().status, 200);
}

#[test]
fn keys_are_set_by_every_way_of_publishing() {
    let server = Server::new();
    let key = ["Throng-State-Key: header"];
    assert_eq!(server.ask(post("/channels/a", &key, "1")).status, 201);
    let batch = concat!(
        r#"{"channel":"a","state_key":"line","data":"2"}"#,
        "\n",
        r#"{"channel":"a","state_key":"header","tombstone":true}"#,
        "\n",
        r#"{"channel":"a","state_key":"unknown","tombstone":true}"#,
        "\n",
        r#"{"channel":"a","tombstone":true}"#,
        "\n",
        r#"{"channel":"a","state_key":"line","tombstone":true,"data":""}"#,
        "\n",
        r#"{"channel":"a","state_key":"unknown","tombstone":true,"data":null}"#,
    );
    let answer = server.ask(post("/publish", &[], batch));
    let lines: Vec<Value> =
        answer.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines[..2].iter().all(|line| line["id"].is_string()), "{lines:?}");
    let errors: Vec<_> = lines[2..].iter().map(|line| &line["error"]).collect();
    assert_eq!(errors, ["not_found", "bad_request", "bad_request", "not_found"]);
    assert_eq!(values(&page(&server, "")), [("line", "2")]);
    let inbox = write(&server, "PUT", "/state?user=ann&key=k", &[], "hi");
    assert_eq!(inbox.status, 201, "{inbox:?}");
    assert_eq!(server.ask(get("/users/ann/state/k")).json()["data"], "hi");
}

#[test]
fn a_page_goes_on_behind_its_last_key() {
    let server = Server::new();
    for n in 10..25 {
        put(&server, &format!("k{n}"), "x");
    }
    put(&server, "other", "x");
    let (mut found, mut after) = (Vec::new(), String::new());
    loop {
        let page = page(&server, &format!("?prefix=k&limit=4{after}"));
        found.extend(values(&page).iter().map(|(key, _)| (*key).to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    assert_eq!(found, (10..25).map(|n| format!("k{n}")).collect::<Vec<_>>());
    let large = "x".repeat(60_000);
    for n in 0..40 {
        put(&server, &format!("large{n:02}"), &large);
    }
    let first = page(&server, "?prefix=large");
    let (shown, next) = (values(&first).len(), first["next"].as_str().unwrap());
    assert!((15..25).contains(&shown), "{shown} of 40 in one page");
    let rest = page(&server, &format!("?prefix=large&after={next}"));
    assert!(values(&rest)[0].0 > next && values(&rest).len() > 15);
}

#[test]
fn a_value_is_compared_and_set() {
    let server = Server::new();
    let set =
        |header: &str, body: &str| write(&server, "PUT", "/channels/a/state/k", &[header], body);
    set("If-Match: \"z-1\"", "never").expect_refusal(412, "conflict");
    let first = set("If-None-Match: *", "1");
    assert_eq!(first.status, 201, "{first:?}");
    let first = first.json()["id"].as_str().unwrap().to_owned();
    let refused = set("If-None-Match: *", "2");
    assert!(refused.json()["message"].as_str().unwrap().contains(&first), "{refused:?}");
    assert_eq!(set(&format!("If-Match: \"{first}\""), "2").status, 201);
    set(&format!("If-Match: {first}"), "3").expect_refusal(412, "conflict");
    let old = [&*format!("If-Match: {first}")];
    write(&server, "DELETE", "/channels/a/state/k", &old, "").expect_refusal(412, "conflict");
    assert_eq!(values(&page(&server, "")), [("k", "2")]);
    // Two writers of one value: one of them wins.
    let id = page(&server, "")["messages"][0]["id"].as_str().unwrap().to_owned();
    let condition = format!("If-Match: {id}");
    let mut writers = [server.connect_again(), server.connect_again()];
    let target = "/channels/a/state/k";
    for writer in &mut writers {
        writer.send(request("PUT", target, &[&condition, "Content-Length: 1"]) + "4");
    }
    let statuses = writers.map(|mut writer| writer.answer().status);
    assert!(statuses == [201, 412] || statuses == [412, 201], "{statuses:?}");
}

#[test]
fn malformed_requests_about_keys_say_what_is_wrong() {
    let server = Server::new();
    let long = "k".repeat(256);
    let huge = "k".repeat(6_000);
    for target in [
        "/channels/a/state/".to_owned(),
        "/channels/a/state/%0A".to_owned(),
        "/channels/a/state/%FF".to_owned(),
        format!("/channels/a/state/{long}"),
        format!("/channels/a/state/{huge}"),
        "/channels/a/state?key=".to_owned(),
        "/channels/a/state".to_owned(),
        "/channels/a/state/k?volatile=true".to_owned(),
    ] {
        let answer = write(&server, "PUT", &target, &[], "x");
        answer.expect_refusal(400, "bad_parameter");
    }
    for headers in [
        &["If-Match: x"][..],
        &["If-Match: z-1", "If-None-Match: *"],
        &["If-None-Match: z-1"],
        &["Throng-State-Key: a", "Throng-State-Key: b"],
    ] {
        let answer = server.ask(post("/channels/a", headers, "x"));
        assert_eq!(answer.status, 400, "{headers:?}");
    }
    for headers in
        [&["If-Match: z-1"][..], &["Throng-State-Key: k", "If-Match: z-1", "Idempotency-Key: i"]]
    {
        server.ask(post("/channels/a", headers, "x")).expect_refusal(400, "bad_request");
    }
    let key = ["Throng-State-Key: k"];
    let other = write(&server, "PUT", "/channels/a/state/l", &key, "x");
    other.expect_refusal(400, "bad_parameter");
    server.ask(post("/channels/a?volatile=true", &key, "x")).expect_refusal(400, "bad_request");
    server.ask(get("/channels/a/state?limit=0")).expect_refusal(400, "bad_parameter");
    server.ask(get("/channels/a/state/k/more")).expect_refusal(404, "not_found");
    let method = server.ask(post("/channels/a/state/k", &[], "x"));
    assert_eq!(
        (method.status, method.field("allow")),
        (405, Some("DELETE, GET, HEAD, OPTIONS, PUT"))
    );
    assert_eq!(page(&server, "")["messages"], json!([]));
}

#[test]
fn a_message_in_place_of_a_value_has_its_key() {
    let server = Server::new();
    let (old, newest) = (put(&server, "k", "1"), put(&server, "k", "2"));
    let edit = |id: &str, headers: &[&str]| {
        write(&server, "PUT", &format!("/channels/a/messages/{id}"), headers, "3")
    };
    edit(&old, &[]).expect_refusal(412, "conflict");
    edit(&newest, &["Throng-State-Key: other"]).expect_refusal(400, "bad_parameter");
    let edited = edit(&newest, &[]);
    assert_eq!(edited.status, 200, "{edited:?}");
    let page = page(&server, "");
    assert_eq!(
        (values(&page), &page["messages"][0]["replaces"]),
        (vec![("k", "3")], &json!(newest))
    );
    let erased = server.ask(request(
        "DELETE",
        &format!("/channels/a/messages/{}", page["messages"][0]["id"].as_str().unwrap()),
        &[],
    ));
    assert_eq!(erased.status, 200, "{erased:?}");
    server.ask(get("/channels/a/state/k")).expect_refusal(404, "not_found");
}

#[test]
fn a_key_is_set_by_those_who_may() {
    let server = Server::controlled(Settings::for_tests(), keys().access);
    let publishes = token(json!({"throng": {"publish": ["a"], "history": ["a"]}}));
    let sets = token(json!({"throng": {"publish": ["a"], "state": ["a"]}}));
    let only_sets = token(json!({"throng": {"state": ["a"]}}));
    for refused in [&publishes, &only_sets] {
        let answer = write(&server, "PUT", "/channels/a/state/k", &[refused], "x");
        answer.expect_refusal(403, "forbidden");
        let header = server.ask(post("/channels/a", &["Throng-State-Key: k", refused], "x"));
        header.expect_refusal(403, "forbidden");
    }
    assert_eq!(write(&server, "PUT", "/channels/a/state/k", &[&sets], "x").status, 201);
    let line = r#"{"channel":"a","state_key":"k","tombstone":true}"#;
    let batch = server.ask(post("/publish", &[&publishes], line));
    assert!(batch.text().starts_with(r#"{"error":"forbidden""#), "{}", batch.text());
    assert_eq!(server.ask(post("/channels/a", &[&publishes], "without a key")).status, 201);
    write(&server, "DELETE", "/channels/a/state/k", &[&publishes], "")
        .expect_refusal(403, "forbidden");
    let read = server.ask(request("GET", "/channels/a/state/k", &[&publishes]));
    assert_eq!(read.json()["data"], "x");
}
