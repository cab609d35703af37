//! `GET …/history`.

use serde_json::{Value, json};

use crate::client::{get, post};
use crate::server::Server;

fn server_with(messages: usize) -> Server {
    let server = Server::new();
    let mut client = server.connect_again();
    for n in 1..=messages {
        client.send(post("/channels/a", &[], n.to_string()));
    }
    for _ in 0..messages {
        assert_eq!(client.answer().status, 201);
    }
    server
}

fn page(server: &Server, query: &str) -> Value {
    let answer = server.ask(get(&format!("/channels/a/history{query}")));
    assert_eq!(answer.status, 200, "{query}: {answer:?}");
    let json = answer.json();
    assert_eq!(answer.field("throng-id"), json["id"].as_str());
    json
}

fn texts(page: &Value) -> Vec<&str> {
    let messages = page["messages"].as_array().unwrap();
    messages.iter().map(|message| message["data"].as_str().unwrap()).collect()
}

#[test]
fn messages_are_envelopes() {
    let server = server_with(1);
    let mut page = page(&server, "");
    let time = page["messages"][0]["time"].take();
    assert!(time.as_u64().unwrap() > 1_700_000_000_000);
    let message =
        json!({"type": "message", "channel": "a", "id": "z-1", "time": null, "data": "1"});
    assert_eq!(page, json!({"channel": "a", "id": "z-1", "messages": [message], "more": false}));
}

#[test]
fn an_unknown_channel_is_empty() {
    let page = page(&Server::new(), "");
    assert_eq!(page, json!({"channel": "a", "id": "z-0", "messages": [], "more": false}));
}

#[test]
fn pages_go_both_ways() {
    let server = server_with(5);
    let newest = page(&server, "?limit=2");
    assert_eq!((texts(&newest), &newest["more"]), (vec!["4", "5"], &json!(true)));
    assert_eq!(newest["id"], "z-5");
    let before = page(&server, "?limit=2&before=z-4");
    assert_eq!((texts(&before), &before["more"]), (vec!["2", "3"], &json!(true)));
    assert_eq!(before.get("recovered"), None);
    let first = page(&server, "?limit=2&before=z-2");
    assert_eq!((texts(&first), &first["more"]), (vec!["1"], &json!(false)));
    let after = page(&server, "?limit=2&after=z-1");
    assert_eq!((texts(&after), &after["more"]), (vec!["2", "3"], &json!(true)));
    assert_eq!(after["recovered"], true);
    let last = page(&server, "?after=z-5");
    assert_eq!((texts(&last), &last["more"]), (vec![], &json!(false)));
    assert_eq!(last["recovered"], true);
    let strange = page(&server, "?after=other-1");
    assert_eq!(strange["recovered"], false);
    assert_eq!(texts(&strange), ["1", "2", "3", "4", "5"]);
}

#[test]
fn a_page_has_100_messages_unless_it_says() {
    let server = server_with(101);
    let page_of_all = page(&server, "");
    assert_eq!(page_of_all["messages"].as_array().unwrap().len(), 100);
    // The channel keeps no more than that.
    assert_eq!(page_of_all["more"], false);
}

#[test]
fn parameters_are_checked() {
    let server = Server::new();
    for (query, code) in [
        ("limit=0", "bad_parameter"),
        ("limit=1001", "bad_parameter"),
        ("limit=x", "bad_parameter"),
        ("limit=%ff", "bad_parameter"),
        ("before=z-1&after=z-2", "bad_parameter"),
        ("before=", "bad_id"),
        ("after=17", "bad_id"),
        ("after=z-1,z-2", "bad_id"),
    ] {
        let answer = server.ask(get(&format!("/channels/a/history?{query}")));
        answer.expect_refusal(400, code);
    }
    server.ask(get("/channels/../history")).expect_refusal(400, "bad_name");
    assert_eq!(server.refused("bad_parameter"), 5);
    let answer = server.ask(post("/channels/a/history", &[], "x"));
    answer.expect_refusal(405, "method_not_allowed");
    assert_eq!(answer.field("allow"), Some("GET, HEAD, OPTIONS"));
}
