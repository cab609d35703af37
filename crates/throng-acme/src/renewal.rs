//! The task that obtains and renews.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use httpdate::fmt_http_date;
use ring::rand::{SecureRandom as _, SystemRandom};
use throng_outbound::Trust;
use tokio::sync::Notify;

use crate::error::OrderFailure;
use crate::order::Orders;
use crate::progress::{NameState, Progress};
use crate::schedule;
use crate::server::ChallengeResponder;
use crate::settings::AcmeSettings;
use crate::store::{Failures, Store};
use crate::window::{AGAIN_AFTER_FAILURE, Window};

/// The task looks at the clock at least this often, which may be set meanwhile.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);

/// Obtains and renews certificates. [`Renewal::run`] does it.
pub struct Renewal {
    orders: Orders,
    progress: Arc<Progress>,
    again: Arc<Notify>,
    names: Vec<Name>,
}

/// The other side of a running [`Renewal`].
#[derive(Debug, Clone)]
pub struct Renewer {
    /// How each name stands.
    pub progress: Arc<Progress>,
    again: Arc<Notify>,
}

impl Renewer {
    /// Tries now what waits after a failure, and asks now when to renew the rest.
    pub fn try_again(&self) {
        self.again.notify_one();
    }
}

#[derive(Debug)]
struct Name {
    name: String,
    next: SystemTime,
    failures: u32,
    error: Option<String>,
    /// When the authority is asked for the window of the renewal.
    ask: SystemTime,
    window: Option<Window>,
}

impl Renewal {
    /// Begins nothing yet. Reads what is stored, to say how each name stands.
    pub fn new(
        settings: AcmeSettings,
        trust: Trust,
        server: Arc<dyn ChallengeResponder>,
    ) -> Renewal {
        let store = Store::new(&settings);
        let names = Name::read_all(&settings.names, &store);
        let orders = Orders::new(settings, store, trust, server);
        let renewal = Renewal { orders, progress: Arc::default(), again: Arc::default(), names };
        renewal.tell();
        renewal
    }

    /// The other side.
    pub fn renewer(&self) -> Renewer {
        Renewer { progress: Arc::clone(&self.progress), again: Arc::clone(&self.again) }
    }

    /// Obtains and renews, forever. Requires a runtime with timers and I/O.
    ///
    /// Reads the stored certificates again first: during an upgrade, the old process may have
    /// renewed some.
    pub async fn run(mut self) {
        self.names = Name::read_all(&self.orders.settings.names, &self.orders.store);
        self.tell();
        for name in self.names.iter().filter(|name| name.failures > 0) {
            tracing::warn!(
                "attempts to obtain a certificate for {} have failed before the start; the next is \
                 at {}, or at once after SIGHUP",
                name.name,
                fmt_http_date(name.next)
            );
        }
        loop {
            let now = SystemTime::now();
            let next = (0..self.names.len()).min_by_key(|nth| self.names[*nth].next);
            let Some(nth) = next else { return };
            let wait = self.names[nth].next.duration_since(now).unwrap_or_default();
            if !wait.is_zero() {
                let asked =
                    self.names.iter().position(|name| name.failures == 0 && name.ask <= now);
                if let Some(nth) = asked {
                    self.ask(nth).await;
                    self.tell();
                    continue;
                }
                tokio::select! {
                    () = tokio::time::sleep(wait.min(LOOK_INTERVAL)) => {}
                    () = self.again.notified() => self.try_again(),
                }
                continue;
            }
            let is_obtained = self.attempt(nth).await;
            // Last: what is counted has come to its end, and is seen everywhere else.
            self.tell();
            self.progress.count(is_obtained);
        }
    }

    fn try_again(&mut self) {
        let now = SystemTime::now();
        for name in &mut self.names {
            let at = if name.failures > 0 { &mut name.next } else { &mut name.ask };
            *at = now;
        }
    }

    /// Asks the authority when it wants the certificate to be renewed, and plans the renewal so.
    /// Without an answer the plan stays.
    async fn ask(&mut self, nth: usize) {
        let name = self.names[nth].name.clone();
        let window = self.orders.window(&name).await;
        let now = SystemTime::now();
        let entry = &mut self.names[nth];
        entry.ask = now + AGAIN_AFTER_FAILURE;
        match window {
            Ok(Some((window, again))) => {
                entry.ask = now + again;
                // The moment is a random one, and stays as long as the window does.
                if entry.window.as_ref() != Some(&window) {
                    entry.heed(window, &self.orders.store);
                }
            }
            Ok(None) => {}
            Err(error) => {
                tracing::debug!("unknown when a certificate for {name} is to be renewed: {error}");
            }
        }
    }

    /// Obtains a certificate, shows it, and notes what came of it. Returns whether it was obtained.
    async fn attempt(&mut self, nth: usize) -> bool {
        let name = self.names[nth].name.clone();
        tracing::info!("obtaining a certificate for {name}");
        let obtained = self.orders.obtain(&name).await;
        let (now, store) = (SystemTime::now(), &self.orders.store);
        let entry = &mut self.names[nth];
        let is_obtained = obtained.is_ok();
        let failures = match obtained {
            Ok(()) => {
                entry.next = due(store, &name, now);
                (entry.failures, entry.error) = (0, None);
                (entry.ask, entry.window) = (now, None);
                self.orders.server.has_changed();
                let next = fmt_http_date(entry.next);
                tracing::info!("a certificate for {name} was obtained; it is renewed at {next}");
                Failures::default()
            }
            Err(OrderFailure { error, not_before }) => {
                entry.failures = entry.failures.saturating_add(1);
                let wait = schedule::wait(&error, entry.failures, chance());
                entry.next = not_before.unwrap_or(now).max(now + wait);
                let next = fmt_http_date(entry.next);
                tracing::error!(
                    "no certificate for {name}: {error}; the next attempt is at {next}"
                );
                entry.error = Some(error.to_string());
                Failures { count: entry.failures, next: Some(entry.next) }
            }
        };
        if let Err(error) = store.keep_failures(&name, failures) {
            // The attempt itself has told so, if it could not store anything either.
            tracing::debug!("{error}");
        }
        is_obtained
    }

    fn tell(&self) {
        let state = |name: &Name| NameState {
            name: name.name.clone(),
            next: Some(name.next),
            failures: name.failures,
            error: name.error.clone(),
        };
        self.progress.set(self.names.iter().map(state).collect());
    }
}

impl Name {
    /// How each name stands, by what is stored.
    fn read_all(names: &[String], store: &Store) -> Vec<Name> {
        let now = SystemTime::now();
        names.iter().map(|name| Name::read(name, store, now)).collect()
    }

    fn read(name: &str, store: &Store, now: SystemTime) -> Name {
        let Failures { count, next } = store.failures(name);
        // A moment that is further away was named by a clock that was wrong.
        let next = next.filter(|next| *next <= now + schedule::ASKED_MAX);
        let due = due(store, name, now);
        Name {
            name: name.to_owned(),
            next: next.unwrap_or(due).max(due),
            failures: count,
            error: (count > 0).then(|| "an attempt before the start has failed".into()),
            ask: now,
            window: None,
        }
    }

    /// Plans the renewal for the window that the authority has named.
    fn heed(&mut self, window: Window, store: &Store) {
        let Ok(Some(life)) = store.validity(&self.name) else { return };
        let next = schedule::in_window((window.from, window.until), life, chance());
        // A time to come was named by a clock that was wrong.
        let now = SystemTime::now();
        let obtained = store.obtained(&self.name).map_or(now, |obtained| obtained.min(now));
        self.next = schedule::not_before(obtained, life).max(next);
        let page = window.page.as_ref().map_or_else(String::new, |page| format!(" ({page})"));
        tracing::info!(
            "the certificate authority wants the certificate for {} to be renewed between {} and \
             {}{page}; it is at {}",
            self.name,
            fmt_http_date(window.from),
            fmt_http_date(window.until),
            fmt_http_date(self.next)
        );
        self.window = Some(window);
    }
}

impl fmt::Debug for Renewal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renewal").field("names", &self.names).finish_non_exhaustive()
    }
}

/// When the stored certificate has to be renewed: now, if there is none.
fn due(store: &Store, name: &str, now: SystemTime) -> SystemTime {
    match store.validity(name) {
        Ok(Some((from, until))) => schedule::renewal(from, until, chance()),
        Ok(None) | Err(_) => now,
    }
}

/// A random number from 0 to 1.
fn chance() -> f64 {
    let mut bytes = [0; 4];
    // Without random bytes the moment is exact, which does no harm.
    let _ = SystemRandom::new().fill(&mut bytes);
    f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX)
}
