//! Tests of callouts with a server that misbehaves on purpose, over real sockets.

use std::sync::{Mutex, OnceLock};

use throng_access::limit::{LimitSettings, Limiter};
use throng_access::{Action, AllowAll, Asker, Decision};
use throng_access::{Details, Draft};
use throng_core::events::Event;
use throng_core::later::{Answer, Later, Ticket};
use throng_core::name::{ChannelName, Kind};
use throng_core::{Body, ConnectionName, Replacement};
use throng_wire::labels::StateKey;
use throng_wire::{ErrorCode, Labels};

use super::*;
use crate::fake_server::{FakeServer, Reply, ok, response};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn settings(server: &FakeServer) -> CalloutSettings {
    CalloutSettings {
        endpoint: server.url("/throng").parse().unwrap(),
        secrets: vec![SECRET.parse().unwrap()],
        asks: vec![Asks::Subscribe],
        passed: Passed::default(),
        decides_tokens: false,
        notifies: Vec::new(),
        pattern: None,
        timeout: Duration::from_secs(4),
        max_in_flight: 4,
        max_queued: 100,
        max_cached: 100,
        max_content_bytes: 0,
        max_message_bytes: 1000,
    }
}

/// A policy whose application is a server that answers so.
struct World {
    server: FakeServer,
    policy: Arc<dyn Access>,
    metrics: Arc<CalloutMetrics>,
    _running: RunningCallouts,
}

async fn world(
    answer: impl Fn(&str) -> Reply + Send + Sync + 'static,
    change: impl FnOnce(&mut CalloutSettings),
) -> World {
    let server = FakeServer::start(answer).await;
    let mut settings = settings(&server);
    change(&mut settings);
    let limiter = Limiter::new(LimitSettings { questions: 2, ..LimitSettings::default() });
    let clients = Arc::new(Clients { limiter, ..Clients::default() });
    let mut callouts = Callouts::new(vec![settings], &Trust::none(), clients);
    let (policy, metrics) = (callouts.policy(Arc::new(AllowAll)), callouts.metrics());
    World { server, policy, metrics, _running: callouts.start() }
}

type Pending = tokio::sync::oneshot::Receiver<Decision>;

impl World {
    fn begin(&self, action: Action<'_>, asker: Asker<'_>) -> Pending {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let sender = Arc::new(Mutex::new(Some(sender)));
        let send = move |decision: Option<Decision>| {
            let sender = sender.lock().unwrap().take().expect("one answer");
            // There is none if the test ends before.
            decision.map(|decision| sender.send(decision));
        };
        let at_once = send.clone();
        let mut issue = || Ticket::new(send.clone());
        if let Answer::Now(decision) = self.policy.may(&asker, action, Later::new(&mut issue)) {
            at_once(Some(decision));
        }
        receiver
    }

    async fn ask(&self, channel: &str) -> Decision {
        let name = ChannelName::channel(channel);
        self.begin(Action::Subscribe(&name), Asker::default()).await.unwrap()
    }

    /// The code of the refusal; `None` if it is allowed.
    async fn refusal(&self, channel: &str) -> Option<ErrorCode> {
        self.ask(channel).await.allowed_until_ms().err().map(|error| error.code)
    }

    fn count(&self, word: &str) -> u64 {
        self.metrics.decisions().find(|(outcome, _)| *outcome == word).unwrap().1
    }
}

#[tokio::test]
async fn the_application_decides() {
    let answer = |request: &str| {
        let is_forbidden = request.contains("\"forbidden\"");
        let denied = r#"{"allow": false, "message": "not you"}"#;
        ok(if is_forbidden { denied } else { r#"{"allow": true, "expires": 1900000000}"# })
    };
    let world = world(answer, |_| ()).await;
    assert_eq!(world.ask("lobby").await, Decision::AllowedUntil(1_900_000_000_000));
    let denied = world.ask("forbidden").await.allowed_until_ms().unwrap_err();
    assert_eq!((denied.code, &*denied.message), (ErrorCode::Forbidden, "not you"));
    assert_eq!((world.count("allowed"), world.count("denied")), (1, 1));
    let request = &world.server.requests()[0];
    assert!(request.starts_with("POST /throng HTTP/1.1\r\n"), "{request}");
    for header in ["content-type: application/json", "webhook-id: msg_", "webhook-signature: v1,"] {
        assert!(request.contains(header), "{request}");
    }
    assert_eq!(world.metrics.decisions_waiting(), 0);
}

/// Whatever is not as agreed is a refusal for now, and never a permission.
#[tokio::test]
async fn an_application_that_misbehaves_allows_nothing() {
    let allowed = r#"{"allow": true}"#;
    let big = format!(r#"{{"allow": true, "message": "{}"}}"#, "x".repeat(70_000));
    let unfinished = "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{\"allow\": true}";
    let close = |bytes: Vec<u8>| (false, bytes);
    let cases: [(&str, (bool, Vec<u8>)); 10] = [
        ("status", close(response("500 Internal Server Error", "", allowed))),
        ("status", close(response("403 Forbidden", "", allowed))),
        ("status", close(response("307 Temporary Redirect", "Location: /other\r\n", allowed))),
        ("bad_answer", close(response("204 No Content", "", ""))),
        ("bad_answer", close(response("200 OK", "", "<html>"))),
        ("bad_answer", close(response("200 OK", "", r#"{"allow": "true"}"#))),
        ("too_large", close(response("200 OK", "", &big))),
        ("protocol", close(Vec::new())),
        ("protocol", close(unfinished.into())),
        ("timeout", (true, unfinished.into())),
    ];
    for (outcome, (hangs, bytes)) in cases {
        let answer = move |_: &str| {
            let reply = if hangs { Reply::BytesAndHang } else { Reply::BytesAndClose };
            reply(bytes.clone())
        };
        // Only where it has to pass: otherwise the answer of a busy machine might be too late.
        let soon = move |settings: &mut CalloutSettings| {
            if hangs {
                settings.timeout = Duration::from_millis(200);
            }
        };
        let world = world(answer, soon).await;
        assert_eq!(world.refusal("lobby").await, Some(ErrorCode::Busy), "{outcome}");
        assert_eq!(world.count(outcome), 1, "{outcome}");
    }
}

#[tokio::test]
async fn a_dead_endpoint_is_left_alone() {
    let world = world(|_| Reply::BytesAndClose(Vec::new()), |_| ()).await;
    let mut asked = 0;
    while world.metrics.breakers_open() == 0 {
        asked += 1;
        assert_eq!(world.refusal(&format!("lobby-{asked}")).await, Some(ErrorCode::Busy));
        assert!(asked <= breaker::FAILURES_MAX);
    }
    let (refused, requests) = (world.count("breaker_open"), world.server.requests().len());
    for _ in 0..100 {
        assert_eq!(world.refusal("lobby").await, Some(ErrorCode::Busy));
    }
    // Some of them may be tries, one for each second that this takes.
    let tries = world.server.requests().len() - requests;
    assert_eq!(world.count("breaker_open") - refused + tries as u64, 100);
    assert!(tries < 50, "{tries}");
}

#[tokio::test]
async fn questions_that_the_application_refuses_concern_no_others() {
    for status in ["404 Not Found", "403 Forbidden", "500 Internal Server Error"] {
        let answer = move |request: &str| {
            if request.contains("\"bad\"") {
                Reply::Bytes(response(status, "", "{}"))
            } else {
                ok(r#"{"allow": true}"#)
            }
        };
        let world = world(answer, |_| ()).await;
        for round in 0..20 {
            assert_eq!(world.refusal("bad").await, Some(ErrorCode::Busy));
            if round % 10 == 9 {
                assert_eq!(world.refusal(&format!("good-{round}")).await, None, "{status}");
            }
        }
        assert_eq!((world.metrics.breakers_open(), world.count("breaker_open")), (0, 0));
    }
}

#[tokio::test]
async fn refusals_of_unknown_names_do_not_open_the_breaker() {
    let world = world(|_| Reply::Bytes(response("404 Not Found", "", "{}")), |_| ()).await;
    for channel in 0..20 {
        assert_eq!(world.refusal(&channel.to_string()).await, Some(ErrorCode::Busy));
    }
    assert_eq!(world.metrics.breakers_open(), 0);
}

#[tokio::test]
async fn an_answer_is_cached_for_its_time() {
    let world = world(|_| ok(r#"{"allow": true, "cache": 60}"#), |_| ()).await;
    for _ in 0..3 {
        assert_eq!(world.refusal("lobby").await, None);
    }
    assert_eq!((world.server.requests().len(), world.count("cached")), (1, 2));
    assert_eq!(world.refusal("other").await, None);
    assert_eq!(world.server.requests().len(), 2, "another channel is another question");
}

#[tokio::test]
async fn questions_beyond_the_queue_are_refused() {
    let few = |settings: &mut CalloutSettings| {
        (settings.max_in_flight, settings.max_queued) = (1, 2);
    };
    let world = world(|_| Reply::BytesAndHang(Vec::new()), few).await;
    let name = ChannelName::channel("lobby");
    let ask = || world.begin(Action::Subscribe(&name), Asker::default());
    let mut pending: Vec<_> = (0..10).map(|_| ask()).collect();
    let overflown = pending.iter_mut().filter_map(|one| one.try_recv().ok()).count();
    // One is asked at most, one may be on its way to that, and two wait.
    assert!((6..=8).contains(&overflown), "{overflown}");
    assert_eq!(world.count("overflow"), overflown as u64);
}

#[tokio::test]
async fn the_application_is_asked_only_what_it_decides() {
    let rooms = |settings: &mut CalloutSettings| {
        settings.asks = vec![Asks::Publish];
        settings.pattern = Some(Pattern::new(Kind::Channel, "rooms/*").unwrap());
    };
    let world = world(|_| ok(r#"{"allow": false}"#), rooms).await;
    let admin = Asker { listener: throng_core::Listener::Admin, ..Asker::default() };
    let repeated = Asker { is_repeated: true, ..Asker::default() };
    let (room, news) = (ChannelName::channel("rooms/a"), ChannelName::channel("news"));
    for (action, asker, is_asked) in [
        (Action::Publish(&room), Asker::default(), true),
        (Action::Publish(&news), Asker::default(), false),
        (Action::Subscribe(&room), Asker::default(), false),
        (Action::PublishBatch, Asker::default(), false),
        (Action::Publish(&room), admin, false),
        (Action::Publish(&room), repeated, false),
    ] {
        let decision = world.begin(action, asker).await.unwrap();
        assert_eq!(decision == Decision::Allowed, !is_asked, "{action:?}");
    }
    assert_eq!(world.server.requests().len(), 1);
}

/// Callouts that notify a server which answers so.
async fn notifying(
    answer: impl Fn(&str) -> Reply + Send + Sync + 'static,
) -> (FakeServer, Arc<dyn EventSink>, Arc<CalloutMetrics>, RunningCallouts) {
    let server = FakeServer::start(answer).await;
    let notifies = Notifies::ALL.to_vec();
    let settings = CalloutSettings { asks: Vec::new(), notifies, ..settings(&server) };
    let mut callouts = Callouts::new(vec![settings], &Trust::none(), Arc::default());
    let (events, metrics) = (callouts.events().unwrap(), callouts.metrics());
    (server, events, metrics, callouts.start())
}

fn id_of(request: &str) -> &str {
    request.lines().find(|line| line.starts_with("webhook-id: ")).expect("an id")
}

#[tokio::test]
async fn events_come_together_and_again_until_they_arrive() {
    let failures = Mutex::new(2);
    let answer = move |_: &str| {
        let mut left = failures.lock().unwrap();
        if *left > 0 {
            *left -= 1;
            return Reply::Bytes(response("503 Service Unavailable", "", ""));
        }
        ok("")
    };
    let (server, events, metrics, running) = notifying(answer).await;
    let lobby = ChannelName::channel("lobby");
    events.notify(1, Event::Occupied(&lobby));
    events.notify(2, Event::Vacated(&lobby));
    let connection = ConnectionName::numbered(7);
    events.notify(3, Event::Disconnected { connection, reason: "peer" });
    running.finish(Duration::from_secs(30)).await;
    let requests = server.requests();
    assert_eq!(requests.len(), 3);
    assert_eq!(requests[0].split("\r\n\r\n").nth(1), requests[2].split("\r\n\r\n").nth(1));
    assert_eq!(id_of(&requests[0]), id_of(&requests[2]));
    let body = requests[2].split("\r\n\r\n").nth(1).unwrap();
    let places: Vec<_> = ["occupied", "vacated", "disconnected"]
        .map(|word| body.find(word).expect("the event"))
        .into();
    assert!(places.is_sorted(), "{body}");
    let count = |word| metrics.events().find(|(outcome, _)| *outcome == word).unwrap().1;
    assert_eq!((count("delivered"), metrics.events_waiting()), (3, 0));
}

#[tokio::test]
async fn a_batch_that_is_sent_again_does_not_name_an_erased_user() {
    let sink = Arc::new(OnceLock::<Arc<dyn EventSink>>::new());
    let erasing = Arc::clone(&sink);
    let answer = move |request: &str| {
        if !request.contains("\"ann\"") {
            return ok("");
        }
        erasing.get().expect("it has sent events").forget_user("ann", u64::MAX);
        Reply::Bytes(response("503 Service Unavailable", "", ""))
    };
    let (server, events, metrics, running) = notifying(answer).await;
    sink.set(Arc::clone(&events)).expect("it is set once");
    events.notify(1, Event::Occupied(&ChannelName::user("ann")));
    events.notify(1, Event::Occupied(&ChannelName::channel("lobby")));
    running.finish(Duration::from_secs(30)).await;
    let requests = server.requests();
    assert_eq!((requests.len(), id_of(&requests[0])), (2, id_of(&requests[1])));
    let has = |words| requests[1].contains(words);
    assert!(has("\"lobby\"}]}") && !has("\"ann\""), "{}", requests[1]);
    let count = |word| metrics.events().find(|(outcome, _)| *outcome == word).unwrap().1;
    assert_eq!((count("delivered"), metrics.events_waiting()), (1, 0));
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_a_dead_endpoint() {
    let (_, events, metrics, running) = notifying(|_| Reply::BytesAndHang(Vec::new())).await;
    events.notify(1, Event::Occupied(&ChannelName::channel("lobby")));
    running.finish(Duration::from_millis(50)).await;
    assert_eq!(metrics.events_waiting(), 1);
}

#[tokio::test]
async fn one_address_has_few_questions_open() {
    let world = world(|_| Reply::BytesAndHang(Vec::new()), |_| ()).await;
    let name = ChannelName::channel("lobby");
    let ask = |last| {
        let address = Some(std::net::IpAddr::from([192, 0, 2, last]));
        let details = throng_access::Details { address, ..Default::default() };
        world.begin(Action::Subscribe(&name), Asker { details, ..Asker::default() })
    };
    let mut pending: Vec<_> = [1, 1, 1, 2, 2].map(ask).into();
    let code = |one: &mut Pending| {
        let decision = one.try_recv().ok()?;
        decision.allowed_until_ms().err().map(|error| error.code)
    };
    let codes: Vec<_> = pending.iter_mut().map(code).collect();
    assert_eq!(codes, [None, None, Some(ErrorCode::TooManyRequests), None, None]);
    assert_eq!(world.count("limited"), 1);
}

#[tokio::test]
async fn the_application_reads_and_replaces_content() {
    let answer = |request: &str| {
        let is_rude = request.contains("rude");
        ok(if is_rude { r#"{"allow":true,"data":"***"}"# } else { r#"{"allow":true,"cache":60}"# })
    };
    let world = world(answer, |settings| {
        settings.asks = vec![Asks::Publish, Asks::Subscribe];
        settings.max_content_bytes = 20;
    })
    .await;
    let name = ChannelName::channel("lobby");
    let labels = std::cell::RefCell::new(Labels::default());
    let publish = |body: &Body, content_type| {
        let labels = labels.borrow();
        let content = Some(Draft { body, content_type, labels: &labels });
        let asker =
            Asker { details: Details { content, ..Details::default() }, ..Asker::default() };
        assert!(world.policy.reads_content(&asker, Action::Publish(&name)));
        assert!(!world.policy.reads_content(&asker, Action::Subscribe(&name)));
        world.begin(Action::Publish(&name), asker)
    };
    let text = |text: &str| Body::Text(text.into());
    let rude = publish(&text("rude"), None).await.unwrap();
    let stars = Replacement { body: text("***"), content_type: None };
    assert_eq!(rude, Decision::AllowedAs(Arc::new(stars)));
    // An answer that is cached is not reused for other content, also if that is left out.
    let long = ["a".repeat(21), "b".repeat(21)].map(|it| text(&it));
    let image = Body::Binary(b"hi"[..].into());
    let json = Body::Json(r#"{"n": 1}"#.into());
    for round in 0..2 {
        for body in [&text("kind"), &long[0], &long[1], &json] {
            assert_eq!(publish(body, None).await.unwrap(), Decision::Allowed);
        }
        assert_eq!(publish(&image, Some("image/png")).await.unwrap(), Decision::Allowed);
        assert_eq!(world.server.requests().len(), 6, "round {round}");
    }
    let tags = Some(r#"{"n":2}"#.into());
    let key = Some(StateKey { name: "ACME".into(), is_removed: true });
    labels.replace(Labels { event: Some("price".into()), tags, key });
    assert_eq!(publish(&text("kind"), None).await.unwrap(), Decision::Allowed);
    let requests = world.server.requests().concat();
    for expected in [
        concat!(
            r#""content":{"bytes":4,"event":"price","tags":{"n":2},"state_key":"ACME","#,
            r#""tombstone":true,"data":"kind"}}}"#
        ),
        r#""content":{"bytes":4,"data":"rude"}}}"#,
        r#""content":{"bytes":8,"data":{"n": 1}}}}"#,
        r#""content":{"bytes":2,"content_type":"image/png","encoding":"base64","data":"aGk="}}}"#,
        r#""content":{"bytes":21}}}"#,
    ] {
        assert!(requests.contains(expected), "{expected}: {requests}");
    }
    // The question about a subscription has none, and no answer to it may have any.
    let inbox = ChannelName::channel("rude");
    let decision = world.begin(Action::Subscribe(&inbox), Asker::default()).await.unwrap();
    assert!(matches!(decision, Decision::Denied(_)));
}
