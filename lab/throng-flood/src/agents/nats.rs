//! The connection to the NATS server, for plain threads.
//!
//! The runtime makes progress only while a thread waits for something in it. That is often enough:
//! a run sends a command at least once a second, and an agent always waits for one.

use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Client, ConnectOptions, Request, RequestErrorKind};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use super::AgentsError;

/// How long a connect may take.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// How long a request without responders is repeated: a NATS server that has just restarted does
/// not know its subscribers yet.
const RETRY_TIME: Duration = Duration::from_millis(1500);
/// The pause between two of these requests.
const RETRY_STEP: Duration = Duration::from_millis(100);

/// A connection to a NATS server.
pub(super) struct NatsConnection {
    pub(super) runtime: Runtime,
    pub(super) client: Client,
    pub(super) url: String,
}

/// A request to one agent.
pub(super) struct AgentRequest {
    /// The number of the agent, for the caller.
    pub(super) to: usize,
    pub(super) subject: String,
    pub(super) body: Vec<u8>,
}

impl AgentRequest {
    pub(super) fn new(to: usize, subject: &str, body: &impl Serialize) -> AgentRequest {
        AgentRequest { to, subject: subject.to_owned(), body: encode(body) }
    }
}

/// Encodes a message as JSON, which all types of messages can be.
pub(super) fn encode(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(message).unwrap_or_default()
}

/// A group of agents, which has subjects of its own.
#[derive(Debug, Clone)]
pub(super) struct Group(String);

impl Group {
    pub(super) fn new(name: &str) -> Result<Group, AgentsError> {
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if !name.is_empty() && name.bytes().all(is_word) {
            Ok(Group(name.to_owned()))
        } else {
            Err(AgentsError::Group(name.to_owned()))
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.0
    }

    pub(super) fn call(&self) -> String {
        format!("throng.flood.{}.call", self.0)
    }

    pub(super) fn agent(&self, id: &str) -> String {
        format!("throng.flood.{}.agent.{id}", self.0)
    }
}

impl NatsConnection {
    pub(super) fn connect(url: &str) -> Result<NatsConnection, AgentsError> {
        let runtime =
            Builder::new_current_thread().enable_all().build().map_err(AgentsError::Runtime)?;
        let options = ConnectOptions::new()
            .name("throng flood")
            .connection_timeout(CONNECT_TIME_MAX)
            .ping_interval(Duration::from_secs(5));
        let shown = without_password(url);
        let client = runtime.block_on(options.connect(url)).map_err(|error| {
            let mut cause = &error as &dyn std::error::Error;
            while let Some(deeper) = cause.source() {
                cause = deeper;
            }
            AgentsError::NoServer { url: shown.clone(), reason: cause.to_string() }
        })?;
        Ok(NatsConnection { runtime, client, url: shown })
    }

    pub(super) fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    pub(super) fn server_error(&self, error: impl ToString) -> AgentsError {
        AgentsError::Server { url: self.url.clone(), reason: error.to_string() }
    }

    /// Sends all requests at once, and waits for each reply or error.
    pub(super) fn ask<A>(
        &self,
        requests: Vec<AgentRequest>,
        max_time: Duration,
    ) -> Vec<(usize, Result<A, String>)>
    where
        A: DeserializeOwned + Send + 'static,
    {
        self.runtime.block_on(async {
            let mut asked = JoinSet::new();
            for AgentRequest { to, subject, body } in requests {
                let client = self.client.clone();
                asked.spawn(async move { (to, ask(&client, subject, body, max_time).await) });
            }
            asked.join_all().await
        })
    }
}

async fn ask<A: DeserializeOwned>(
    client: &Client,
    subject: String,
    body: Vec<u8>,
    max_time: Duration,
) -> Result<A, String> {
    let began = tokio::time::Instant::now();
    loop {
        let request = Request::new().payload(body.clone().into()).timeout(Some(max_time));
        match client.send_request(subject.clone(), request).await {
            Ok(message) => {
                return serde_json::from_slice(&message.payload)
                    .map_err(|error| format!("its answer cannot be read: {error}"));
            }
            Err(error) => match error.kind() {
                RequestErrorKind::NoResponders if began.elapsed() < RETRY_TIME => {
                    tokio::time::sleep(RETRY_STEP).await;
                }
                RequestErrorKind::NoResponders => return Err("it has gone".to_owned()),
                RequestErrorKind::TimedOut => {
                    return Err(format!("it did not answer for {} s", max_time.as_secs()));
                }
                _ => return Err(format!("it could not be asked: {error}")),
            },
        }
    }
}

fn without_password(url: &str) -> String {
    match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if scheme < at => {
            format!("{}://…{}", &url[..scheme], &url[at..])
        }
        (None, Some(at)) => format!("…{}", &url[at..]),
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        assert_eq!(without_password("nats://me:secret@h:4222"), "nats://…@h:4222");
        assert_eq!(without_password("secret@h"), "…@h");
        assert_eq!(without_password("nats://h:4222"), "nats://h:4222");
    }

    #[test]
    fn group_names_are_checked() {
        assert_eq!(Group::new("a-1_B").expect("a word").call(), "throng.flood.a-1_B.call");
        for name in ["", "a.b", "*", "a b", ">"] {
            assert!(Group::new(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_missing_server_is_one_sentence() {
        let error = NatsConnection::connect("nats://127.0.0.1:1").err().expect("nothing listens");
        let words = error.to_string();
        assert!(words.starts_with("there is no NATS server at nats://127.0.0.1:1: "), "{words}");
        assert!(!words.contains('\n'), "{words}");
    }
}
