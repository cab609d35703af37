//! A consumer of the model, as nodes use it to learn which channels there are.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use serde_json::{Value, json};

use super::{Sent, ServerStream};

/// Gives the last message of each subject that was there when it was made, and then all that come.
pub(super) struct Consumer {
    pub(super) stream: String,
    /// The subjects, with wildcards.
    filters: Vec<String>,
    pending: BTreeSet<u64>,
    /// It knows of the messages up to here.
    reached: u64,
    given: u64,
}

impl Consumer {
    /// The consumer that is asked for, on a replica that lags behind.
    pub(super) fn new(name: &str, request: &Value, stream: &ServerStream, lag: u64) -> Consumer {
        let filters = request["config"]["filter_subjects"].as_array().expect("there are some");
        let filter = |subject: &Value| subject.as_str().expect("a subject").to_owned();
        let mut consumer = Consumer {
            stream: name.to_owned(),
            filters: filters.iter().map(filter).collect(),
            pending: BTreeSet::new(),
            reached: stream.last.saturating_sub(lag),
            given: 0,
        };
        let messages = stream.messages.range(..=consumer.reached);
        let wanted = messages.filter(|(_, stored)| consumer.wants(&stored.subject));
        let last: BTreeMap<&str, u64> =
            wanted.map(|(sequence, stored)| (&*stored.subject, *sequence)).collect();
        consumer.pending = last.into_values().collect();
        consumer
    }

    fn wants(&self, subject: &str) -> bool {
        self.filters.iter().any(|filter| matches(filter, subject))
    }

    /// The answer to the request for the next messages: a few of them, so that several are needed.
    pub(super) fn next(
        &mut self,
        (name, reply): (&str, &str),
        stream: &ServerStream,
        lag: u64,
    ) -> Vec<Sent> {
        let reached = self.reached.max(stream.last.saturating_sub(lag));
        let come = stream.messages.range((Bound::Excluded(self.reached), Bound::Included(reached)));
        let come = come.filter(|(_, stored)| self.wants(&stored.subject));
        let come: Vec<u64> = come.map(|(sequence, _)| *sequence).collect();
        self.reached = reached;
        self.pending.extend(come);
        // What is gone meanwhile is not given.
        self.pending.retain(|sequence| stream.messages.contains_key(sequence));
        let mut sent = Vec::new();
        while let Some(sequence) = self.pending.pop_first() {
            let stored = &stream.messages[&sequence];
            self.given += 1;
            let (number, left) = (self.given, self.pending.len());
            let ack = format!("$JS.ACK.{}.{name}.1.{sequence}.{number}.1.{left}", self.stream);
            let size = stored.payload.len();
            sent.push(Sent {
                subject: stored.subject.clone(),
                reply: Some(ack),
                headers: format!("NATS/1.0\r\nNats-Msg-Size: {size}\r\n\r\n").into(),
                payload: Vec::new(),
            });
        }
        if sent.is_empty() {
            let headers = b"NATS/1.0 404 No Messages\r\n\r\n".to_vec();
            sent.push(Sent { subject: reply.into(), reply: None, headers, payload: Vec::new() });
        }
        sent
    }
}

/// True if a subject is one of those that a filter stands for.
fn matches(filter: &str, subject: &str) -> bool {
    let mut tokens = subject.split('.');
    for wanted in filter.split('.') {
        match tokens.next() {
            Some(_) if wanted == ">" => return true,
            Some(token) if wanted == "*" || wanted == token => {}
            _ => return false,
        }
    }
    tokens.next().is_none()
}

/// The answer to the request for a consumer.
pub(super) fn created(name: &str) -> Value {
    json!({ "name": name, "config": {} })
}
