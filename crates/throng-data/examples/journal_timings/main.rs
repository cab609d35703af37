//! What a disk lets the journal do, beside what it does for others: rates of durable messages, and
//! how long a start takes.
//!
//! ```sh
//! cargo run --release -p throng-data --example journal_timings [DIRECTORY [MESSAGES [INBOXES]]]
//! ```
//!
//! With `SERVERS="durable=127.0.0.1:8080 plain=127.0.0.1:8081"`, names and addresses of servers,
//! the same messages are published to each of them over HTTP, in the same rounds, and starts are
//! left out. `bench/durable` starts a server whose inboxes are durable, and one without a data
//! directory.
//!
//! The directory is made anew on the disk in question, and removed at the end; by default it is
//! in the directory of temporary files. Rates of a shared machine move from second to second, so
//! each is measured in rounds that take turns, every other one in the opposite order, and the
//! median is shown.

#![allow(clippy::print_stdout)]

mod http;
mod shared_sync;

use std::error::Error;
use std::fs::{self, File};
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use throng_core::{Body, ChannelName, Content, Publication, Receipt, Retention, Stamp, clock};
use throng_data::journal::{DiskJournal, JournalServer, JournalSetup};
use throng_data::logs::Logs;
use throng_data::storage::disk::DiskStorage;
use throng_data::storage::{Space, Storage as _, Write};
use throng_data::sync_policy::SyncPolicy;

use shared_sync::SharedSync;

type Failure = Box<dyn Error>;

/// An even number, so that each order comes as often as the other.
const ROUNDS: usize = 6;
const _: () = assert!(ROUNDS.is_multiple_of(2));
const ROUND_TIME: Duration = Duration::from_secs(2);
const CACHE_BYTES: u64 = 64 << 20;

/// Publishers that each wait for their last message.
const PUBLISHERS: usize = 64;
/// Messages of a batch.
const BATCH: usize = 100;
/// Batches that are under way at a time.
const BATCHES: usize = 8;

const BODY: &str = "a message of one hundred bytes, as an application may send it to one of its \
                    users: {\"n\":12345678901}";

const _: () = assert!(BODY.len() == 100);

const KEPT: Retention =
    Retention { max_messages: 100_000, max_bytes: usize::MAX, max_age_ms: 1 << 40 };

/// A server without subscribers.
#[derive(Default)]
struct Alone(AtomicU64);

impl JournalServer for Alone {
    fn now_ms(&self) -> u64 {
        clock::now_ms()
    }

    fn retention_of(&self, _: &ChannelName) -> Option<Retention> {
        Some(KEPT)
    }

    fn retention(&self) -> String {
        "all".into()
    }

    fn begin_group(&self) {}

    fn next_stamp(&self) -> Stamp {
        Stamp(self.0.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn deliver(&self, _: &Arc<Content>, _: Option<&Arc<Receipt>>) -> u64 {
        0
    }

    fn end_group(&self) {}

    fn newest_stamp(&self) -> Stamp {
        Stamp(self.0.load(Ordering::Relaxed))
    }
}

fn publication(channel: usize) -> Publication {
    Publication::new(ChannelName::user(&format!("user-{channel}")), Body::Text(BODY.into()))
}

/// Messages a second of a round, and how long each call took.
struct Round {
    per_s: f64,
    waits: Vec<Duration>,
}

/// Calls `commit`, which makes `messages` durable, for a round.
fn round(
    messages: usize,
    mut commit: impl FnMut() -> Result<(), Failure>,
) -> Result<Round, Failure> {
    let (begin, mut waits) = (Instant::now(), Vec::new());
    while begin.elapsed() < ROUND_TIME {
        let begin = Instant::now();
        commit()?;
        waits.push(begin.elapsed());
    }
    let per_s = (waits.len() * messages) as f64 / begin.elapsed().as_secs_f64();
    Ok(Round { per_s, waits })
}

/// A plain file, with `fdatasync` after each group of messages.
fn plain(folder: &Path, group: usize) -> Result<Round, Failure> {
    let mut file = File::options().append(true).create(true).open(folder.join("plain"))?;
    let bytes = BODY.repeat(group);
    round(group, || {
        file.write_all(bytes.as_bytes())?;
        Ok(file.sync_data()?)
    })
}

/// The library alone, called by one thread, with a sync after each group of messages.
fn library(storage: &DiskStorage, group: usize, next: &AtomicU64) -> Result<Round, Failure> {
    round(group, || {
        let writes = (0..group).map(|_| {
            let at = next.fetch_add(1, Ordering::Relaxed).to_be_bytes();
            Write::put(Space::Messages, at, BODY)
        });
        storage.commit(&writes.collect::<Vec<_>>())?;
        Ok(storage.sync()?)
    })
}

/// The library, for publishers that each hand over `batch` messages and wait until they are synced,
/// with those of others.
fn library_shared(
    storage: &DiskStorage,
    (publishers, batch): (usize, usize),
    next: &AtomicU64,
) -> Result<Round, Failure> {
    let shared = SharedSync::new(storage);
    together(publishers, batch, |_| {
        let at = || next.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        shared.commit((0..batch).map(|_| Write::put(Space::Messages, at(), BODY)).collect())
    })
}

/// Calls `commit` with the number of a publisher, on a thread for each, over and over for a round:
/// it makes a batch durable.
fn together(
    publishers: usize,
    batch: usize,
    commit: impl Fn(usize) -> Result<(), Failure> + Sync,
) -> Result<Round, Failure> {
    let begin = Instant::now();
    let one = |publisher| round(batch, || commit(publisher)).map_err(|error| error.to_string());
    let rounds: Vec<_> = std::thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> =
            (0..publishers).map(|publisher| scope.spawn(move || one(publisher))).collect();
        let panicked = |_| Err("a publisher panicked".to_owned());
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    });
    let mut waits = Vec::new();
    for round in rounds {
        waits.append(&mut round?.waits);
    }
    let per_s = (waits.len() * batch) as f64 / begin.elapsed().as_secs_f64();
    Ok(Round { per_s, waits })
}

/// The journal, for publishers that each hand over `batch` messages and wait for all of them.
fn journal(journal: &DiskJournal, publishers: usize, batch: usize) -> Result<Round, Failure> {
    together(publishers, batch, |publisher| {
        let (sender, answers) = mpsc::channel();
        for n in 0..batch {
            let done = sender.clone();
            journal.append((publication(publisher * batch + n), KEPT), || {
                // The publisher waits for all.
                Box::new(move |outcome| {
                    let _ = done.send(outcome.is_ok());
                })
            })?;
        }
        let safe = answers.iter().take(batch).filter(|is_safe| *is_safe).count();
        if safe == batch { Ok(()) } else { Err("a message was refused".into()) }
    })
}

/// What is measured in turns with others.
struct Measured<'a> {
    name: String,
    measure: Box<dyn Fn() -> Result<Round, Failure> + 'a>,
    rounds: Vec<Round>,
}

impl<'a> Measured<'a> {
    fn of(name: String, measure: impl Fn() -> Result<Round, Failure> + 'a) -> Measured<'a> {
        Measured { name, measure: Box::new(measure), rounds: Vec::new() }
    }

    fn take_turn(&mut self) -> Result<(), Failure> {
        self.rounds.push((self.measure)()?);
        Ok(())
    }

    /// Prints the median of the rates, which it returns, and quantiles of all waits.
    fn report(&self) -> f64 {
        let mut rates: Vec<_> = self.rounds.iter().map(|round| round.per_s).collect();
        rates.sort_by(f64::total_cmp);
        let mut waits: Vec<_> = self.rounds.iter().flat_map(|round| &round.waits).collect();
        waits.sort_unstable();
        let quantile = |share: f64| {
            let at = ((waits.len() - 1) as f64 * share) as usize;
            waits.get(at).map_or(0.0, |wait| wait.as_secs_f64() * 1e3)
        };
        let median = (rates[(rates.len() - 1) / 2] + rates[rates.len() / 2]) / 2.0;
        println!(
            "  {:<48} {median:>9.0} /s   p50 {:>7.3} ms   p99 {:>7.3} ms",
            self.name,
            quantile(0.5),
            quantile(0.99)
        );
        median
    }
}

fn open(path: &Path, sync: SyncPolicy) -> Result<(Arc<Logs>, DiskJournal), Failure> {
    let storage = DiskStorage::open(path, CACHE_BYTES)?;
    let (logs, opened) = Logs::open(Arc::new(storage), "boot")?;
    let server = Arc::new(Alone(AtomicU64::new(opened.stamps.0)));
    let logs = Arc::new(logs);
    let journal = DiskJournal::start(&logs, JournalSetup { sync, max_bytes: u64::MAX, server })?;
    Ok((logs, journal))
}

/// The servers of the variable `SERVERS`.
fn servers() -> Result<Vec<(String, SocketAddr)>, Failure> {
    let all = std::env::var("SERVERS").unwrap_or_default();
    let server = |text: &str| -> Result<_, Failure> {
        let (name, address) = text.split_once('=').ok_or("`SERVERS` has NAME=ADDRESS")?;
        Ok((name.to_owned(), address.parse()?))
    };
    all.split_whitespace().map(server).collect()
}

fn rates(folder: &Path, all: &[(String, SocketAddr)]) -> Result<(), Failure> {
    let (raw, ours) = (folder.join("library"), folder.join("journal"));
    let storage = DiskStorage::open(&raw, CACHE_BYTES)?;
    let (_logs, writer) = open(&ours, SyncPolicy::Always)?;
    let next = AtomicU64::new(0);
    for (name, group, publishers, batch) in [
        ("64 publishers, one message each", PUBLISHERS, PUBLISHERS, 1),
        ("8 publishers, batches of 100", BATCHES * BATCH, BATCHES, BATCH),
    ] {
        let mut all_measured = vec![
            Measured::of(format!("a file, fdatasync each {group} messages"), || {
                plain(folder, group)
            }),
            Measured::of(format!("the library, one thread, {group} messages a commit"), || {
                library(&storage, group, &next)
            }),
            Measured::of("the library, publishers that share syncs".into(), || {
                library_shared(&storage, (publishers, batch), &next)
            }),
            Measured::of("the journal".into(), || journal(&writer, publishers, batch)),
        ];
        let over_http = |(name, address): &(String, SocketAddr)| {
            let address = *address;
            Measured::of(format!("over HTTP: {name}"), move || {
                http::round(address, publishers, batch)
            })
        };
        all_measured.extend(all.iter().map(over_http));
        for _ in 0..ROUNDS {
            all_measured.iter_mut().try_for_each(Measured::take_turn)?;
            // What one leaves to the background must not always slow down the same other.
            all_measured.reverse();
        }
        println!("{name}");
        let rates: Vec<_> = all_measured.iter().map(Measured::report).collect();
        let (most, each) = (rates[1], rates[2]);
        for (measured, rate) in all_measured.iter().zip(&rates).skip(3) {
            let (of_most, of_each) = (rate / most, rate / each);
            println!("  {} does {of_most:.2} and {of_each:.2} of the library", measured.name);
        }
    }
    Ok(())
}

/// Copies what a process that was killed leaves.
fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to)?
        } else {
            fs::copy(entry.path(), to).map(drop)?
        }
    }
    Ok(())
}

/// Opens a directory as a start does, and reads one channel.
fn start(what: &str, path: &Path, messages: usize) -> Result<(), Failure> {
    let begin = Instant::now();
    let (logs, journal) = open(path, SyncPolicy::Always)?;
    let bounds = logs.bounds(&publication(0).channel)?;
    let took = begin.elapsed();
    assert!(bounds.head.offset > 0, "the channel has messages");
    println!("start with {messages} messages, {what:<24} {:>8.3} s", took.as_secs_f64());
    drop(journal);
    Ok(())
}

fn starts(folder: &Path, messages: usize, channels: usize) -> Result<(), Failure> {
    let (path, killed) = (folder.join("filled"), folder.join("killed"));
    let begin = Instant::now();
    let (logs, writer) = open(&path, SyncPolicy::Never)?;
    for first in (0..messages).step_by(1_000) {
        let (sender, answers) = mpsc::channel();
        let count = 1_000.min(messages - first);
        for n in first..first + count {
            let done = sender.clone();
            writer.append((publication(n % channels), KEPT), || {
                Box::new(move |outcome| {
                    let _ = done.send(outcome.is_ok());
                })
            })?;
        }
        assert_eq!(answers.iter().take(count).filter(|is_safe| *is_safe).count(), count);
    }
    println!("filled {channels} inboxes in {:.1} s", begin.elapsed().as_secs_f64());
    copy(&path, &killed)?;
    let begin = Instant::now();
    drop((writer, logs));
    println!("a clean end took {:.3} s", begin.elapsed().as_secs_f64());
    start("after a clean end", &path, messages)?;
    start("after kill -9", &killed, messages)
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = folder.join(format!("journal-timings-{}", std::process::id()));
    let mut number = |default| arguments.next().map_or(Ok(default), |text| text.parse());
    let (messages, channels) = (number(1_000_000)?, number(100_000)?);
    fs::create_dir(&folder)?;
    let servers = servers()?;
    let mut done = rates(&folder, &servers);
    if servers.is_empty() {
        done = done.and_then(|()| starts(&folder, messages, channels));
    }
    fs::remove_dir_all(&folder)?;
    done
}
