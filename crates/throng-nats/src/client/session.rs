//! A connection that asks one question after the other: for those who examine servers. A node has a
//! [`StreamJournal`](crate::journal::StreamJournal) on its own.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::address::ServerAddress;
use super::handshake::{self, Connected, Info, NatsTls};
use super::login::Login;
use super::lost::{self, ConnectionLost};
use super::servers::KnownServer;
use super::source::Source;
use crate::permissions::{NatsPermission, Verb};
use crate::protocol::decoder::ServerOp;
use crate::protocol::encoder;

/// How long connecting and logging in may take.
const CONNECT: Duration = Duration::from_secs(2);

const READ_BYTES: usize = 8 << 10;

/// Subscriptions that are tried before the server is asked whether it has refused some.
const SUBSCRIPTIONS_AT_ONCE: usize = 1_000;

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(2);

/// The subscription that answers come to.
const INBOX_SID: u64 = 1;

/// See the module.
#[derive(Debug)]
pub struct NatsSession {
    connected: Connected,
    inbox: String,
    has_inbox: bool,
    last_token: u64,
    last_sid: u64,
    /// Permissions that the server denied this user, in its words.
    denied: Vec<String>,
    /// Subscriptions for which the server had no room.
    refused: usize,
}

/// An answer, or a message that came for a subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionReply {
    /// The status if it is no message: 503 if no subscriber listens to the subject.
    pub status: Option<u16>,
    pub payload: Vec<u8>,
}

/// The next event on the connection.
enum Heard {
    Pong,
    Message { sid: u64, subject: String, reply: SessionReply },
}

impl NatsSession {
    /// Connects to a server and logs in. `nonce` names the inbox: letters and digits.
    ///
    /// # Errors
    ///
    /// Why that does not work and what to do, in one sentence.
    pub async fn open(
        address: &ServerAddress,
        (login, tls): (&Source<Login>, &NatsTls),
        name: &str,
        nonce: &str,
    ) -> Result<NatsSession, String> {
        let server = KnownServer { address: address.clone(), name: address.host.clone() };
        let connecting = handshake::connect(&server, login, tls, name);
        let connected = timeout(CONNECT, connecting).await.unwrap_or(Err(ConnectionLost::Silent));
        let connected = connected.map_err(|lost| lost.to_string())?;
        let inbox = format!("_INBOX.{nonce}.");
        let (last_token, last_sid, denied) = (0, INBOX_SID, Vec::new());
        let (refused, has_inbox) = (0, true);
        let mut session =
            NatsSession { connected, inbox, has_inbox, last_token, last_sid, denied, refused };
        let mut out = Vec::new();
        encoder::subscribe(&mut out, &format!("{}*", session.inbox), INBOX_SID);
        session.send(&out).await.map_err(|lost| lost.to_string())?;
        // Earlier refusals by the server must not be taken for answers to later requests.
        session.ping().await.map_err(|lost| lost.to_string())?;
        session.has_inbox = session.denied.is_empty();
        Ok(session)
    }

    /// True if this user may receive answers. Otherwise no question gets one.
    pub fn has_inbox(&self) -> bool {
        self.has_inbox
    }

    /// The server's description of itself.
    pub fn info(&self) -> &Info {
        &self.connected.info
    }

    /// True if the connection speaks TLS.
    pub fn is_tls(&self) -> bool {
        self.connected.stream.is_tls()
    }

    /// The kind of the accepted login, in a word or two.
    pub fn login(&self) -> &'static str {
        self.connected.login.kind()
    }

    /// How long the server takes to answer when it has nothing to look up.
    ///
    /// # Errors
    ///
    /// Why the connection is lost.
    pub async fn round_trip(&mut self) -> Result<Duration, String> {
        let asked = Instant::now();
        self.ping().await.map_err(|lost| lost.to_string())?;
        Ok(asked.elapsed())
    }

    /// Sends a request. `None` if no answer comes in time, or this user may not publish it.
    ///
    /// # Errors
    ///
    /// Why the connection is lost.
    pub async fn request(
        &mut self,
        subject: &str,
        headers: &[u8],
        payload: &[u8],
    ) -> Result<Option<SessionReply>, String> {
        self.last_token += 1;
        let inbox = format!("{}{}", self.inbox, self.last_token);
        let mut out = Vec::new();
        encoder::publish(&mut out, subject, Some(&inbox), headers, payload);
        encoder::ping(&mut out);
        let before = self.denied.len();
        self.send(&out).await.map_err(|lost| lost.to_string())?;
        let answer = async {
            loop {
                match self.hear().await? {
                    Heard::Pong if self.denied.len() > before => return Ok(None),
                    Heard::Message { sid: INBOX_SID, subject, reply } if subject == inbox => {
                        return Ok(Some(reply));
                    }
                    _ => {}
                }
            }
        };
        let answer = timeout(ANSWER, answer).await.unwrap_or(Ok(None));
        answer.map_err(|lost: ConnectionLost| lost.to_string())
    }

    /// Sends a request that several may answer, and collects what they say until the time is up,
    /// or `is_done` and no other answer has come for the time `quiet`. One answer with the status
    /// 503 says that nobody listens. `None` if this user may not publish it.
    ///
    /// # Errors
    ///
    /// Why the connection is lost.
    pub async fn gather(
        &mut self,
        (subject, headers, payload): (&str, &[u8], &[u8]),
        (at_most, quiet): (Duration, Duration),
        mut is_done: impl FnMut(&[SessionReply]) -> bool,
    ) -> Result<Option<Vec<SessionReply>>, String> {
        self.last_token += 1;
        let inbox = format!("{}{}", self.inbox, self.last_token);
        let mut out = Vec::new();
        encoder::publish(&mut out, subject, Some(&inbox), headers, payload);
        encoder::ping(&mut out);
        let before = self.denied.len();
        self.send(&out).await.map_err(|lost| lost.to_string())?;
        let mut replies = Vec::new();
        let gathering = async {
            loop {
                let heard = if is_done(&replies) {
                    let Ok(heard) = timeout(quiet, self.hear()).await else { return Ok(true) };
                    heard?
                } else {
                    self.hear().await?
                };
                match heard {
                    Heard::Pong if self.denied.len() > before => return Ok(false),
                    Heard::Message { sid: INBOX_SID, subject, reply } if subject == inbox => {
                        let is_nobody = reply.is_nobody();
                        replies.push(reply);
                        if is_nobody {
                            return Ok(true);
                        }
                    }
                    _ => {}
                }
            }
        };
        let is_allowed = timeout(at_most, gathering).await.unwrap_or(Ok(true));
        let is_allowed = is_allowed.map_err(|lost: ConnectionLost| lost.to_string())?;
        Ok(is_allowed.then_some(replies))
    }

    /// Subscribes. Returns the number of the subscription.
    ///
    /// # Errors
    ///
    /// Why the connection is lost.
    pub async fn subscribe(&mut self, subject: &str) -> Result<u64, String> {
        self.last_sid += 1;
        let mut out = Vec::new();
        encoder::subscribe(&mut out, subject, self.last_sid);
        self.send(&out).await.map_err(|lost| lost.to_string())?;
        self.ping().await.map_err(|lost| lost.to_string())?;
        Ok(self.last_sid)
    }

    /// How many more subscriptions the server has room for, if it refuses one of `most`; `None` if
    /// it has room for all, or this user may not make them. They end at once.
    ///
    /// # Errors
    ///
    /// Why the connection is lost.
    pub async fn room(&mut self, most: usize) -> Result<Option<usize>, String> {
        let (refused, denied, first) = (self.refused, self.denied.len(), self.last_sid + 1);
        let mut made = 0;
        while made < most && self.refused == refused && self.denied.len() == denied {
            let count = SUBSCRIPTIONS_AT_ONCE.min(most - made);
            let mut out = Vec::new();
            for _ in 0..count {
                self.last_sid += 1;
                let subject = format!("{}room.{}", self.inbox, self.last_sid);
                encoder::subscribe(&mut out, &subject, self.last_sid);
            }
            self.send(&out).await.map_err(|lost| lost.to_string())?;
            self.ping().await.map_err(|lost| lost.to_string())?;
            made += count;
        }
        let mut out = Vec::new();
        (first..=self.last_sid).for_each(|sid| encoder::unsubscribe(&mut out, sid));
        self.send(&out).await.map_err(|lost| lost.to_string())?;
        self.ping().await.map_err(|lost| lost.to_string())?;
        let refused = self.refused - refused;
        let is_known = refused > 0 && self.denied.len() == denied;
        Ok(is_known.then(|| made.saturating_sub(refused)))
    }

    /// Publishes, and waits for a message to a subscription. `None` if none came in time.
    ///
    /// # Errors
    ///
    /// Why the connection is lost.
    pub async fn publish_and_wait(
        &mut self,
        subject: &str,
        (headers, payload): (&[u8], &[u8]),
        wanted: u64,
    ) -> Result<Option<SessionReply>, String> {
        let mut out = Vec::new();
        encoder::publish(&mut out, subject, None, headers, payload);
        self.send(&out).await.map_err(|lost| lost.to_string())?;
        let waiting = async {
            loop {
                match self.hear().await? {
                    Heard::Message { sid, reply, .. } if sid == wanted => return Ok(Some(reply)),
                    _ => {}
                }
            }
        };
        let found = timeout(ANSWER, waiting).await.unwrap_or(Ok(None));
        found.map_err(|lost: ConnectionLost| lost.to_string())
    }

    /// Whether this user may do what a node has to: tries it in a way that changes nothing.
    ///
    /// # Errors
    ///
    /// Why the connection is lost.
    pub async fn may(&mut self, permission: &NatsPermission) -> Result<bool, String> {
        let before = self.denied.len();
        let NatsPermission { verb, subject, headers, payload, .. } = permission;
        let mut out = Vec::new();
        match verb {
            Verb::Publish => encoder::publish(&mut out, subject, None, headers, payload),
            Verb::Subscribe => {
                self.last_sid += 1;
                encoder::subscribe(&mut out, subject, self.last_sid);
                encoder::unsubscribe(&mut out, self.last_sid);
            }
        }
        self.send(&out).await.map_err(|lost| lost.to_string())?;
        self.ping().await.map_err(|lost| lost.to_string())?;
        Ok(self.denied.len() == before)
    }

    /// Waits until the server has taken everything, and has said what it does not allow.
    async fn ping(&mut self) -> Result<(), ConnectionLost> {
        let mut out = Vec::new();
        encoder::ping(&mut out);
        self.send(&out).await?;
        let pong = async {
            loop {
                if matches!(self.hear().await?, Heard::Pong) {
                    return Ok(());
                }
            }
        };
        timeout(ANSWER, pong).await.unwrap_or(Err(ConnectionLost::Silent))
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), ConnectionLost> {
        let sending = async {
            self.connected.stream.write_all(bytes).await?;
            self.connected.stream.flush().await
        };
        Ok(timeout(ANSWER, sending).await.map_err(|_| ConnectionLost::Silent)??)
    }

    async fn hear(&mut self) -> Result<Heard, ConnectionLost> {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let mut is_asked = false;
            while let Some(op) = self.connected.decoder.next_op()? {
                match op {
                    ServerOp::Pong => return Ok(Heard::Pong),
                    ServerOp::Message(found) => {
                        let status = found.headers.status();
                        let reply = SessionReply { status, payload: found.payload.to_vec() };
                        let subject = found.subject.to_owned();
                        return Ok(Heard::Message { sid: found.sid, subject, reply });
                    }
                    ServerOp::Ping => is_asked = true,
                    ServerOp::Error(error) if error.starts_with("Permissions Violation") => {
                        self.denied.push(error.to_owned());
                    }
                    ServerOp::Error(error) if lost::is_about_a_subscription(error) => {
                        self.refused += 1;
                    }
                    ServerOp::Error(error) => {
                        return Err(ConnectionLost::said(error, &self.connected.login));
                    }
                    ServerOp::Info(_) | ServerOp::Ok => {}
                }
            }
            if is_asked {
                let mut out = Vec::new();
                encoder::pong(&mut out);
                self.send(&out).await?;
            }
            match self.connected.stream.read(&mut buffer).await? {
                0 => return Err(ConnectionLost::Closed),
                count => self.connected.decoder.feed(&buffer[..count]),
            }
        }
    }
}

impl SessionReply {
    /// True if the server says that nobody listens.
    pub fn is_nobody(&self) -> bool {
        self.status == Some(503)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt as _, BufReader};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// A server that answers PING, and other lines with what `says` says to them.
    async fn serve(stream: TcpStream, says: fn(&str) -> Option<String>) {
        let (reader, mut writer) = stream.into_split();
        writer.write_all(b"INFO {\"headers\":true}\r\n").await.unwrap();
        let mut lines = BufReader::new(reader).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let said = if line == "PING" { Some("PONG\r\n".into()) } else { says(&line) };
            if let Some(said) = said {
                writer.write_all(said.as_bytes()).await.unwrap();
            }
        }
    }

    async fn session(says: fn(&str) -> Option<String>) -> NatsSession {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let address = ServerAddress::parse(&format!("127.0.0.1:{port}")).unwrap();
        tokio::spawn(async move { serve(listener.accept().await.unwrap().0, says).await });
        let config = Source::new(|| Err("no TLS".into()));
        let tls = NatsTls { config, is_demanded: false, is_first: false };
        NatsSession::open(&address, (&Login::Anonymous.into(), &tls), "test", "n").await.unwrap()
    }

    /// Two answers to a request, at once.
    fn twice(line: &str) -> Option<String> {
        let answer = |text| format!("MSG _INBOX.n.1 1 1\r\n{text}\r\n");
        line.starts_with("PUB a ").then(|| answer("x") + &answer("y"))
    }

    #[tokio::test]
    async fn an_answer_after_the_last_that_was_expected_is_heard() {
        let mut session = session(twice).await;
        let times = (Duration::from_secs(60), Duration::from_millis(50));
        let replies = session.gather(("a", b"", b""), times, |replies| !replies.is_empty()).await;
        let replies = replies.unwrap().unwrap();
        let payloads: Vec<_> = replies.iter().map(|reply| &*reply.payload).collect();
        assert_eq!(payloads, [b"x", b"y"]);
    }

    #[tokio::test]
    async fn a_user_without_an_inbox_is_noticed() {
        assert!(session(|_| None).await.has_inbox());
        let denied = session(|line| {
            let subject = line.strip_prefix("SUB ")?.split(' ').next()?;
            Some(format!("-ERR 'Permissions Violation for Subscription to \"{subject}\"'\r\n"))
        });
        assert!(!denied.await.has_inbox());
    }
}
