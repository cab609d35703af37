//! The engine of a node passes the tests that every engine passes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use throng_core::conformance::{self, Profile};
use throng_core::{Epoch, MemoryEngine, Rules, WorkerQueue, clock};
use throng_nats::api::StreamSettings;
use throng_nats::client::{ClientSettings, Login};
use throng_nats::engine::{LinkState, NatsEngine, NodeSettings};
use throng_nats::journal::Settings;

use crate::nats_server::{NatsServer, PATIENCE};
use crate::node::stream;

/// The time of the conformance tests.
const NOW_MS: u64 = 1_700_000_000_000;

/// An engine whose stream nobody else uses, once it is open.
fn engine(address: &str, rules: &Arc<Rules>, queues: Vec<Arc<WorkerQueue>>) -> NatsEngine {
    static STREAMS: AtomicU64 = AtomicU64::new(0);
    let number = STREAMS.fetch_add(1, Ordering::Relaxed);
    let retention = rules.get(rules.find(&throng_core::ChannelName::channel("any"))).retention;
    let prefix = format!("conformance{number}");
    let settings = NodeSettings {
        client: ClientSettings {
            servers: vec![address.to_owned()],
            login: Login::Anonymous,
            name: "throng test".into(),
            now_ms: clock::now_ms,
        },
        journal: Settings {
            stream: StreamSettings { prefix, retention, ..stream() },
            nonce: format!("conformance{}x{number}", std::process::id()),
            publish_ms: 30_000,
        },
        workers: queues.len(),
        max_cached_bytes: usize::MAX,
        from_wall_ms: |_| NOW_MS,
    };
    let engine = NatsEngine::start(settings, None, |events| {
        let memory = MemoryEngine::new(Epoch::random(), Arc::clone(rules), queues, usize::MAX);
        memory.with_events(Some(events)).with_all_listed()
    });
    let engine = engine.expect("a thread can be started");
    let until = Instant::now() + PATIENCE;
    while engine.state() != LinkState::Open {
        assert!(Instant::now() < until, "{:?}", engine.state());
        std::thread::sleep(Duration::from_millis(5));
    }
    engine
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_over_one_server_conforms() {
    let server = NatsServer::start("").await;
    let address = server.address.clone();
    let checks = move || {
        conformance::run_with(Profile::STREAM, |rules, queues| {
            Box::new(engine(&address, &rules, queues))
        });
    };
    tokio::task::spawn_blocking(checks).await.expect("it conforms");
}
