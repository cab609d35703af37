//! Holds the control plane while another process may take over: nothing is begun any more.
//!
//! A connection between two requests goes back to a worker, which freezes it like all others. The
//! control plane keeps connections of the admin listener, and those whose client reads its last
//! response late, because the workers may have been frozen by then. Requests that have begun are
//! finished; [`Hold::is_at_rest`] is true once they all are.
//!
//! # Invariants
//!
//! * Whatever may act on the engine or on a worker is counted, from before it looks whether the
//!   control plane is held until it can act no more. So once nothing is counted, nothing acts.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use throng_core::Listener;
use tokio::sync::{Notify, watch};

use crate::edge::Handoff;

/// The hold of the control plane, and the requests still under way.
#[derive(Debug)]
pub struct Hold {
    is_held: watch::Sender<bool>,
    /// How often it has been held.
    times: AtomicUsize,
    acting: Arc<AtomicUsize>,
    /// Connections between two requests.
    moved: Mutex<Vec<(Listener, Handoff)>>,
    /// Tell who serves the connections of a listener that some have been kept.
    has_moved_public: Notify,
    has_moved_admin: Notify,
}

impl Default for Hold {
    fn default() -> Hold {
        Hold {
            is_held: watch::Sender::new(false),
            times: AtomicUsize::new(0),
            acting: Arc::default(),
            moved: Mutex::default(),
            has_moved_public: Notify::new(),
            has_moved_admin: Notify::new(),
        }
    }
}

impl Hold {
    /// From now on nothing is begun.
    pub fn begin(&self) {
        self.times.fetch_add(1, Ordering::SeqCst);
        self.is_held.send_replace(true);
    }

    /// Everything goes on, also the connections that were kept.
    pub fn end(&self) {
        self.is_held.send_replace(false);
    }

    /// True if nothing acts on the engine and the workers any more. Ask while the control plane is
    /// held.
    pub fn is_at_rest(&self) -> bool {
        self.acting.load(Ordering::SeqCst) == 0
    }

    /// Takes all connections that were kept, for another process.
    pub fn take_moved(&self) -> Vec<(Listener, Handoff)> {
        std::mem::take(&mut self.moved.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Keeps a connection of this listener, which is served unless the control plane is held.
    pub fn put_moved(&self, listener: Listener, handoff: Handoff) {
        self.moved.lock().unwrap_or_else(PoisonError::into_inner).push((listener, handoff));
        self.has_moved(listener).notify_one();
    }

    /// Waits for connections of this listener that were kept, while the control plane is not held.
    /// One task for each listener may wait. Nothing is lost if the future is dropped.
    pub(crate) async fn served(&self, listener: Listener) -> Vec<Handoff> {
        loop {
            self.becomes(false).await;
            let moved = self.take_moved_of(listener);
            if !moved.is_empty() {
                return moved;
            }
            self.has_moved(listener).notified().await;
        }
    }

    fn take_moved_of(&self, listener: Listener) -> Vec<Handoff> {
        let is_its = |moved: &mut (Listener, Handoff)| moved.0 == listener;
        let mut all = self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        all.extract_if(.., is_its).map(|(_, handoff)| handoff).collect()
    }

    fn has_moved(&self, listener: Listener) -> &Notify {
        match listener {
            Listener::Public => &self.has_moved_public,
            Listener::Admin => &self.has_moved_admin,
        }
    }

    /// How often the control plane has been held.
    pub(crate) fn times(&self) -> usize {
        self.times.load(Ordering::SeqCst)
    }

    pub(crate) fn is_held(&self) -> bool {
        *self.is_held.borrow()
    }

    /// Waits until the control plane is held, or is held no more.
    pub(crate) async fn becomes(&self, is_held: bool) {
        // Fails only once `self` is gone.
        let _ = self.is_held.subscribe().wait_for(|now| *now == is_held).await;
    }

    /// Counts something that may act, and that ends soon after the control plane is held.
    pub(crate) fn count(&self) -> Acting {
        self.acting.fetch_add(1, Ordering::SeqCst);
        Acting(Arc::clone(&self.acting))
    }

    /// As [`Hold::act`], once the control plane is not held.
    pub(crate) async fn acting(&self) -> Acting {
        loop {
            if let Some(acting) = self.act() {
                return acting;
            }
            self.becomes(false).await;
        }
    }

    /// As [`Hold::count`], unless the control plane is held.
    pub fn act(&self) -> Option<Acting> {
        // Count first, check second: see the invariant.
        let acting = self.count();
        (!self.is_held()).then_some(acting)
    }
}

/// Something that may act, until this is dropped.
#[derive(Debug)]
pub struct Acting(Arc<AtomicUsize>);

impl Drop for Acting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_hold_waits_for_requests_and_lets_none_begin() {
        let hold = Hold::default();
        let acting = hold.act().expect("it is not held");
        hold.begin();
        hold.becomes(true).await;
        assert!(!hold.is_at_rest() && hold.act().is_none());
        drop(acting);
        assert!(hold.is_at_rest());
        hold.end();
        assert!(hold.act().is_some());
    }

    #[tokio::test]
    async fn kept_connections_are_served_again_unless_the_hold_goes_on() {
        let hold = Hold::default();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let handoff = || {
            let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            Handoff { stream, bytes: Vec::new(), client: None, tls: None }
        };
        hold.begin();
        hold.put_moved(Listener::Admin, handoff());
        hold.put_moved(Listener::Public, handoff());
        hold.put_moved(Listener::Public, handoff());
        let held = tokio::time::timeout(Duration::ZERO, hold.served(Listener::Public)).await;
        assert!(held.is_err());
        hold.end();
        assert_eq!(hold.served(Listener::Public).await.len(), 2);
        assert_eq!(hold.served(Listener::Admin).await.len(), 1);
        let (served, ()) = tokio::join!(hold.served(Listener::Public), async {
            tokio::task::yield_now().await;
            hold.put_moved(Listener::Public, handoff());
        });
        assert_eq!(served.len(), 1, "it comes late");
    }
}
