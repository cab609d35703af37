//! A model of servers with JetStream: as much of it as a journal uses.

mod consumer;
mod stored;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use throng_core::LogRecord;
use throng_nats::protocol::headers::Headers;

use consumer::Consumer;
pub(crate) use stored::StoredBytes;
use stored::{is_wanted, named, time_text};

/// A message on its way to a client.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    pub(crate) subject: String,
    /// Where answers go.
    pub(crate) reply: Option<String>,
    pub(crate) headers: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

struct ServerStream {
    config: Value,
    created: u64,
    messages: BTreeMap<u64, StoredBytes>,
    /// Messages that were dropped because their channel had too many, and the sequence with which
    /// that was: a replica that lags still has them.
    dropped: BTreeMap<u64, (u64, StoredBytes)>,
    first: u64,
    last: u64,
    ids: HashMap<String, u64>,
    leader: u64,
    now_ms: u64,
    /// Messages under a condition on another subject that came alone.
    conditional: u64,
    /// Messages of batches that are not committed.
    batches: HashMap<String, Vec<Published>>,
}

/// A message of a batch: its subject, headers and payload.
type Published = (String, Vec<u8>, Vec<u8>);

/// Messages that a stream has erased.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ErasedBytes {
    Message(u64),
    /// All of a subject up to a sequence.
    UpTo(String, u64),
}

/// What the servers do with a publication.
#[derive(Default)]
pub(crate) struct Effects {
    /// Goes to the publisher.
    pub(crate) answers: Vec<Sent>,
    /// Goes to all who subscribe.
    pub(crate) others: Vec<Sent>,
    /// What a stream of messages stored: sequences and messages.
    pub(crate) stored: Vec<(u64, StoredBytes)>,
    /// The channels whose states were changed.
    pub(crate) states: Vec<String>,
    pub(crate) erased: Option<ErasedBytes>,
}

#[derive(Default)]
pub(crate) struct Broker {
    streams: BTreeMap<String, ServerStream>,
    /// In the memory of a server.
    consumers: HashMap<String, Consumer>,
    /// How often a consumer was on a replica that lagged.
    pub(crate) hidden: usize,
    created: u64,
    pub(crate) now_ms: u64,
    /// By how many messages the replica lags that answers next.
    pub(crate) lag: u64,
    /// The leader has lost the majority: it says how the stream is, and stores nothing.
    pub(crate) is_stalled: bool,
    /// So many of the next publications to a stream of messages find nobody who stores them.
    pub(crate) refusals: usize,
}

impl Broker {
    /// Loses all streams, as servers with memory only do.
    pub(crate) fn forget(&mut self) {
        self.streams.clear();
        self.consumers.clear();
    }

    pub(crate) fn elect(&mut self) {
        self.is_stalled = false;
        self.consumers.clear();
        for stream in self.streams.values_mut() {
            stream.leader += 1;
            stream.batches.clear();
        }
    }

    /// Drops the oldest messages of a stream.
    pub(crate) fn expire(&mut self, name: &str, keep: usize) {
        let Some(stream) = self.streams.get_mut(name) else { return };
        let renewed = stream.messages.iter().filter(|(at, stored)| stream.is_renewed(**at, stored));
        let renewed: BTreeSet<u64> = renewed.map(|(at, _)| *at).collect();
        let mut over = (stream.messages.len() - renewed.len()).saturating_sub(keep);
        stream.messages.retain(|at, _| {
            let is_kept = renewed.contains(at) || over == 0;
            over -= usize::from(!is_kept);
            is_kept
        });
        stream.dropped.clear();
        stream.begins();
    }

    /// True if the channel with these messages has ended.
    pub(crate) fn has_ended(&self, name: &str, subject: &str) -> bool {
        self.streams.get(name).is_some_and(|stream| stream.has_ended(subject))
    }

    /// The first sequence of a stream.
    pub(crate) fn first(&self, name: &str) -> u64 {
        self.streams.get(name).map_or(0, |stream| stream.first)
    }

    /// The last sequence of a stream.
    pub(crate) fn reached(&self, name: &str) -> u64 {
        self.streams.get(name).map_or(0, |stream| stream.last)
    }

    /// The last sequence of each subject of a stream.
    pub(crate) fn last(&self, name: &str) -> HashMap<String, u64> {
        let stream = self.streams.get(name);
        let messages = stream.into_iter().flat_map(|stream| &stream.messages);
        messages.map(|(sequence, stored)| (stored.subject.clone(), *sequence)).collect()
    }

    /// The sequences of a subject's messages in a stream.
    pub(crate) fn kept(&self, name: &str, subject: &str) -> BTreeSet<u64> {
        let messages = self.streams.get(name).into_iter().flat_map(|stream| &stream.messages);
        let of_it = messages.filter(|(_, stored)| stored.subject == subject);
        of_it.map(|(sequence, _)| *sequence).collect()
    }

    /// The last message of each subject with this start in a stream.
    pub(crate) fn lasts(&self, name: &str, start: &str) -> BTreeMap<String, (u64, StoredBytes)> {
        let messages = self.streams.get(name).into_iter().flat_map(|stream| &stream.messages);
        let of_it = messages.filter(|(_, stored)| stored.subject.starts_with(start));
        let rest = |subject: &str| subject[start.len()..].to_owned();
        of_it.map(|(at, stored)| (rest(&stored.subject), (*at, stored.clone()))).collect()
    }

    /// The last message of each subject of a bucket, by what follows the start of the subject;
    /// without those that were removed.
    pub(crate) fn values(&self, name: &str, start: &str) -> BTreeMap<String, String> {
        let messages = self.streams.get(name).into_iter().flat_map(|stream| &stream.messages);
        let mut values = BTreeMap::new();
        for (_, stored) in messages {
            let is_removed = Headers::new(&stored.headers).get("KV-Operation").is_some();
            let value = String::from_utf8_lossy(&stored.payload).into_owned();
            let key = stored.subject.strip_prefix(start).unwrap_or_default().to_owned();
            if is_removed {
                values.remove(&key)
            } else {
                values.insert(key, value)
            };
        }
        values
    }

    /// A client publishes.
    pub(crate) fn publish(
        &mut self,
        subject: &str,
        reply: Option<&str>,
        headers: &[u8],
        payload: &[u8],
    ) -> Effects {
        let mut effects = Effects::default();
        let mut answer = |headers: &str, payload: Value| {
            let payload = if payload.is_null() { Vec::new() } else { payload.to_string().into() };
            if let Some(reply) = reply {
                let (subject, headers) = (reply.to_owned(), headers.as_bytes().to_vec());
                effects.answers.push(Sent { subject, reply: None, headers, payload });
            }
        };
        if let Some(request) = subject.strip_prefix("$JS.API.CONSUMER.") {
            effects.answers = self.consume(request, reply.unwrap_or_default(), payload);
            return effects;
        }
        if let Some(request) = subject.strip_prefix("$JS.API.") {
            let request = request.strip_prefix("STREAM.").unwrap_or(request);
            if subject.starts_with("$JS.API.DIRECT.GET.") {
                let name = request.strip_prefix("DIRECT.GET.").unwrap_or_default();
                match self.streams.get(name) {
                    Some(stream) => effects.answers = get(stream, reply, payload, self.lag),
                    None => answer(NOBODY, Value::Null),
                }
            } else {
                let (said, erased) = self.api(request, payload);
                answer("", said);
                effects.erased = erased;
            }
            return effects;
        }
        let is_stalled = self.is_stalled;
        let stream = self.streams.iter_mut().find(|(_, stream)| {
            let pattern = stream.config["subjects"][0].as_str().unwrap_or_default();
            subject.starts_with(pattern.trim_end_matches('>'))
        });
        match stream {
            Some((name, _)) if is_stalled && !name.starts_with("KV_") => {}
            Some((name, _)) if self.refusals > 0 && !name.starts_with("KV_") => {
                self.refusals -= 1;
                answer(NOBODY, Value::Null);
            }
            Some((name, stream)) => {
                stream.now_ms = self.now_ms;
                let Some((said, stored)) = stream.take(name, (subject, headers, payload)) else {
                    return effects;
                };
                answer("", said);
                for (sequence, stored, republished) in stored {
                    effects.others.extend(republished);
                    if let Some(of) = stored.subject.strip_prefix(STATES) {
                        effects.states.extend(of.strip_suffix(".%").map(str::to_owned));
                    }
                    if stored.subject.starts_with(MESSAGES) {
                        effects.stored.push((sequence, stored));
                    }
                }
            }
            None => {
                answer(NOBODY, Value::Null);
                let sent = Sent {
                    subject: subject.to_owned(),
                    reply: reply.map(str::to_owned),
                    headers: headers.to_vec(),
                    payload: payload.to_vec(),
                };
                effects.others.push(sent);
            }
        }
        effects
    }

    /// Makes a consumer, or gives its next messages.
    fn consume(&mut self, request: &str, reply: &str, payload: &[u8]) -> Vec<Sent> {
        let (what, name) = request.rsplit_once('.').expect("journals name a consumer");
        let to_asker = |headers: &str, payload: Vec<u8>| {
            let headers = headers.as_bytes().to_vec();
            vec![Sent { subject: reply.to_owned(), reply: None, headers, payload }]
        };
        self.hidden += usize::from(self.lag > 0);
        if let Some(of) = what.strip_prefix("CREATE.") {
            let Some(stream) = self.streams.get(of) else {
                return to_asker(NOBODY, Vec::new());
            };
            let request = serde_json::from_slice(payload).expect("journals send JSON");
            let consumer = Consumer::new(of, &request, stream, self.lag);
            self.consumers.insert(name.to_owned(), consumer);
            return to_asker("", consumer::created(name).to_string().into());
        }
        let Some(consumer) = self.consumers.get_mut(name) else {
            return to_asker(NOBODY, Vec::new());
        };
        consumer.next((name, reply), &self.streams[&consumer.stream], self.lag)
    }

    fn api(&mut self, request: &str, payload: &[u8]) -> (Value, Option<ErasedBytes>) {
        let error = |code: u16| json!({ "error": { "code": 404, "err_code": code } });
        if let Some(name) = request.strip_prefix("CREATE.") {
            self.created += 1;
            let config = serde_json::from_slice(payload).expect("journals send JSON");
            let stream = ServerStream::new(config, self.created);
            return (
                self.streams.entry(name.to_owned()).or_insert(stream).info(&Value::Null),
                None,
            );
        }
        let (what, name) = request.rsplit_once('.').expect("journals ask for a stream");
        let Some(stream) = self.streams.get_mut(name) else { return (error(10059), None) };
        stream.now_ms = self.now_ms;
        let asked: Value = serde_json::from_slice(payload).unwrap_or_default();
        match what {
            "INFO" => (stream.info(&asked), None),
            "MSG.GET" => (stream.message(&asked).unwrap_or_else(|| error(10037)), None),
            _ if self.is_stalled => (refusal(503, 10008, ""), None),
            "MSG.DELETE" => {
                let sequence = asked["seq"].as_u64().expect("journals name a message");
                match stream.messages.remove(&sequence) {
                    Some(_) => (stream.erased(1), Some(ErasedBytes::Message(sequence))),
                    None => (error(10057), None),
                }
            }
            "PURGE" => {
                let subject = asked["filter"].as_str().expect("journals name a subject").to_owned();
                let before = asked["seq"].as_u64().expect("and a place");
                let count = stream.messages.len();
                stream
                    .messages
                    .retain(|at, stored| *at >= before || !is_wanted(&stored.subject, &subject));
                let erased = ErasedBytes::UpTo(subject, before - 1);
                (stream.erased(count - stream.messages.len()), Some(erased))
            }
            other => panic!("journals do not ask for {other}"),
        }
    }
}

/// Begins the subjects of channels' messages.
const MESSAGES: &str = "throng.in.default.c.";

/// Begins the subjects of their states.
const STATES: &str = "throng.in.default.k.c.";

/// Begins the subjects of their records.
const RECORDS: &str = "throng.in.default.r.c.";

const NOBODY: &str = "NATS/1.0 503\r\n\r\n";

impl ServerStream {
    fn new(config: Value, created: u64) -> ServerStream {
        ServerStream {
            config,
            created,
            messages: BTreeMap::new(),
            dropped: BTreeMap::new(),
            first: 1,
            last: 0,
            ids: HashMap::new(),
            leader: 0,
            now_ms: 0,
            conditional: 0,
            batches: HashMap::new(),
        }
    }

    fn info(&self, asked: &Value) -> Value {
        let (named, total) = named(&self.messages, asked);
        json!({
            "config": self.config, "created": self.created.to_string(),
            "state": { "first_seq": self.first, "last_seq": self.last, "subjects": named },
            "total": total,
            "cluster": { "leader": self.leader.to_string() },
            "ts": time_text(self.now_ms),
        })
    }

    fn last_of(&self, subject: &str) -> u64 {
        let mut stored = self.messages.iter().rev();
        stored.find(|(_, stored)| stored.subject == subject).map_or(0, |(sequence, _)| *sequence)
    }

    /// The answer to a request for a message.
    fn message(&self, asked: &Value) -> Option<Value> {
        let next = asked["next_by_subj"].as_str();
        let (sequence, stored) = match (asked["seq"].as_u64(), next) {
            (Some(sequence), Some(wanted)) => {
                let mut later = self.messages.range(sequence..);
                later.find(|(_, stored)| is_wanted(&stored.subject, wanted))?
            }
            (Some(sequence), None) => self.messages.get_key_value(&sequence)?,
            (None, _) => {
                let wanted = asked["last_by_subj"].as_str().unwrap_or_default();
                let mut last = self.messages.iter().rev();
                last.find(|(_, stored)| is_wanted(&stored.subject, wanted))?
            }
        };
        let [hdrs, data] = [&stored.headers, &stored.payload].map(|it| STANDARD.encode(it));
        let message = json!({
            "subject": stored.subject, "seq": sequence, "hdrs": hdrs, "data": data,
            "time": time_text(stored.at_ms),
        });
        Some(json!({ "message": message }))
    }

    /// True if the age of the stream means nothing to a message: nodes renew it, or it is younger.
    fn is_renewed(&self, sequence: u64, stored: &StoredBytes) -> bool {
        stored.can_be_renewed() && self.last_of(&stored.subject) == sequence
    }

    /// Finds the first message. Renewed ones would be later.
    fn begins(&mut self) {
        let first = self.messages.iter().find(|(at, stored)| !self.is_renewed(**at, stored));
        self.first = first.map_or(self.last + 1, |(sequence, _)| *sequence).max(self.first);
    }

    /// Messages are erased. Returns the answer.
    fn erased(&mut self, count: usize) -> Value {
        self.begins();
        json!({ "success": true, "purged": count })
    }

    /// Takes a publication, alone or of a batch. Returns the answer and what is stored; `None` if
    /// more of its batch has to come.
    fn take(
        &mut self,
        name: &str,
        (subject, block, payload): (&str, &[u8], &[u8]),
    ) -> Option<(Value, Vec<StoredNow>)> {
        let published = || (subject.to_owned(), block.to_vec(), payload.to_vec());
        let headers = Headers::new(block);
        let Some((id, at)) =
            headers.get("Nats-Batch-Id").zip(headers.number("Nats-Batch-Sequence"))
        else {
            let refused = self.refuses(subject, headers).or_else(|| self.is_busy_with(headers));
            return Some(match refused {
                Some(refused) => (refused, Vec::new()),
                None => self.store(name, &published()),
            });
        };
        let batch = self.batches.entry(id.to_owned()).or_default();
        batch.push(published());
        let is_whole = batch.len() as u64 == at;
        headers.get("Nats-Batch-Commit")?;
        let batch = self.batches.remove(id).unwrap_or_default();
        let mut refused = (!is_whole).then(|| refusal(400, 10176, "batch is incomplete"));
        for (subject, block, _) in &batch {
            refused = refused.or_else(|| self.refuses(subject, Headers::new(block)));
        }
        if let Some(refused) = refused {
            return Some((refused, Vec::new()));
        }
        let (mut last, mut all) = (Value::Null, Vec::new());
        for published in &batch {
            let (said, stored) = self.store(name, published);
            last = said;
            all.extend(stored);
        }
        Some((last, all))
    }

    /// Why a publication is not stored now.
    fn refuses(&self, subject: &str, headers: Headers<'_>) -> Option<Value> {
        let expected = headers.number("Nats-Expected-Last-Subject-Sequence")?;
        let other = headers.get("Nats-Expected-Last-Subject-Sequence-Subject");
        let last = self.last_of(other.unwrap_or(subject));
        // While an entry is being stored, servers do not say which it is.
        let refused = match last % 5 {
            0 if last > 0 => refusal(400, 10164, "wrong last sequence"),
            _ => refusal(400, 10071, &format!("wrong last sequence: {last}")),
        };
        (expected != last).then_some(refused)
    }

    /// The refusal of a message while several servers store another one under the same condition.
    fn is_busy_with(&mut self, headers: Headers<'_>) -> Option<Value> {
        headers.get("Nats-Expected-Last-Subject-Sequence-Subject")?;
        self.conditional += 1;
        let is_busy = self.config["num_replicas"] != 1 && self.conditional.is_multiple_of(5);
        is_busy.then(|| refusal(400, 10164, "wrong last sequence"))
    }

    /// True if the record says that the channel with these messages has ended.
    fn has_ended(&self, subject: &str) -> bool {
        let Some(name) = subject.strip_prefix(MESSAGES) else { return false };
        let record = self.messages.get(&self.last_of(&format!("{RECORDS}{name}")));
        let record = record.and_then(|stored| LogRecord::read(&stored.payload).ok());
        record.is_some_and(|record| record.is_of_end())
    }

    fn store(
        &mut self,
        name: &str,
        (subject, block, payload): &Published,
    ) -> (Value, Vec<StoredNow>) {
        let headers = Headers::new(block);
        let id = headers.get("Nats-Msg-Id").map(str::to_owned);
        if let Some(sequence) = id.as_ref().and_then(|id| self.ids.get(id)) {
            return (json!({ "stream": name, "seq": sequence, "duplicate": true }), Vec::new());
        }
        let stored = StoredBytes {
            subject: subject.clone(),
            headers: block.clone(),
            payload: payload.clone(),
            at_ms: self.now_ms,
        };
        // Values expire and are erased after it.
        let is_tombstone = stored.key().is_some_and(|(_, is_tombstone)| is_tombstone);
        assert!(
            is_tombstone || !self.has_ended(subject),
            "{subject} has ended, and gets a message"
        );
        let previous = self.last_of(subject);
        self.last += 1;
        self.ids.extend(id.map(|id| (id, self.last)));
        let republished = self.config["republish"]["dest"].as_str().map(|dest| {
            let source = self.config["republish"]["src"].as_str().unwrap_or_default();
            let rest = subject.strip_prefix(source.trim_end_matches('>')).unwrap_or_default();
            let fields = format!("Nats-Last-Sequence: {previous}\r\n");
            Sent {
                reply: None,
                subject: format!("{}{rest}", dest.trim_end_matches('>')),
                headers: with_fields(&stored, self.last, &fields),
                payload: payload.clone(),
            }
        });
        self.messages.insert(self.last, stored.clone());
        let most = match headers.get("Nats-Rollup") {
            Some(_) => 1,
            None => self.config["max_msgs_per_subject"].as_u64().unwrap_or(u64::MAX),
        };
        self.limit(subject, most as usize);
        let said = json!({ "stream": name, "seq": self.last });
        (said, vec![(self.last, stored, republished)])
    }

    /// Drops the oldest messages of a subject.
    fn limit(&mut self, subject: &str, most: usize) {
        let own = self.messages.iter().filter(|(_, stored)| stored.subject == subject);
        let own: Vec<u64> = own.map(|(sequence, _)| *sequence).collect();
        for sequence in &own[..own.len().saturating_sub(most)] {
            let stored = self.messages.remove(sequence);
            self.dropped.extend(stored.map(|stored| (*sequence, (self.last, stored))));
        }
        self.begins();
    }
}

/// What was stored just now, and its copy for those who subscribe.
type StoredNow = (u64, StoredBytes, Option<Sent>);

fn refusal(code: u16, err_code: u32, description: &str) -> Value {
    let error = json!({ "code": code, "err_code": err_code, "description": description });
    json!({ "error": error, "seq": 0 })
}

/// The headers of a message as it comes back.
fn with_fields(stored: &StoredBytes, sequence: u64, fields: &str) -> Vec<u8> {
    let mut block = stored.headers.clone();
    if block.is_empty() {
        block.extend_from_slice(b"NATS/1.0\r\n\r\n");
    }
    block.truncate(block.len() - 2);
    let subject = &stored.subject;
    let time = time_text(stored.at_ms);
    let own = format!(
        "Nats-Subject: {subject}\r\nNats-Sequence: {sequence}\r\nNats-Time-Stamp: {time}\r\n\
         {fields}\r\n"
    );
    block.extend_from_slice(own.as_bytes());
    block
}

/// The answer of a replica that lags behind by `lag` messages.
fn get(stream: &ServerStream, reply: Option<&str>, payload: &[u8], lag: u64) -> Vec<Sent> {
    let request: Value = serde_json::from_slice(payload).expect("journals send JSON");
    let up_to = stream.last.saturating_sub(lag);
    let mut messages = stream.messages.clone();
    let dropped = stream.dropped.iter().filter(|(_, (with, _))| *with > up_to);
    messages.extend(dropped.map(|(sequence, (_, stored))| (*sequence, stored.clone())));
    let visible = || messages.range(..=up_to);
    let (found, left): (Vec<_>, usize) = if let Some(wanted) = request["multi_last"].as_array() {
        let last = |subject: &Value| visible().rev().find(|(_, stored)| stored.subject == *subject);
        let mut found: Vec<_> = wanted.iter().filter_map(last).collect();
        found.sort_by_key(|(sequence, _)| **sequence);
        (found, 0)
    } else {
        let from = request["seq"].as_u64().unwrap_or(0);
        let matching: Vec<_> = visible()
            .filter(|(sequence, stored)| {
                let wanted = request["next_by_subj"].as_str().unwrap_or_default();
                let is_wanted = is_wanted(&stored.subject, wanted);
                **sequence >= from && is_wanted
            })
            .collect();
        // Batches are small here, so that several are needed.
        let taken = matching.len().min(3);
        (matching[..taken].to_vec(), matching.len() - taken)
    };
    let subject = reply.unwrap_or_default().to_owned();
    let mut last = 0;
    let mut sent: Vec<_> = found
        .iter()
        .map(|(sequence, stored)| {
            let fields = format!("Nats-Last-Sequence: {last}\r\n");
            last = **sequence;
            let headers = with_fields(stored, **sequence, &fields);
            Sent { subject: subject.clone(), reply: None, headers, payload: stored.payload.clone() }
        })
        .collect();
    let end = if found.is_empty() {
        "NATS/1.0 404 No Results\r\n\r\n".to_owned()
    } else {
        let up_to = match request["multi_last"] {
            Value::Null => String::new(),
            _ => format!("Nats-UpTo-Sequence: {up_to}\r\n"),
        };
        format!(
            "NATS/1.0 204 EOB\r\nNats-Num-Pending: {left}\r\nNats-Last-Sequence: {last}\r\n\
             {up_to}\r\n"
        )
    };
    sent.push(Sent { subject, reply: None, headers: end.into(), payload: Vec::new() });
    sent
}
