//! `GET …/history`.

use serde_json::{Value, json};
use throng_control::Settings;

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
fn an_unknown_parameter_is_refused_with_the_nearest_known_one() {
    let server = Server::new();
    let refused = |request: Vec<u8>| {
        let answer = server.ask(request);
        answer.expect_refusal(400, "bad_parameter");
        answer.json()["message"].as_str().unwrap().to_owned()
    };
    let message = refused(get("/channels/a/history?befor=z-1").into());
    assert!(message.ends_with("did you mean `before`?"), "{message}");
    refused(get("/channels/a/history?limit=1&limit=2").into());
    refused(get("/channels/a/presence?after=z-1").into());
    for message in [
        refused(post("/channels/a?tokn=secret", &[], "x")),
        refused(post("/publish?secret", &[], "{}")),
    ] {
        assert!(!message.contains("secret"), "{message}");
    }
    assert_eq!(server.texts("a"), [""; 0]);
    // Parameters that begin with `_` are the client's own, for example against caches.
    assert_eq!(server.ask(get("/channels/a/history?_=1763756766123&")).status, 200);
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
fn pages_can_be_read_in_both_directions() {
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
fn a_page_has_100_messages_by_default() {
    let server = server_with(101);
    let page_of_all = page(&server, "");
    assert_eq!(page_of_all["messages"].as_array().unwrap().len(), 100);
    // The channel keeps no more messages.
    assert_eq!(page_of_all["more"], false);
}

/// The size of the JSON counts, six times the size of these messages.
#[test]
fn the_size_of_a_page_is_limited() {
    let server = Server::new();
    for _ in 0..8 {
        assert_eq!(server.ask(post("/channels/a", &[], vec![1; 60_000])).status, 201);
    }
    let ids = |page: &Value| {
        let messages = page["messages"].as_array().unwrap().iter();
        messages.map(|message| message["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let newest = page(&server, "");
    assert_eq!((ids(&newest), &newest["more"]), (vec!["z-7".into(), "z-8".into()], &json!(true)));
    let before = page(&server, "?before=z-7");
    assert_eq!((ids(&before), &before["more"]), (vec!["z-5".into(), "z-6".into()], &json!(true)));
    let after = page(&server, "?after=z-0");
    assert_eq!((ids(&after), &after["more"]), (vec!["z-1".into(), "z-2".into()], &json!(true)));
    let last = page(&server, "?after=z-6");
    assert_eq!((ids(&last), &last["more"]), (vec!["z-7".into(), "z-8".into()], &json!(false)));
}

#[test]
fn a_page_has_at_least_one_message() {
    let server = Server::with(Settings { max_message_bytes: 1 << 20, ..Settings::for_tests() });
    for bytes in [1, 300_000, 1] {
        assert_eq!(server.ask(post("/channels/a", &[], vec![1; bytes])).status, 201);
    }
    for (query, offset, more) in
        [("?before=z-3", 2, true), ("?after=z-1", 2, true), ("?before=z-2", 1, false)]
    {
        let page = page(&server, query);
        assert_eq!(page["messages"].as_array().unwrap().len(), 1, "{query}");
        assert_eq!(page["messages"][0]["id"], format!("z-{offset}"), "{query}");
        assert_eq!(page["more"], more, "{query}");
    }
}

#[test]
fn parameters_are_checked() {
    let server = Server::new();
    for (query, code) in [
        ("limit=-1", "bad_parameter"),
        ("limit=1001", "bad_parameter"),
        ("limit=x", "bad_parameter"),
        ("limit=%ff", "bad_parameter"),
        ("before=z-1&after=z-2", "bad_parameter"),
        ("after=z-1&since_time=1", "bad_parameter"),
        ("order=down", "bad_parameter"),
        ("before=", "bad_id"),
        ("after=17", "bad_id"),
        ("after=z-1,z-2", "bad_id"),
    ] {
        let answer = server.ask(get(&format!("/channels/a/history?{query}")));
        answer.expect_refusal(400, code);
    }
    server.ask(get("/channels/../history")).expect_refusal(400, "bad_name");
    assert_eq!(server.refused("bad_parameter"), 7);
    let answer = server.ask(post("/channels/a/history", &[], "x"));
    answer.expect_refusal(405, "method_not_allowed");
    assert_eq!(answer.field("allow"), Some("DELETE, GET, HEAD, OPTIONS"));
}
