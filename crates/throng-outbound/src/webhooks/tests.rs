use std::sync::Mutex;

use throng_core::{Attributes, Body};
use throng_pusher::App;
use throng_pusher::signature::Signer;
use throng_wire::Labels;

use super::*;
use crate::callouts::Callouts;
use crate::fake_server::{FakeServer, Reply, ok, response};

const SECRET: &str = "7ad3773142a6692b25b8";

struct World {
    server: FakeServer,
    events: Arc<dyn EventSink>,
    metrics: Arc<DeliveryMetrics>,
    running: RunningCallouts,
}

/// Two applications, of which the first is told of these.
async fn world(
    wants: &[Webhook],
    max_queued: usize,
    answer: impl Fn(&str) -> Reply + Send + Sync + 'static,
) -> World {
    world_of((wants, max_queued, false), answer).await
}

/// The same, with other nodes or without.
async fn world_of(
    (wants, max_queued, has_nodes): (&[Webhook], usize, bool),
    answer: impl Fn(&str) -> Reply + Send + Sync + 'static,
) -> World {
    let app = |id: &str, prefix| App::new(id, id, SECRET.as_bytes(), prefix).unwrap();
    let apps = Apps::new([app("1", "shop/"), app("2", "mall/")]).unwrap();
    let access = AccessControl::open(Arc::new(throng_access::AllowAll));
    let access = Arc::new(AccessControl { apps: Arc::new(apps).into(), ..access });
    let server = FakeServer::start(answer).await;
    let settings = WebhookSettings {
        app: "1".to_owned(),
        endpoint: server.url("/hook").parse().unwrap(),
        wants: wants.to_vec(),
        timeout: Duration::from_secs(5),
        max_queued,
        has_nodes,
    };
    let mut webhooks = Webhooks::new(vec![settings], &access, &Trust::none());
    let (events, metrics) = (webhooks.events(None).unwrap(), webhooks.metrics().unwrap());
    let mut running = Callouts::new(Vec::new(), &Trust::none(), Arc::default()).start();
    webhooks.start(&mut running);
    World { server, events, metrics, running }
}

impl World {
    /// The bodies of all requests, once everything is delivered.
    async fn finish(self) -> (Vec<String>, Arc<DeliveryMetrics>) {
        self.running.finish(Duration::from_secs(60)).await;
        let requests = self.server.requests();
        let body = |request: &String| {
            let (head, body) = request.split_once("\r\n\r\n").unwrap();
            let signature =
                format!("x-pusher-signature: {}", Signer::new(SECRET.as_bytes()).sign(body));
            for line in ["content-type: application/json", "x-pusher-key: 1", &signature] {
                assert!(head.to_ascii_lowercase().lines().any(|own| own == line), "{line}: {head}");
            }
            let (time, events) =
                body.split_once("\"time_ms\":").map_or(("", ""), |(events, time)| (time, events));
            assert!(time.trim_end_matches('}').parse::<u64>().is_ok(), "{body}");
            events.to_owned()
        };
        (requests.iter().map(body).collect(), self.metrics)
    }
}

fn count(metrics: &DeliveryMetrics, outcome: &str) -> u64 {
    metrics.events().find(|(word, _)| *word == outcome).unwrap().1
}

#[tokio::test]
async fn an_application_is_told_of_its_own_channels_in_their_order() {
    let world = world(&Webhook::ALL, 100, |_| ok("")).await;
    let (room, other) = (ChannelName::channel("shop/presence-r"), ChannelName::channel("mall/a"));
    let labels = Labels { event: Some("client-t".into()), ..Labels::default() };
    let event = VolatilePublication {
        attributes: Attributes::of_publication(&labels, Some("shop/ann")),
        ..VolatilePublication::new(room.clone(), Body::Json(r#"{"t":1}"#.into()))
    };
    let connection = ConnectionName::numbered(7);
    for event in [
        Event::Occupied(&room),
        Event::Occupied(&other),
        Event::MemberAdded(&room, "shop/ann"),
        Event::Counted(&room, 1),
        Event::ClientEvent(connection, &event),
        Event::CacheMiss(&ChannelName::channel("shop/private-cache-a")),
        // One that is no cache has nothing to miss.
        Event::CacheMiss(&ChannelName::channel("shop/news")),
        Event::Occupied(&ChannelName::user("shop/ann")),
        Event::Occupied(&ChannelName::channel("native")),
        Event::Occupied(&ChannelName::channel("shop/native/name")),
        Event::Occupied(&ChannelName::status()),
        Event::Disconnected { connection, reason: "peer" },
        Event::MemberRemoved(&room, "shop/ann"),
        Event::Vacated(&room),
    ] {
        world.events.notify(clock::now_ms(), event);
    }
    let (bodies, metrics) = world.finish().await;
    let all = bodies.concat();
    let expected = [
        r#"{"channel":"presence-r","name":"channel_occupied"}"#,
        r#"{"channel":"presence-r","name":"member_added","user_id":"ann"}"#,
        r#"{"channel":"presence-r","name":"subscription_count","subscription_count":1}"#,
        r#"{"channel":"presence-r","data":"{\"t\":1}","event":"client-t","name":"client_event","#,
        r#""socket_id":""#,
        r#"{"channel":"private-cache-a","name":"cache_miss"}"#,
        r##"{"channel":"#server-to-user-ann","name":"channel_occupied"}"##,
        // Nobody comes back.
        r#"{"channel":"presence-r","name":"member_removed","user_id":"ann"}"#,
        r#"{"channel":"presence-r","name":"channel_vacated"}"#,
    ];
    let places: Vec<_> = expected.map(|text| all.find(text).expect(text)).into();
    assert!(places.is_sorted(), "{all}");
    assert!(!all.contains("mall") && !all.contains("native"), "{all}");
    assert_eq!((count(&metrics, "delivered"), metrics.waiting()), (8, 0));
}

#[tokio::test]
async fn what_is_not_wanted_still_takes_back_its_counterpart() {
    let world = world(&[Webhook::ChannelVacated], 100, |_| ok("")).await;
    let (back, gone) = (ChannelName::channel("shop/back"), ChannelName::channel("shop/gone"));
    for event in [Event::Vacated(&back), Event::Occupied(&back), Event::Vacated(&gone)] {
        world.events.notify(clock::now_ms(), event);
    }
    let (bodies, metrics) = world.finish().await;
    assert_eq!(bodies, [r#"{"events":[{"channel":"gone","name":"channel_vacated"}],"#]);
    assert_eq!(metrics.waiting(), 0);
}

#[tokio::test]
async fn a_request_is_sent_until_it_arrives_and_only_then_the_next() {
    let failures = Mutex::new(2);
    let answer = move |_: &str| {
        let mut left = failures.lock().unwrap();
        if *left > 0 {
            *left -= 1;
            return Reply::Bytes(response("500 Oh", "", ""));
        }
        ok("")
    };
    let world = world(&[Webhook::CacheMiss], 1_000, answer).await;
    let names: Vec<_> = (0..250).map(|n| format!("shop/cache-{n:03}")).collect();
    for name in &names {
        world.events.notify(clock::now_ms(), Event::CacheMiss(&ChannelName::channel(name)));
    }
    let (bodies, metrics) = world.finish().await;
    assert_eq!((&bodies[0], &bodies[1]), (&bodies[1], &bodies[2]), "the same again");
    let all = bodies[2..].concat();
    let places: Vec<_> = names.iter().map(|name| all.find(&name[5..]).expect(name)).collect();
    assert!(places.is_sorted());
    assert_eq!((count(&metrics, "delivered"), metrics.waiting()), (250, 0));
}

#[tokio::test]
async fn what_does_not_fit_is_dropped_and_counted() {
    let world = world(&Webhook::ALL, 3, |_| ok("")).await;
    for n in 0..5 {
        let miss = ChannelName::channel(&format!("shop/cache-{n}"));
        world.events.notify(clock::now_ms(), Event::CacheMiss(&miss));
    }
    let channel = ChannelName::channel("shop/private-a");
    let (_, metrics) = world.finish().await;
    // The task takes none meanwhile: this test has one thread.
    assert_eq!((count(&metrics, "delivered"), count(&metrics, "overflow")), (3, 2));
    let world = self::world(&Webhook::ALL, 1_000, |_| ok("")).await;
    let body = Body::Text("x".repeat(waiting::BYTES_MAX / 4).into());
    let event = VolatilePublication::new(channel, body);
    for _ in 0..5 {
        let connection = ConnectionName::numbered(7);
        world.events.notify(clock::now_ms(), Event::ClientEvent(connection, &event));
    }
    assert_eq!(count(&world.metrics, "overflow"), 2, "of 16 MiB together");
}

#[tokio::test]
async fn events_of_public_channels_push_out_no_others() {
    let world = world(&Webhook::ALL, 3, |_| ok("")).await;
    let now_ms = clock::now_ms();
    for n in 0..100 {
        let [cache, public] = ["cache", "public"].map(|kind| format!("shop/{kind}-{n}"));
        world.events.notify(now_ms, Event::CacheMiss(&ChannelName::channel(&cache)));
        world.events.notify(now_ms, Event::Occupied(&ChannelName::channel(&public)));
    }
    let room = ChannelName::channel("shop/presence-r");
    for event in [Event::Occupied(&room), Event::MemberAdded(&room, "shop/ann")] {
        world.events.notify(now_ms, event);
    }
    let (bodies, metrics) = world.finish().await;
    let all = bodies.concat();
    assert!(all.contains(r#""name":"member_added","user_id":"ann""#), "{all}");
    assert_eq!((count(&metrics, "delivered"), count(&metrics, "overflow")), (5, 197));
}

#[tokio::test]
async fn a_client_that_comes_and_goes_fills_no_queue() {
    let world = world(&Webhook::ALL, 10, |_| ok("")).await;
    let cache = ChannelName::channel("shop/cache-a");
    for round in 0..1_000 {
        for event in [
            Event::Counted(&cache, round),
            Event::Occupied(&cache),
            Event::CacheMiss(&cache),
            Event::Vacated(&cache),
        ] {
            world.events.notify(clock::now_ms(), event);
        }
    }
    let (bodies, metrics) = world.finish().await;
    let all = bodies.concat();
    assert!(all.contains(r#""name":"subscription_count","subscription_count":999"#), "{all}");
    assert_eq!((count(&metrics, "delivered"), count(&metrics, "overflow")), (4, 0), "{all}");
}

#[tokio::test]
async fn what_names_an_erased_user_is_dropped() {
    let (tell, told) = std::sync::mpsc::channel();
    let answer = move |request: &str| {
        let is_first = tell.send(()).is_ok() && request.contains("client-t");
        if is_first { Reply::Bytes(response("500 Oh", "", "")) } else { ok("") }
    };
    let world = world(&Webhook::ALL, 100, answer).await;
    let room = ChannelName::channel("shop/presence-r");
    let ann = ChannelName::user("shop/ann");
    let cache = ChannelName::channel("shop/private-cache-a");
    let labels = Labels { event: Some("client-t".into()), ..Labels::default() };
    let event = VolatilePublication {
        attributes: Attributes::of_publication(&labels, Some("shop/ann")),
        ..VolatilePublication::new(room.clone(), Body::Json("1".into()))
    };
    let now_ms = clock::now_ms();
    for event in [
        Event::ClientEvent(ConnectionName::numbered(7), &event),
        Event::MemberAdded(&room, "shop/ann"),
        Event::MemberAdded(&room, "shop/bob"),
        Event::Occupied(&ann),
        Event::CacheMiss(&cache),
    ] {
        world.events.notify(now_ms, event);
    }
    // It is refused once, and repeated without what names her.
    let first = tokio::task::spawn_blocking(move || told.recv()).await;
    first.expect("it does not panic").expect("a request comes");
    for channel in ["shop/presence-r", "shop/presence-s"].map(ChannelName::channel) {
        world.events.notify(now_ms, Event::MemberRemoved(&channel, "shop/ann"));
    }
    assert_eq!(world.events.forget_user("mall/ann", u64::MAX), 0, "another application's");
    assert_eq!(world.events.forget_user("shop/ann", clock::wall_ms(now_ms)), 0, "nothing before");
    assert_eq!(world.events.forget_user("shop/ann", clock::wall_ms(now_ms) + 1), 4);
    let (bodies, metrics) = world.finish().await;
    let all = bodies[1..].concat();
    let gone = r#"{"channel":"presence-s","name":"member_removed","user_id":"ann"}"#;
    assert!(all.contains("bob") && all.contains("cache-a"), "{all}");
    assert!(all.contains(gone), "it was told that she is there: {all}");
    let others = all.replace(gone, "");
    assert!(!others.contains(r#""ann""#) && !others.contains("user-ann"), "{all}");
    assert_eq!(metrics.waiting(), 0);
}

#[tokio::test]
async fn with_several_nodes_the_one_that_leads_sends_what_concerns_all() {
    let world = world_of((&Webhook::ALL, 100, true), |_| ok("")).await;
    let [early, late, cache] =
        ["early", "late", "cache-a"].map(|name| ChannelName::channel(&format!("shop/{name}")));
    let now_ms = clock::now_ms();
    world.events.notify(now_ms, Event::Occupied(&early));
    world.events.notify(now_ms, Event::CacheMiss(&cache));
    world.events.notify(now_ms + 5, Event::Counted(&late, 7));
    // It is known to others up to there.
    world.events.notify(now_ms + 9, Event::Leads(now_ms + 1));
    world.events.notify(now_ms + 9, Event::Follows);
    let (bodies, metrics) = world.finish().await;
    let all = bodies.concat();
    assert!(all.contains("early") && all.contains("cache-a") && !all.contains("late"), "{all}");
    assert_eq!((count(&metrics, "delivered"), count(&metrics, "overflow")), (2, 0));
}

#[tokio::test]
async fn a_node_that_leads_sends_all_before_it_ends() {
    let world = world_of((&Webhook::ALL, 100, true), |_| ok("")).await;
    let channel = ChannelName::channel("shop/news");
    let now_ms = clock::now_ms();
    world.events.notify(now_ms, Event::Leads(now_ms));
    world.events.notify(now_ms, Event::Occupied(&channel));
    let (bodies, metrics) = world.finish().await;
    assert_eq!(bodies, [r#"{"events":[{"channel":"news","name":"channel_occupied"}],"#]);
    assert_eq!(metrics.waiting(), 0);
}
