//! Frozen state: no records make an engine or a worker panic, neither when they are read nor after.
//!
//! Input: one byte, 0 for an engine, 1 for a worker and 2 for a worker with TLS, then records, each
//! behind its length in two bytes; or 3 and what clients have used of a rate.

#![no_main]

use std::io::IoSlice;
use std::num::NonZeroU32;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use throng_access::AccessControl;
use throng_access::limit::{ClientLimits, LimitSettings, Limiter, UsedRates};
use throng_core::frozen::{RecordKind, ThawError};
use throng_core::{
    Attributes, Body, ChannelName, Channels, Epoch, Follow, LocalId, MemoryEngine, MemoryThaw,
    Publication, PublishError, Rules, StartAt, WorkerId, WorkerQueue,
};
use throng_edge::connection::Token;
use throng_edge::net::{HandoffHeader, Net, Read, Transfer};
use throng_edge::tls::{Numbered, TlsNet};
use throng_edge::worker::{Now, Setup, Worker, WorkerThaw};
use throng_edge::{Metrics, Settings};
use throng_tls::{Acceptor, Suite, testing};

const NOW_MS: u64 = 1_700_000_000_000;

/// A socket with nothing behind it.
struct Socket(u32);

impl Numbered for Socket {
    fn number(&self) -> u32 {
        self.0
    }
}

/// Sockets from which nothing can be read, and which take everything.
struct Sockets;

impl Net for Sockets {
    type Socket = Socket;

    fn read(&mut self, _: &Socket, _: &mut [u8]) -> Read {
        Read::Blocked
    }

    fn write(&mut self, _: &Socket, slices: &[IoSlice<'_>]) -> Transfer {
        Transfer::Bytes(slices.iter().map(|slice| slice.len()).sum())
    }

    fn watch(&mut self, _: &Socket, _: Token) -> bool {
        true
    }

    fn watch_writable(&mut self, _: &Socket, _: Token) -> bool {
        true
    }

    fn unacknowledged_bytes(&self, _: &Socket) -> usize {
        0
    }

    fn keep_alive(&mut self, _: &Socket) {}

    fn bound_unread(&mut self, _: &Socket) {}

    fn resume(&mut self, _: &Socket) {}

    fn reset(&mut self, _: &Socket) {}

    fn finish(&mut self, _: &Socket) {}

    fn to_control(&mut self, _: HandoffHeader, _: Socket, _: &[u8]) -> Result<(), Socket> {
        Ok(())
    }

    fn to_worker(
        &mut self,
        _: WorkerId,
        _: HandoffHeader,
        _: Socket,
        _: &[u8],
    ) -> Result<(), Socket> {
        Ok(())
    }
}

fn records(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut records = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
        let (record, rest) = rest.split_at(length);
        records.push(record);
        bytes = rest;
    }
    records
}

fn queues() -> Vec<Arc<WorkerQueue>> {
    vec![Arc::new(WorkerQueue::new(|| {}))]
}

/// Whether an input is a segment, whose first record is behind its length. Some records look alike.
fn is_segment(record: &[u8]) -> bool {
    record.first() != Some(&(RecordKind::Engine as u8))
        && record.get(4) == Some(&(RecordKind::Segment as u8))
}

fn thaw_engine(segments: &[&[u8]], records: &[&[u8]]) -> Result<MemoryEngine, ThawError> {
    let mut thaw = MemoryThaw::new(Arc::new(Rules::default()), queues(), 1 << 20);
    for segment in segments {
        thaw.segment(Box::new(segment.to_vec()))?;
    }
    for record in records {
        thaw.record(record)?;
    }
    thaw.finish()
}

fn publish(engine: &MemoryEngine, name: &str) {
    let publication = Publication {
        idempotency_key: Some("key".into()),
        attributes: Attributes::of(&[(4, b"key"), (9_999, b"unknown")]).ok(),
        ..Publication::new(ChannelName::channel(name), Body::Text("news".into()))
    };
    let published = engine.publish(NOW_MS, publication);
    assert!(published != Err(PublishError::Busy), "the queue has capacity");
}

/// What was thawed works, and can be frozen and thawed again.
fn try_engine(records: &[&[u8]]) {
    let (segments, records): (Vec<&[u8]>, Vec<&[u8]>) =
        records.iter().partition(|record| is_segment(record));
    let Ok(engine) = thaw_engine(&segments, &records) else { return };
    publish(&engine, "a");
    engine.tick(NOW_MS);
    let mut again = Vec::new();
    let frozen: Result<(), ()> = engine.freeze(|record| {
        again.push(record);
        Ok(())
    });
    assert_eq!(frozen, Ok(()));
    let again: Vec<&[u8]> = again.iter().map(Vec::as_slice).collect();
    let thawed = thaw_engine(&[], &again).expect("it was written just now");
    assert_eq!(thawed.metrics().messages, engine.metrics().messages);
}

/// An engine whose only worker follows `a`, `b` and the user `ann`, as 1, 2 and 3.
fn engine(rules: &Arc<Rules>, queues: Vec<Arc<WorkerQueue>>) -> Arc<Channels> {
    let engine = MemoryEngine::new(Epoch::numbered(7), Arc::clone(rules), queues, 1 << 20);
    let names = [ChannelName::channel("a"), ChannelName::channel("b"), ChannelName::user("ann")];
    for (channel, place) in names.iter().zip(0..) {
        let local_if_new = LocalId(NonZeroU32::MIN.saturating_add(place));
        let follow = Follow { channel, worker: WorkerId(0), local_if_new, start: StartAt::Live };
        engine.follow(NOW_MS, follow);
    }
    Arc::new(engine.into())
}

/// Whether it is a connection at a high index: the table would have millions of places, and each
/// check of the invariants visits all of them.
fn is_far(record: &[u8]) -> bool {
    match record {
        [kind, a, b, c, d, ..] if *kind == RecordKind::Connection as u8 => {
            u32::from_le_bytes([*a, *b, *c, *d]) > 10_000
        }
        _ => false,
    }
}

fn try_worker<N: Net<Socket = Socket>>(records: &[&[u8]], net: impl FnOnce(&Metrics) -> N) {
    let rules = Arc::new(Rules::default());
    let queues = queues();
    let engine = engine(&rules, queues.clone());
    let setup = Setup {
        generation: 0,
        id: WorkerId(0),
        settings: Arc::new(Settings::for_tests()),
        engine: Arc::clone(&engine),
        access: AccessControl::allow_all(),
        rules,
        compression: Arc::default(),
        events: None,
        queue: Arc::clone(&queues[0]),
        pressure: Arc::default(),
        metrics: Metrics::new([100].into_iter()),
    };
    let net = net(&setup.metrics);
    let mut worker = Worker::new(setup, net);
    worker.set_now(Now::after(0, NOW_MS));
    let mut thaw = WorkerThaw::new(worker);
    let records = records.iter().filter(|record| !is_far(record));
    for (record, number) in records.zip(0..) {
        // An error of a connection leaves the others.
        let _ = thaw.record(record, Some(Socket(number)));
    }
    let Ok(mut worker) = thaw.finish() else { return };
    worker.check_invariants();
    for tick in 1..4 {
        publish(&engine, "a");
        worker.set_now(Now::after(tick * 100, NOW_MS + tick * 100));
        worker.tick();
        for _ in 0..100 {
            worker.work(true);
        }
        worker.check_invariants();
    }
    worker.prepare_to_freeze();
    worker.freeze(&mut |_, _| {});
}

/// Sockets of which some speak TLS.
fn with_tls(metrics: &Metrics) -> TlsNet<Sockets> {
    thread_local! {
        static ACCEPTOR: Acceptor = testing::peers(Suite::Tls13Aes128Gcm).0;
    }
    let counters = Arc::clone(&metrics.worker(WorkerId(0)).counters);
    TlsNet::new(Sockets, Some(ACCEPTOR.with(Acceptor::clone)), counters, 8)
}

/// What is read comes out again as it is.
fn try_rates(bytes: &[u8]) {
    let Some(used) = UsedRates::read(bytes, NOW_MS) else { return };
    let user = ClientLimits { publishes_per_s: 7, connects_per_s: 1, ..ClientLimits::default() };
    let limiter = Limiter::new(LimitSettings { user, bad_tokens_per_s: 1, ..Default::default() });
    limiter.resume_rates(&used, NOW_MS);
    limiter.used_rates(NOW_MS, |used| {
        let mut bytes = Vec::new();
        used.write(NOW_MS, &mut bytes);
        assert_eq!(UsedRates::read(&bytes, NOW_MS).as_ref(), Some(used));
    });
}

fuzz_target!(|data: &[u8]| {
    match data {
        [0, rest @ ..] => try_engine(&records(rest)),
        [1, rest @ ..] => try_worker(&records(rest), |_| Sockets),
        [2, rest @ ..] => try_worker(&records(rest), with_tls),
        [3, rest @ ..] => try_rates(rest),
        _ => {}
    }
});
