//! Happy Eyeballs (RFC 8305): some addresses of a name may not answer, such as IPv6 addresses where
//! IPv6 is routed and dropped. They are tried one after the other with a short time in between, and
//! the first that answers wins.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// After this time without an answer the next address is tried as well (RFC 8305, section 5).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Attempts at a time. A name with more addresses has others that answer.
const ATTEMPTS_MAX: usize = 16;

/// How long an address that did not answer while another one did is tried last.
const SLOW_FOR: Duration = Duration::from_secs(600);

/// Addresses of one endpoint that are remembered as slow; the oldest gives way.
const SLOW_MAX: usize = 16;

/// The addresses of one endpoint that did not answer lately, while others did.
#[derive(Debug, Default)]
pub(super) struct SlowAddresses(Mutex<VecDeque<(SocketAddr, Instant)>>);

impl SlowAddresses {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(SocketAddr, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, address: SocketAddr) {
        let mut slow = self.lock();
        slow.retain(|(other, _)| *other != address);
        slow.push_back((address, Instant::now()));
        if slow.len() > SLOW_MAX {
            slow.pop_front();
        }
    }

    fn forget(&self, address: SocketAddr) {
        self.lock().retain(|(other, _)| *other != address);
    }

    /// The addresses in the order in which they are tried: families take turns, beginning with the
    /// one that the resolver prefers, and slow ones come last.
    fn order(&self, addresses: Vec<SocketAddr>) -> VecDeque<SocketAddr> {
        let Some(first) = addresses.first() else { return VecDeque::new() };
        let (preferred, others): (Vec<_>, Vec<_>) =
            addresses.iter().copied().partition(|address| address.is_ipv4() == first.is_ipv4());
        let mut turns = Vec::with_capacity(addresses.len());
        let (mut preferred, mut others) = (preferred.into_iter(), others.into_iter());
        while turns.len() < addresses.len() {
            turns.extend(preferred.next());
            turns.extend(others.next());
        }
        let slow = self.lock();
        let is_slow = |address: &SocketAddr| {
            slow.iter().any(|(other, since)| other == address && since.elapsed() < SLOW_FOR)
        };
        let (slow, fast): (Vec<SocketAddr>, _) = turns.into_iter().partition(is_slow);
        fast.into_iter().chain(slow).collect()
    }
}

/// Connects to the address that answers first.
///
/// # Errors
///
/// That of the last address that failed, if all do.
pub(super) async fn connect(
    addresses: Vec<SocketAddr>,
    slow: &SlowAddresses,
) -> io::Result<TcpStream> {
    let mut left = slow.order(addresses);
    let mut attempts = JoinSet::new();
    // Those that have not answered, with the time of the attempt.
    let mut silent: Vec<(SocketAddr, Instant)> = Vec::new();
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    loop {
        let may_try = attempts.len() < ATTEMPTS_MAX;
        if let Some(address) = left.pop_front_if(|_| may_try) {
            silent.push((address, Instant::now()));
            attempts.spawn(async move { (address, TcpStream::connect(address).await) });
        }
        let has_next = !left.is_empty() && attempts.len() < ATTEMPTS_MAX;
        tokio::select! {
            biased;
            ended = attempts.join_next() => {
                // They do not panic, and are not aborted before this returns.
                let Some(Ok((address, connected))) = ended else { return Err(failure) };
                silent.retain(|(other, _)| *other != address);
                match connected {
                    Ok(stream) => {
                        let is_slow =
                            |(_, since): &&(_, Instant)| since.elapsed() >= ATTEMPT_DELAY;
                        silent.iter().filter(is_slow).for_each(|(other, _)| slow.note(*other));
                        slow.forget(address);
                        return Ok(stream);
                    }
                    Err(error) => failure = error,
                }
            }
            () = sleep(ATTEMPT_DELAY), if has_next => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    /// A listener whose queue is full, so that further connections get no answer, and what fills
    /// the queue.
    async fn silent() -> (TcpListener, Vec<TcpStream>) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        let mut queued = Vec::new();
        let soon = Duration::from_millis(500);
        while let Ok(connected) = tokio::time::timeout(soon, TcpStream::connect(address)).await {
            queued.push(connected.unwrap());
        }
        (listener, queued)
    }

    #[tokio::test]
    async fn an_address_that_does_not_answer_is_tried_last_next_time() {
        let (dead, _queued) = silent().await;
        let alive = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addresses = vec![dead.local_addr().unwrap(), alive.local_addr().unwrap()];
        let slow = SlowAddresses::default();
        assert_eq!(slow.order(addresses.clone()), addresses);
        let stream = connect(addresses.clone(), &slow).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), addresses[1]);
        assert_eq!(slow.order(addresses.clone()), [addresses[1], addresses[0]]);
        slow.forget(addresses[0]);
        assert_eq!(slow.order(addresses.clone()), addresses);
    }

    #[tokio::test]
    async fn an_address_that_refuses_costs_nothing_and_stays_in_its_place() {
        let refuses = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let refusing = refuses.local_addr().unwrap();
        drop(refuses);
        let alive = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addresses = vec![refusing, alive.local_addr().unwrap()];
        let slow = SlowAddresses::default();
        assert!(connect(addresses.clone(), &slow).await.is_ok());
        assert_eq!(slow.order(addresses.clone()), addresses);
        let refused = connect(vec![refusing], &slow).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert!(connect(Vec::new(), &slow).await.is_err());
    }

    #[test]
    fn families_take_turns() {
        let of = |text: &str| text.parse::<SocketAddr>().unwrap();
        let six = ["[::1]:1", "[::2]:1", "[::3]:1"].map(of);
        let four = ["127.0.0.1:1", "127.0.0.2:1"].map(of);
        let addresses = six.into_iter().chain(four).collect();
        let expected = [six[0], four[0], six[1], four[1], six[2]];
        assert_eq!(SlowAddresses::default().order(addresses), expected);
    }
}
