//! An agent and its coordinators, over real sockets.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use super::VERSION;
use super::agent::{Agent, AgentEnd, AgentState};
use super::bounds::Bounds;
use super::connection::{Connection, MESSAGE_BYTES_MAX, Role, Secret};
use super::coordinator::Coordinator;
use super::message::{AgentCommand, AgentInfo, BeginRun, Greeting};
use crate::clients::{ClientCommand, ClientShare};
use crate::counts::ClientCounts;
use crate::plan::file;

/// Ends a test that would hang. Never reached in a good run.
const DEADLINE: Duration = Duration::from_secs(60);

const SECRET: &[u8] = b"a secret of enough bytes";

/// An agent on a thread of this process.
struct Served {
    address: SocketAddr,
    is_stopped: Arc<AtomicBool>,
    handle: JoinHandle<AgentEnd>,
}

impl Served {
    fn start(bounds: Bounds, is_once: bool) -> Served {
        let agent = Arc::new(Agent {
            name: "a".to_owned(),
            secret: Secret::new(SECRET).expect("long enough"),
            bounds,
            plan: Box::new(|text, share| {
                let read = file::parse(Path::new("plan.toml"), text.to_owned());
                let plan = read.expect("a plan").0.into_plan().expect("a plan");
                Ok(share.plan(plan))
            }),
            say: |_| {},
            state: AgentState::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let is_stopped = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&is_stopped);
        let handle = thread::spawn(move || {
            let is_stopped = || stopped.load(Ordering::Relaxed);
            agent.serve(&listener, is_once, &is_stopped).expect("it serves")
        });
        Served { address, is_stopped, handle }
    }

    fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(self.address).expect("it listens");
        socket.set_read_timeout(Some(DEADLINE)).expect("set");
        socket
    }

    /// A coordinator that has proven its secret, and the agent's reply.
    fn greet(&self) -> (Client, AgentInfo) {
        let secret = Secret::new(SECRET).expect("long enough");
        let connection = Connection::open(self.connect(), &secret, Role::Coordinator, soon());
        let mut client = Client(connection.expect("a nonce"));
        let greeting = Greeting { version: VERSION, program: String::new() };
        client.0.send(&greeting, soon()).expect("sent");
        let info = client.0.receive(MESSAGE_BYTES_MAX, soon()).expect("an agent");
        (client, info)
    }

    /// Like [`greet`](Self::greet), once the agent has no other coordinator.
    fn greet_free(&self) -> Client {
        let deadline = soon();
        loop {
            let (client, info) = self.greet();
            if !info.is_busy {
                return client;
            }
            assert!(Instant::now() < deadline, "it stays busy");
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn stop(self) -> AgentEnd {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.handle.join().expect("no panic")
    }
}

/// A coordinator, command by command.
struct Client(Connection);

impl Client {
    fn ask<T: DeserializeOwned>(&mut self, command: &AgentCommand) -> Result<T, String> {
        self.0.send(command, soon()).expect("sent");
        self.0.receive(MESSAGE_BYTES_MAX, soon()).expect("a reply")
    }

    /// Begins a run of so many clients, half of them on this agent.
    fn begin(&mut self, target: SocketAddr, clients: usize) -> Result<(), String> {
        let plan = format!(
            "[target]\nurl = \"http://{target}/\"\ntransport = \"stream\"\n\
             [[phases]]\ndo = \"ramp\"\nto = {clients}\n"
        );
        let share = ClientShare { step: 2, ..ClientShare::whole(7, clients) };
        self.ask(&AgentCommand::Begin(Box::new(BeginRun { share, plan })))
    }
}

fn ramp_to(to: usize) -> AgentCommand {
    AgentCommand::Clients(ClientCommand::Ramp { to, rate: None, in_flight: 9 })
}

fn soon() -> Instant {
    Instant::now() + DEADLINE
}

/// A listener that accepts nothing by itself.
fn target() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    (listener, address)
}

#[test]
fn clients_end_with_their_coordinator() {
    let (listener, address) = target();
    for is_asked in [false, true] {
        let agent = Served::start(Bounds::default(), true);
        let mut coordinator = agent.greet().0;
        coordinator.begin(address, 4).expect("it takes part");
        let ramp = ramp_to(2);
        coordinator.ask::<()>(&ramp).expect("it ramps");
        let mut clients: Vec<_> = (0..2).map(|_| listener.accept().expect("a client").0).collect();
        if is_asked {
            let counts: ClientCounts = coordinator.ask(&AgentCommand::Counts).expect("counts");
            assert_eq!(counts.attempts, 2);
            coordinator.ask::<()>(&AgentCommand::End).expect("it ends");
        }
        drop(coordinator);
        for client in &mut clients {
            // The end of the stream, or a reset.
            let _ = client.read_to_end(&mut Vec::new());
        }
        let expected = if is_asked { AgentEnd::Done } else { AgentEnd::Lost };
        assert_eq!(agent.handle.join().expect("no panic"), expected);
    }
}

#[test]
fn a_stopped_agent_closes_its_clients() {
    let (listener, address) = target();
    let agent = Served::start(Bounds::default(), false);
    let mut coordinator = agent.greet().0;
    coordinator.begin(address, 2).expect("it takes part");
    let ramp = ramp_to(1);
    coordinator.ask::<()>(&ramp).expect("it ramps");
    let mut client = listener.accept().expect("a client").0;
    assert_eq!(agent.stop(), AgentEnd::Done);
    let _ = client.read_to_end(&mut Vec::new());
}

#[test]
fn an_agent_serves_one_coordinator_at_a_time() {
    let agent = Served::start(Bounds::default(), false);
    let (first, info) = agent.greet();
    assert!(!info.is_busy && info.name == "a" && info.version == VERSION);
    assert!(agent.greet().1.is_busy);
    drop(first);
    drop(agent.greet_free());
    agent.stop();
}

#[test]
fn bounds_are_checked_before_anything_connects() {
    let (listener, address) = target();
    listener.set_nonblocking(true).expect("set");
    let bounds = Bounds { clients_max: Some(5), targets: vec!["127.0.0.1".parse().expect("one")] };
    let agent = Served::start(bounds, false);
    let mut coordinator = agent.greet().0;
    let mut refused = |target: &str, clients| {
        let target = target.parse().expect("an address");
        coordinator.begin(target, clients).expect_err("refused")
    };
    assert!(refused(&address.to_string(), 12).contains("--max-clients"));
    assert!(refused("127.0.0.2:80", 2).contains("--allow-target"));
    coordinator.begin(address, 10).expect("it takes part");
    let ramp = ramp_to(6);
    assert!(coordinator.ask::<()>(&ramp).is_err());
    assert!(coordinator.begin(address, 2).is_err(), "a second run");
    let counts: ClientCounts = coordinator.ask(&AgentCommand::Counts).expect("counts");
    assert_eq!(counts.attempts, 0);
    agent.stop();
    assert!(listener.accept().is_err(), "something has connected");
}

#[test]
fn strangers_learn_nothing_and_keep_nobody_out() {
    let agent = Served::start(Bounds::default(), false);
    // Silent ones occupy places until their deadline; the others are closed at once.
    let silent: Vec<_> = (0..20).map(|_| agent.connect()).collect();
    let mut noisy = agent.connect();
    // Closed already, perhaps.
    let _ = noisy.write_all(&[0xff; 100]);
    let mut heard = Vec::new();
    let _ = noisy.read_to_end(&mut heard);
    assert!(heard.len() <= 32, "more than a nonce: {heard:?}");
    for mut stranger in silent {
        let mut heard = Vec::new();
        stranger.read_to_end(&mut heard).expect("closed in order");
        assert!(heard.len() <= 32, "more than a nonce: {heard:?}");
    }
    agent.greet_free();
    agent.stop();
}

#[test]
fn another_secret_is_one_sentence() {
    let agent = Served::start(Bounds::default(), false);
    let other = Secret::new(b"another secret of enough bytes").expect("long enough");
    let addresses = [agent.address.to_string()];
    for secret in [other, Secret::none()] {
        let gathered = Coordinator::gather(&addresses, &secret, DEADLINE, &|| false);
        let words = gathered.err().expect("refused");
        let address = agent.address;
        assert_eq!(words, format!("the agent at {address} has another secret: see --secret-file"));
    }
    agent.stop();
}

#[test]
fn another_version_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let later = thread::spawn(move || {
        let socket = listener.accept().expect("a coordinator").0;
        let mut agent =
            Connection::open(socket, &Secret::none(), Role::Agent, soon()).expect("a nonce");
        let _: Greeting = agent.receive(MESSAGE_BYTES_MAX, soon()).expect("a greeting");
        let info = serde_json::json!({"version": 99, "program": "9.9", "name": "b", "more": []});
        agent.send(&info, soon()).expect("sent");
    });
    let gathered = Coordinator::gather(&[address], &Secret::none(), DEADLINE, &|| false);
    let words = gathered.err().expect("another version");
    assert!(
        words.starts_with("the agent b is of version 99 (9.9) and this is version 1"),
        "{words}"
    );
    later.join().expect("no panic");
}

#[test]
fn absent_and_busy_agents_are_named() {
    let agent = Served::start(Bounds::default(), false);
    let _busy_with = agent.greet();
    let nowhere = target().1;
    let addresses = [agent.address.to_string(), nowhere.to_string()];
    let secret = Secret::new(SECRET).expect("long enough");
    let gathered = Coordinator::gather(&addresses, &secret, Duration::ZERO, &|| false);
    let words = gathered.err().expect("too few");
    assert!(words.starts_with("0 of 2 agents are there after 0 s: "), "{words}");
    assert!(words.contains("takes part in another run; "), "{words}");
    assert!(words.contains(&format!("{nowhere}: Connection refused")), "{words}");
    agent.stop();
}
