//! The connection of a coordinator and an agent: authenticated frames over TCP.
//!
//! Each side sends a nonce of 32 random bytes. The shared secret and both nonces give two keys, one
//! for each direction. A frame is the length of its body (four bytes, big-endian), an HMAC-SHA256
//! of the frame's number and its body under the key of its direction, and the body, which is JSON.
//!
//! # Invariants
//!
//! * The first valid frame proves that its sender knows the secret. No frame can be altered,
//!   reordered, replayed or reflected. Frames are not encrypted.
//! * Reads and writes have a deadline, and a frame has a size limit, which the receiver names.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use ring::hmac::{HMAC_SHA256, Key, sign, verify};
use ring::rand::{SecureRandom as _, SystemRandom};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The largest message: the deliveries of a million published messages, with room to spare. Memory
/// becomes resident as bytes arrive.
pub(super) const MESSAGE_BYTES_MAX: usize = 256 << 20;

/// The largest first message: an unproven side gets no larger buffer.
pub(super) const GREETING_BYTES_MAX: usize = 1024;

/// The time limit of both nonces and both first messages together.
pub(super) const GREETING_TIME_MAX: Duration = Duration::from_secs(5);

/// The shortest secret: an eavesdropper can try out short ones.
const SECRET_BYTES_MIN: usize = 16;

const NONCE_BYTES: usize = 32;
const TAG_BYTES: usize = 32;
const LENGTH_BYTES: usize = 4;

/// The secret that coordinators and agents share; empty if only loopback is used.
pub(crate) struct Secret(Key);

impl Secret {
    /// No secret: everybody on this machine knows it.
    pub(crate) fn none() -> Secret {
        Secret(Key::new(HMAC_SHA256, b""))
    }

    /// The secret with this text, without the white space around it.
    pub(crate) fn new(text: &[u8]) -> Result<Secret, String> {
        let text = text.trim_ascii();
        if text.len() < SECRET_BYTES_MIN {
            return Err(format!("the secret is shorter than {SECRET_BYTES_MIN} bytes"));
        }
        Ok(Secret(Key::new(HMAC_SHA256, text)))
    }
}

/// A side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Coordinator,
    Agent,
}

pub(super) struct Connection {
    socket: TcpStream,
    outgoing: Direction,
    incoming: Direction,
}

/// The frames of one direction.
struct Direction {
    key: Key,
    frames: u64,
}

impl Direction {
    /// The next frame's number and body, which its tag is for.
    fn next(&mut self, body: &[u8]) -> Vec<u8> {
        self.frames += 1;
        [&self.frames.to_be_bytes()[..], body].concat()
    }
}

impl Connection {
    /// Exchanges nonces. Proves nothing yet.
    pub(super) fn open(
        mut socket: TcpStream,
        secret: &Secret,
        role: Role,
        deadline: Instant,
    ) -> io::Result<Connection> {
        socket.set_nodelay(true)?;
        let (mut ours, mut theirs) = ([0; NONCE_BYTES], [0; NONCE_BYTES]);
        let no_random = |_| io::Error::other("the system has no random numbers");
        SystemRandom::new().fill(&mut ours).map_err(no_random)?;
        write(&mut socket, &ours, deadline)?;
        read(&mut socket, &mut theirs, deadline)?;
        let direction = |sender: Role| {
            let label = match sender {
                Role::Coordinator => b"throng-flood coordinator",
                Role::Agent => &b"throng-flood agent"[..],
            };
            let (of_sender, of_receiver) =
                if sender == role { (ours, theirs) } else { (theirs, ours) };
            let key = sign(&secret.0, &[label, &of_sender, &of_receiver].concat());
            Direction { key: Key::new(HMAC_SHA256, key.as_ref()), frames: 0 }
        };
        let other = if role == Role::Agent { Role::Coordinator } else { Role::Agent };
        Ok(Connection { socket, outgoing: direction(role), incoming: direction(other) })
    }

    pub(super) fn send(&mut self, message: &impl Serialize, deadline: Instant) -> io::Result<()> {
        let body = serde_json::to_vec(message)?;
        if body.len() > MESSAGE_BYTES_MAX {
            return Err(io::Error::new(ErrorKind::InvalidData, "the message is too long"));
        }
        let length = (body.len() as u32).to_be_bytes();
        let signed = self.outgoing.next(&body);
        let tag = sign(&self.outgoing.key, &signed);
        write(&mut self.socket, &[&length[..], tag.as_ref(), &body].concat(), deadline)
    }

    /// Waits for the next message. [`ErrorKind::PermissionDenied`]: its sender does not know the
    /// secret.
    pub(super) fn receive<T: DeserializeOwned>(
        &mut self,
        bytes_max: usize,
        deadline: Instant,
    ) -> io::Result<T> {
        let (mut length, mut tag) = ([0; LENGTH_BYTES], [0; TAG_BYTES]);
        read(&mut self.socket, &mut length, deadline)?;
        read(&mut self.socket, &mut tag, deadline)?;
        let length = u32::from_be_bytes(length) as usize;
        if length > bytes_max {
            return Err(io::Error::new(ErrorKind::InvalidData, "its message is too long"));
        }
        let mut body = vec![0; length];
        read(&mut self.socket, &mut body, deadline)?;
        let signed = self.incoming.next(&body);
        verify(&self.incoming.key, &signed, &tag)
            .map_err(|_| io::Error::new(ErrorKind::PermissionDenied, "it has another secret"))?;
        Ok(serde_json::from_slice(&body)?)
    }

    /// A handle to the socket, to close it from another thread.
    pub(super) fn handle(&self) -> io::Result<TcpStream> {
        self.socket.try_clone()
    }

    pub(super) fn close(&self) {
        // An error means that it is closed already.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

fn read(socket: &mut TcpStream, mut bytes: &mut [u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        socket.set_read_timeout(Some(remaining(deadline)?))?;
        match socket.read(bytes) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => bytes = &mut bytes[count..],
            Err(error) => retry(error)?,
        }
    }
    Ok(())
}

fn write(socket: &mut TcpStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        socket.set_write_timeout(Some(remaining(deadline)?))?;
        match socket.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) => retry(error)?,
        }
    }
    Ok(())
}

fn remaining(deadline: Instant) -> io::Result<Duration> {
    let remaining = deadline.saturating_duration_since(Instant::now());
    if remaining.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(remaining) }
}

/// Passes on the errors after which nothing more can be done.
fn retry(error: io::Error) -> io::Result<()> {
    match error.kind() {
        // The deadline decides.
        ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut => Ok(()),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    const LONG: &[u8] = b"a secret of enough bytes";

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    /// Both ends of a TCP connection over loopback.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let one =
            TcpStream::connect(listener.local_addr().expect("an address")).expect("it listens");
        (one, listener.accept().expect("a connection").0)
    }

    fn connections(theirs: &Secret, ours: &Secret, roles: [Role; 2]) -> (Connection, Connection) {
        let (one, other) = pair();
        thread::scope(|scope| {
            let one = scope.spawn(|| Connection::open(one, theirs, roles[0], soon()));
            let other = Connection::open(other, ours, roles[1], soon()).expect("a nonce");
            (one.join().expect("no panic").expect("a nonce"), other)
        })
    }

    fn secret() -> Secret {
        Secret::new(LONG).expect("long enough")
    }

    fn refused<T: std::fmt::Debug>(outcome: io::Result<T>) -> ErrorKind {
        outcome.expect_err("it is refused").kind()
    }

    #[test]
    fn messages_travel_in_both_directions() {
        let roles = [Role::Coordinator, Role::Agent];
        let (mut one, mut other) = connections(&secret(), &secret(), roles);
        for text in ["one", "two", ""] {
            one.send(&text, soon()).expect("sent");
            assert_eq!(other.receive::<String>(99, soon()).expect("a message"), text);
            other.send(&text.len(), soon()).expect("sent");
            assert_eq!(one.receive::<usize>(99, soon()).expect("a message"), text.len());
        }
    }

    #[test]
    fn another_secret_or_role_is_refused() {
        let other_secret = Secret::new(b"another secret of enough bytes").expect("long enough");
        let usual = [Role::Coordinator, Role::Agent];
        let both = [(other_secret, usual), (Secret::none(), usual), (secret(), [Role::Agent; 2])];
        for (theirs, roles) in both {
            let (mut one, mut other) = connections(&theirs, &secret(), roles);
            one.send(&"hello", soon()).expect("sent");
            let outcome = other.receive::<String>(99, soon());
            assert_eq!(refused(outcome), ErrorKind::PermissionDenied);
        }
    }

    /// The body of a frame, and the bytes that are sent for it.
    fn frame(connection: &mut Connection, peer: &mut TcpStream, text: &str) -> Vec<u8> {
        connection.send(&text, soon()).expect("sent");
        let mut bytes = vec![0; LENGTH_BYTES + TAG_BYTES + text.len() + 2];
        peer.read_exact(&mut bytes).expect("a frame");
        bytes
    }

    #[test]
    fn replayed_reflected_and_altered_frames_are_refused() {
        for attack in 0..4 {
            // The attacker passes the nonces on, and then sends frames of its own choice.
            let ((one, mut near), (mut far, other)) = (pair(), pair());
            let (mut one, mut other) = thread::scope(|scope| {
                let one = scope.spawn(|| {
                    Connection::open(one, &secret(), Role::Coordinator, soon()).expect("a nonce")
                });
                let other = scope.spawn(|| {
                    Connection::open(other, &secret(), Role::Agent, soon()).expect("a nonce")
                });
                let mut nonce = [0; NONCE_BYTES];
                near.read_exact(&mut nonce).expect("a nonce");
                far.write_all(&nonce).expect("sent");
                far.read_exact(&mut nonce).expect("a nonce");
                near.write_all(&nonce).expect("sent");
                (one.join().expect("no panic"), other.join().expect("no panic"))
            });
            let first = frame(&mut one, &mut near, "ramp");
            let second = frame(&mut one, &mut near, "stop");
            let mut altered = first.clone();
            *altered.last_mut().expect("a body") ^= 1;
            match attack {
                // Reflected: the sender gets its own frame back.
                0 => near.write_all(&first).expect("sent"),
                1 => far.write_all(&altered).expect("sent"),
                // Without the first.
                2 => far.write_all(&second).expect("sent"),
                _ => {
                    far.write_all(&first).expect("sent");
                    assert_eq!(other.receive::<String>(99, soon()).expect("whole"), "ramp");
                    far.write_all(&first).expect("sent");
                }
            }
            let victim = if attack == 0 { &mut one } else { &mut other };
            let outcome = victim.receive::<String>(99, soon());
            assert_eq!(refused(outcome), ErrorKind::PermissionDenied, "{attack}");
        }
    }

    #[test]
    fn a_long_frame_is_refused_before_it_is_read() {
        let roles = [Role::Coordinator, Role::Agent];
        let (mut one, mut other) = connections(&secret(), &secret(), roles);
        one.send(&"x".repeat(GREETING_BYTES_MAX), soon()).expect("sent");
        let outcome = other.receive::<String>(GREETING_BYTES_MAX, soon());
        assert_eq!(refused(outcome), ErrorKind::InvalidData);
        let (mut one, mut other) = connections(&secret(), &secret(), roles);
        one.socket.write_all(&[0xff; LENGTH_BYTES + TAG_BYTES]).expect("sent");
        let outcome = other.receive::<String>(MESSAGE_BYTES_MAX, soon());
        assert_eq!(refused(outcome), ErrorKind::InvalidData);
    }

    #[test]
    fn a_byte_now_and_then_does_not_extend_the_deadline() {
        let (mut slow, socket) = pair();
        thread::spawn(move || {
            while slow.write_all(b"x").is_ok() {
                thread::sleep(Duration::from_millis(30));
            }
        });
        let deadline = Instant::now() + Duration::from_millis(200);
        let outcome = Connection::open(socket, &secret(), Role::Agent, deadline);
        assert_eq!(outcome.err().expect("too slow").kind(), ErrorKind::TimedOut);
        assert!(Instant::now() >= deadline);
    }

    #[test]
    fn short_secrets_are_refused() {
        assert!(Secret::new(b"  fifteen bytes..\n").is_err());
        assert!(Secret::new(b"").is_err() && Secret::new(LONG).is_ok());
    }
}
