//! The erasures of users that wait or are under way, and the reports of those that are done.
//!
//! They are made one after another, since each may read all logs. Steps that cannot be made now,
//! because a journal is away, are [tried again](UserErasures::defer) later, and alone: they hold up
//! neither the other steps nor other users. With a store, one that is not done survives the
//! process, and the next one makes it. A process that takes over from this one makes it in any
//! case, and goes on with the reports.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use throng_core::records::{Change, Records, StoreError, Table};
use throng_core::{ChannelName, Kind, ListPlace, ListPosition, Ticket};
use throng_wire::{ErrorCode, ErrorResponse};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

/// Erasures that wait or are under way.
const OPEN_MAX: usize = 1_000;

/// Reports of erasures that are done. The oldest is forgotten first.
const DONE_MAX: usize = 1_000;

/// Remains that a report names, at most. Of further ones it gives only the number.
const LEFT_MAX: usize = 100;

/// Where copies may be that no server can reach. Every report names them: the operator has to.
const COPIES: [&str; 4] = [
    "backups, snapshots and exports of a data directory",
    "streams of NATS that mirror or source the stream of the nodes",
    "applications to which callouts, webhooks and logs have passed something",
    "clients, proxies and caches that have received something, by whatever protocol",
];

/// How long steps wait until they are tried again: first, and at most.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// How long a request waits until its erasure is stored.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);

/// Something of a user that is not erased, or not yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Left {
    /// What it is.
    pub(crate) what: String,
    /// Why, in a sentence.
    pub(crate) why: String,
}

/// The result of an erasure, so far. As JSON it goes from process to process, which may be of
/// different versions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
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
    /// Read markers in channels.
    pub(crate) markers: u64,
    /// Events that waited for callouts.
    pub(crate) events: u64,
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

    /// Adds what an earlier erasure of the user has erased.
    fn add(&mut self, earlier: &Report) {
        self.connections += earlier.connections;
        self.subscriptions += earlier.subscriptions;
        self.published += earlier.published;
        self.markers += earlier.markers;
        self.events += earlier.events;
        self.inbox = self.inbox.or(earlier.inbox);
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
                "markers": self.markers,
                "events": self.events,
            },
            "searched": self.searched,
            "left": self.left.iter().map(shown).collect::<Vec<_>>(),
            "copies": COPIES,
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

/// The channels and inboxes that this process can read, some at a time.
#[derive(Debug, Clone)]
pub(crate) enum Names {
    /// Those in this process, after a place.
    Here(Kind, Option<ListPlace>),
    /// Those in the log that several processes share, after a position.
    Shared(Kind, Option<ListPosition>),
}

/// A step of an erasure, which may be repeated.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Tokens,
    Connections,
    /// Kept subscriptions, and how many the user had at the first try.
    Subscriptions(u64),
    Inbox,
    ReadMarker,
    /// The read markers in channels.
    ChannelMarkers,
    /// To search the channels of this part of the list, and of those behind it.
    Names(Names),
    Search(ChannelName),
}

impl Step {
    /// The whole of an erasure.
    fn all() -> Vec<Step> {
        let names = Step::Names(Names::Here(Kind::Channel, None));
        let of_user = [Step::Tokens, Step::Connections, Step::Subscriptions(0)];
        let markers = [Step::ReadMarker, Step::ChannelMarkers];
        of_user.into_iter().chain([Step::Inbox]).chain(markers).chain([names]).collect()
    }

    /// What it erases or reads, as reports name it.
    pub(crate) fn what(&self) -> String {
        match self {
            Step::Tokens => "the tokens of the user".into(),
            Step::Connections => "the user's connections".into(),
            Step::Subscriptions(_) => "the subscriptions that the server keeps for the user".into(),
            Step::Inbox => "the inbox".into(),
            Step::ReadMarker => "the read marker of the inbox".into(),
            Step::ChannelMarkers => "the read markers in channels".into(),
            Step::Names(_) => "the list of all channels".into(),
            Step::Search(channel) => {
                format!("messages in {} {}", channel.kind().noun(), channel.name())
            }
        }
    }
}

/// An erasure that is not done.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) report: Report,
    /// What is left to be made.
    pub(crate) steps: Vec<Step>,
    /// True if a channel was found that this node alone has, as others have theirs.
    pub(crate) has_local: bool,
    is_under_way: bool,
    /// When its steps are tried again; `None` if none was tried yet.
    due: Option<Instant>,
    /// How long they waited last.
    waited: Duration,
}

impl Job {
    fn new(user: &str, asked_ms: u64) -> Job {
        Job {
            report: Report { user: user.into(), asked_ms, ..Report::default() },
            steps: Step::all(),
            has_local: false,
            is_under_way: false,
            due: None,
            waited: Duration::ZERO,
        }
    }

    fn waits_for(&self, user: &str) -> bool {
        !self.is_under_way && *self.report.user == *user
    }
}

#[derive(Debug, Default)]
struct Jobs {
    /// One at most is under way, and one more of each user waits.
    open: VecDeque<Job>,
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
        match jobs.open.iter_mut().find(|job| job.waits_for(user)) {
            // One that has begun may have passed what is there only now.
            Some(job) if job.due.is_some() => {
                let mut anew = Job::new(user, asked_ms);
                anew.report.add(&job.report);
                *job = anew;
            }
            Some(_) => {}
            None => jobs.open.push_back(Job::new(user, asked_ms)),
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

    /// Writes all reports as JSON, for a process that takes over. Those that are not done come in
    /// the order in which they were asked for.
    pub(crate) fn freeze(&self, mut write: impl FnMut(&[u8])) {
        let jobs = self.lock();
        for report in jobs.done.iter().chain(jobs.open.iter().map(|job| &job.report)) {
            serde_json::to_vec(report).iter().for_each(|json| write(json));
        }
    }

    /// Goes on with a report of the process before. If it is not done, all of it is made once more.
    pub(crate) fn resume(&self, json: &[u8]) {
        let Ok(report) = serde_json::from_slice::<Report>(json) else { return };
        let mut jobs = self.lock();
        if report.done_ms.is_some() {
            return jobs.done.push_back(report);
        }
        match jobs.open.iter_mut().find(|job| job.waits_for(&report.user)) {
            // One was under way, and this one waited behind it.
            Some(job) => job.report.asked_ms = report.asked_ms,
            None => {
                let mut job = Job::new(&report.user, report.asked_ms);
                job.report.add(&report);
                jobs.open.push_back(job);
            }
        }
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

    /// Waits for an erasure. It is under way until it [is done](UserErasures::finish), or
    /// [cannot be](UserErasures::defer) for now. Those that nobody has tried yet come first.
    pub(crate) async fn next(&self) -> Job {
        loop {
            let next_due = {
                let (now, mut jobs) = (Instant::now(), self.lock());
                let next = jobs.open.iter_mut().min_by_key(|job| job.due);
                if let Some(job) = next.filter(|job| job.due.is_none_or(|due| due <= now)) {
                    job.is_under_way = true;
                    return job.clone();
                }
                jobs.open.iter().filter_map(|job| job.due).min()
            };
            match next_due {
                None => self.has_open.notified().await,
                // Whatever comes first.
                Some(due) => drop(timeout_at(due, self.has_open.notified()).await),
            }
        }
    }

    /// Notes how far the erasure that is under way has come.
    pub(crate) fn note(&self, report: &Report) {
        if let Some(job) = self.lock().open.iter_mut().find(|job| job.is_under_way) {
            job.report.clone_from(report);
        }
    }

    /// The steps that are left of the erasure that is under way cannot be made now: they are tried
    /// again after a while.
    pub(crate) fn defer(&self, job: Job) {
        let mut jobs = self.lock();
        jobs.open.retain(|open| !open.is_under_way);
        if let Some(later) = jobs.open.iter_mut().find(|it| it.waits_for(&job.report.user)) {
            // It makes all of them.
            later.report.add(&job.report);
            return;
        }
        let (first, longest) = AGAIN;
        let waited = (job.waited * 2).clamp(first, longest);
        let due = Some(Instant::now() + waited);
        jobs.open.push_back(Job { is_under_way: false, due, waited, ..job });
    }

    /// The erasure that is under way is done.
    pub(crate) async fn finish(&self, report: Report) {
        let _storing = self.storing.lock().await;
        // Another one of this user stays stored until it is done.
        let asked_ms = {
            let jobs = self.lock();
            let later = jobs.open.iter().find(|job| job.waits_for(&report.user));
            later.map(|job| job.report.asked_ms)
        };
        // If it is not removed, the next process makes it once more.
        if let Err(error) = self.store(change(&report.user, asked_ms)).await {
            let message = error.message;
            tracing::warn!(user = %report.user, "the erasure is done, and stays noted: {message}");
        }
        let mut jobs = self.lock();
        jobs.open.retain(|open| !open.is_under_way);
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
        let mut all = jobs.done.iter().chain(jobs.open.iter().map(|job| &job.report));
        all.rfind(|report| *report.user == *user).cloned()
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
        let of = |user: &str, asked_ms| (user.to_owned(), asked_ms);
        assert_eq!(order(&erasures), [of("ann", 1), of("bob", 2)]);
        let first = erasures.next().await.report;
        // It has begun, so that another one of the same user comes behind it.
        erasures.begin("ann", 5).await.expect("few wait");
        assert_eq!(order(&erasures), [of("ann", 1), of("bob", 2), of("ann", 5)]);
        erasures.finish(Report { done_ms: Some(9), ..first }).await;
        for _ in 0..2 {
            let job = erasures.next().await.report;
            erasures.finish(Report { done_ms: Some(9), ..job }).await;
        }
        let report = erasures.wait("ann", Duration::from_secs(9)).await.expect("it is done");
        assert_eq!((report.asked_ms, report.done_ms), (5, Some(9)));
        assert_eq!(report.json()["state"], "done");
    }

    fn order(erasures: &UserErasures) -> Vec<(String, u64)> {
        let jobs = erasures.lock();
        let of = |job: &Job| (job.report.user.to_string(), job.report.asked_ms);
        jobs.open.iter().map(of).collect()
    }

    #[tokio::test]
    async fn what_cannot_be_erased_now_holds_up_nobody() {
        let erasures = UserErasures::default();
        for (user, asked_ms) in [("ann", 1), ("bob", 2)] {
            erasures.begin(user, asked_ms).await.expect("few wait");
        }
        let defer = |job: Job, published| {
            let report = Report { published, ..job.report };
            erasures.defer(Job { report, steps: vec![Step::Subscriptions(2)], ..job });
        };
        defer(erasures.next().await, 3);
        assert_eq!(&*erasures.next().await.report.user, "bob");
        erasures.finish(Report { user: "bob".into(), ..Report::default() }).await;
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            // The time is over.
            erasures.lock().open[0].due = Some(Instant::now());
            let again = erasures.next().await;
            assert_eq!((&*again.report.user, again.report.published), ("ann", 3));
            assert!(matches!(again.steps[..], [Step::Subscriptions(2)]), "the rest alone");
            assert_eq!(again.waited.as_secs(), seconds);
            defer(again, 3);
        }
        // A new request makes all of it, at once.
        erasures.begin("ann", 9).await.expect("few wait");
        let anew = erasures.next().await;
        assert_eq!((anew.report.asked_ms, anew.report.published), (9, 3));
        assert_eq!(anew.steps.len(), Step::all().len());
        // One that was asked for meanwhile makes the rest of it.
        erasures.begin("ann", 10).await.expect("few wait");
        defer(anew, 5);
        assert_eq!(order(&erasures), [("ann".to_owned(), 10)]);
        assert_eq!(erasures.next().await.report.published, 5);
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
        erasures.begin("ann", 1).await.expect("none waits");
        let mut job = erasures.next().await;
        for (user, asked_ms) in [("bob", 2), ("ann", 3)] {
            erasures.begin(user, asked_ms).await.expect("few wait");
        }
        for left in [vec![("ann", 3), ("bob", 2)], vec![("ann", 3)], vec![]] {
            erasures.finish(job.report.clone()).await;
            let next =
                UserErasures { records: erasures.records.clone(), ..UserErasures::default() };
            next.read_stored().expect("it can be read");
            let left: Vec<_> =
                left.into_iter().map(|(user, asked_ms)| (user.to_owned(), asked_ms)).collect();
            assert_eq!(order(&next), left);
            if !left.is_empty() {
                job = erasures.next().await;
            }
        }
    }

    #[tokio::test]
    async fn the_next_process_goes_on() {
        let before = UserErasures::default();
        for (user, asked_ms) in [("ann", 1), ("bob", 2), ("cy", 3)] {
            before.begin(user, asked_ms).await.expect("few wait");
        }
        let mut done = before.next().await.report;
        done.leave("the tokens of the user", "none are kept");
        before.finish(Report { done_ms: Some(9), ..done }).await;
        let begun = before.next().await.report;
        before.note(&Report { published: 7, inbox: Some(1), ..begun });
        before.begin("bob", 4).await.expect("few wait");
        let after = UserErasures::default();
        before.freeze(|json| after.resume(json));
        after.resume(b"not a report");
        assert_eq!(after.report("ann"), before.report("ann"));
        assert_eq!(order(&after), [("bob".to_owned(), 4), ("cy".to_owned(), 3)]);
        // The store has it, too.
        after.queue("bob", 4);
        let again = after.next().await;
        assert_eq!((again.report.published, again.report.inbox), (7, Some(1)));
        assert_eq!(again.steps.len(), Step::all().len());
        after.finish(again.report).await;
        assert_eq!(&*after.next().await.report.user, "cy");
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
