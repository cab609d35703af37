//! The erasures of users that wait or are under way, and the reports of those that are done.
//!
//! They are made one after another, since each may read all logs. With a store, one that is not
//! done survives the process, and the next one makes it.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use throng_core::Ticket;
use throng_core::records::{Change, Records, StoreError, Table};
use throng_wire::{ErrorCode, ErrorResponse};
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

/// Erasures that wait or are under way.
const OPEN_MAX: usize = 1_000;

/// Reports of erasures that are done. The oldest is forgotten first.
const DONE_MAX: usize = 1_000;

/// Remains that a report names, at most. Of further ones it gives only the number.
const LEFT_MAX: usize = 100;

/// How long a request waits until its erasure is stored.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);

/// Something of a user that is not erased, or not yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Left {
    /// What it is.
    pub(crate) what: String,
    /// Why, in a sentence.
    pub(crate) why: String,
}

/// The result of an erasure, so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) user: Box<str>,
    /// When it was asked for, in milliseconds since 1970.
    pub(crate) asked_ms: u64,
    /// When it was done.
    pub(crate) done_ms: Option<u64>,
    /// Connections that were closed.
    pub(crate) connections: u64,
    /// Kept subscriptions that were ended.
    pub(crate) subscriptions: u64,
    /// Messages of the inbox, if its journal has counted them.
    pub(crate) inbox: Option<u64>,
    /// Messages that the user has published.
    pub(crate) published: u64,
    /// Channels and inboxes that were searched for these.
    pub(crate) searched: u64,
    pub(crate) left: Vec<Left>,
    /// How many more are left than are named.
    pub(crate) more_left: u64,
    /// What it waits for.
    pub(crate) waits_for: Option<Left>,
}

impl Report {
    pub(crate) fn leave(&mut self, what: impl Into<String>, why: impl Into<String>) {
        if self.left.len() < LEFT_MAX {
            self.left.push(Left { what: what.into(), why: why.into() });
        } else {
            self.more_left += 1;
        }
    }

    /// The report as JSON.
    pub(crate) fn json(&self) -> Value {
        let shown = |it: &Left| json!({ "what": it.what, "why": it.why });
        let mut json = json!({
            "user": self.user,
            "state": if self.done_ms.is_some() { "done" } else { "running" },
            "asked": self.asked_ms,
            "erased": {
                "connections": self.connections,
                "subscriptions": self.subscriptions,
                "inbox": self.inbox,
                "published": self.published,
            },
            "searched": self.searched,
            "left": self.left.iter().map(shown).collect::<Vec<_>>(),
        });
        if let Some(done_ms) = self.done_ms {
            json["done"] = done_ms.into();
        }
        if self.more_left > 0 {
            json["more_left"] = self.more_left.into();
        }
        if let Some(waits_for) = &self.waits_for {
            json["waits_for"] = shown(waits_for);
        }
        json
    }
}

#[derive(Debug, Default)]
struct Jobs {
    /// The first one is under way.
    open: VecDeque<Report>,
    done: VecDeque<Report>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct UserErasures {
    jobs: Mutex<Jobs>,
    has_open: Notify,
    /// Told when a job is done.
    is_done: Notify,
    records: Option<Arc<dyn Records>>,
    /// What is stored changes in the order of the jobs: held until both have changed.
    storing: tokio::sync::Mutex<()>,
}

fn change(user: &str, asked_ms: Option<u64>) -> Change {
    let value = asked_ms.map(|asked_ms| asked_ms.to_be_bytes().to_vec().into());
    Change { table: Table::UserErasures, key: user.as_bytes().into(), value }
}

impl UserErasures {
    /// Stores erasures until they are done.
    pub(crate) fn store_in(&mut self, records: Arc<dyn Records>) {
        self.records = Some(records);
    }

    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an erasure. One of the same user that is not done is begun anew.
    ///
    /// # Errors
    ///
    /// Too many wait, or it cannot be stored.
    pub(crate) async fn begin(&self, user: &str, asked_ms: u64) -> Result<(), ErrorResponse> {
        if self.lock().open.len() >= OPEN_MAX {
            let message = "too many erasures of users wait; try again later";
            return Err(ErrorResponse::new(ErrorCode::Busy, message));
        }
        let _storing = self.storing.lock().await;
        self.store(change(user, Some(asked_ms))).await?;
        self.queue(user, asked_ms);
        Ok(())
    }

    fn queue(&self, user: &str, asked_ms: u64) {
        let mut jobs = self.lock();
        // One that has begun may have passed what is there only now.
        let waits = jobs.open.iter().skip(1).any(|job| *job.user == *user);
        if !waits {
            let user = user.into();
            jobs.open.push_back(Report { user, asked_ms, ..Report::default() });
        }
        jobs.done.retain(|job| *job.user != *user);
        drop(jobs);
        self.has_open.notify_one();
    }

    /// Takes the erasures that an earlier process has not done.
    pub(crate) fn read_stored(&self) -> Result<(), String> {
        let Some(records) = &self.records else { return Ok(()) };
        let mut stored = Vec::new();
        records.read_from(Table::UserErasures, b"", &mut |key, value| {
            if let (Ok(user), Ok(asked_ms)) = (str::from_utf8(key), value.try_into()) {
                stored.push((user.to_owned(), u64::from_be_bytes(asked_ms)));
            }
            if stored.len() < OPEN_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        stored.iter().for_each(|(user, asked_ms)| self.queue(user, *asked_ms));
        Ok(())
    }

    async fn store(&self, change: Change) -> Result<(), ErrorResponse> {
        let Some(records) = &self.records else { return Ok(()) };
        records.state()?;
        let (sender, receiver) = oneshot::channel();
        let done = Ticket::new(move |outcome: Option<Result<(), StoreError>>| {
            // The request may have ended.
            let _ = outcome.map(|outcome| sender.send(outcome));
        });
        records.change(vec![change], done);
        match timeout(STORE_TIMEOUT, receiver).await {
            Ok(Ok(outcome)) => Ok(outcome?),
            _ => Err(ErrorCode::OutcomeUnknown.into()),
        }
    }

    /// Waits for an erasure. It stays the first one until it [is done](UserErasures::finish).
    pub(crate) async fn next(&self) -> Report {
        loop {
            let first = self.lock().open.front().cloned();
            if let Some(job) = first {
                return job;
            }
            self.has_open.notified().await;
        }
    }

    /// Notes how far the first erasure has come.
    pub(crate) fn note(&self, report: &Report) {
        if let Some(first) = self.lock().open.front_mut() {
            first.clone_from(report);
        }
    }

    /// The first erasure is done.
    pub(crate) async fn finish(&self, report: Report) {
        let _storing = self.storing.lock().await;
        // Another one of this user stays stored until it is done.
        let later = self.lock().open.iter().skip(1).find(|job| job.user == report.user).cloned();
        let asked_ms = later.map(|job| job.asked_ms);
        // If it is not removed, the next process makes it once more.
        if let Err(error) = self.store(change(&report.user, asked_ms)).await {
            let message = error.message;
            tracing::warn!(user = %report.user, "the erasure is done, and stays noted: {message}");
        }
        let mut jobs = self.lock();
        jobs.open.pop_front();
        if jobs.done.len() >= DONE_MAX {
            jobs.done.pop_front();
        }
        jobs.done.push_back(report);
        drop(jobs);
        self.is_done.notify_waiters();
    }

    /// The newest report about a user.
    pub(crate) fn report(&self, user: &str) -> Option<Report> {
        let jobs = self.lock();
        let mut all = jobs.done.iter().chain(&jobs.open);
        all.rfind(|job| *job.user == *user).cloned()
    }

    /// Waits until the newest erasure of a user is done, for `max_wait` at most. Returns its
    /// report.
    pub(crate) async fn wait(&self, user: &str, max_wait: Duration) -> Option<Report> {
        let done = async {
            loop {
                let told = self.is_done.notified();
                tokio::pin!(told);
                // From now on it is told, also before it is waited for.
                told.as_mut().enable();
                if self.report(user).is_none_or(|report| report.done_ms.is_some()) {
                    return;
                }
                told.await;
            }
        };
        // Late or not, the report says how far it is.
        let _ = timeout(max_wait, done).await;
        self.report(user)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use throng_core::records::Each;

    use super::*;

    #[tokio::test]
    async fn the_newest_erasure_of_a_user_counts() {
        let erasures = UserErasures::default();
        assert_eq!(erasures.report("ann"), None);
        for (user, asked_ms) in [("ann", 1), ("bob", 2), ("bob", 3), ("ann", 4)] {
            erasures.begin(user, asked_ms).await.expect("few wait");
        }
        let order = |erasures: &UserErasures| -> Vec<_> {
            erasures.lock().open.iter().map(|job| (job.user.to_string(), job.asked_ms)).collect()
        };
        let of = |user: &str, asked_ms| (user.to_owned(), asked_ms);
        // The first one has begun, so that another one of the same user comes behind it.
        assert_eq!(order(&erasures), [of("ann", 1), of("bob", 2), of("ann", 4)]);
        for _ in 0..3 {
            let job = erasures.next().await;
            erasures.finish(Report { done_ms: Some(9), ..job }).await;
        }
        let report = erasures.wait("ann", Duration::from_secs(9)).await.expect("it is done");
        assert_eq!((report.asked_ms, report.done_ms), (4, Some(9)));
        assert_eq!(report.json()["state"], "done");
    }

    type Bytes = Box<[u8]>;

    /// What is stored, by user.
    #[derive(Default)]
    struct Stored(Mutex<BTreeMap<Bytes, Bytes>>);

    impl Records for Stored {
        fn change(&self, changes: Vec<Change>, done: Ticket<Result<(), StoreError>>) {
            let mut stored = self.0.lock().expect("no test panics here");
            for Change { key, value, .. } in changes {
                match value {
                    Some(value) => stored.insert(key, value),
                    None => stored.remove(&key),
                };
            }
            done.answer(Ok(()));
        }

        fn state(&self) -> Result<(), StoreError> {
            Ok(())
        }

        fn read_from(&self, _: Table, _: &[u8], each: Each<'_>) -> Result<(), String> {
            let stored = self.0.lock().expect("no test panics here");
            let mut all = stored.iter();
            let _ = all.try_for_each(|(key, value)| each(key, value));
            Ok(())
        }
    }

    #[tokio::test]
    async fn what_waits_behind_another_one_of_its_user_is_stored() {
        let records = Arc::new(Stored::default());
        let mut erasures = UserErasures::default();
        erasures.store_in(Arc::clone(&records) as Arc<dyn Records>);
        for (user, asked_ms) in [("ann", 1), ("bob", 2), ("ann", 3)] {
            erasures.begin(user, asked_ms).await.expect("few wait");
        }
        for left in [vec![("ann", 3), ("bob", 2)], vec![("ann", 3)], vec![]] {
            let job = erasures.next().await;
            erasures.finish(job).await;
            let next =
                UserErasures { records: erasures.records.clone(), ..UserErasures::default() };
            next.read_stored().expect("it can be read");
            let open = next
                .lock()
                .open
                .iter()
                .map(|job| (job.user.to_string(), job.asked_ms))
                .collect::<Vec<_>>();
            let left: Vec<_> =
                left.into_iter().map(|(user, asked_ms)| (user.to_owned(), asked_ms)).collect();
            assert_eq!(open, left);
        }
    }

    #[test]
    fn a_report_names_a_part_of_what_is_left() {
        let mut report = Report::default();
        for n in 0..150 {
            report.leave(n.to_string(), "it cannot be read");
        }
        assert_eq!((report.left.len(), report.more_left), (100, 50));
        assert_eq!(report.json()["more_left"], 50);
    }
}
