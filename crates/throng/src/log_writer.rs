//! Writes the server's own log to standard error, from a thread of its own.
//!
//! A pipe or terminal that nobody reads blocks whoever writes to it. So no thread that serves
//! clients does: lines wait in a queue, and what does not fit is dropped, counted, and told about
//! once the reader goes on.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use throng_control::{MetricSource, OtherMetric, OtherValue};

/// The bytes of lines that wait, and as many that are being written: enough for the ends of some
/// 25,000 connections at once, and little beside the memory of the smallest container.
const WAITING_BYTES_MAX: usize = 4 << 20;

/// The memory that the queue keeps once it is empty.
const KEPT_BYTES: usize = 16 << 10;

/// How long [`LogWriter::flush`] waits for a reader.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The thread only writes.
const STACK_BYTES: usize = 128 << 10;

/// The lines that wait to be written, and the thread that writes them.
#[derive(Debug, Clone)]
pub(crate) struct LogWriter(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Signals that lines wait.
    filled: Condvar,
    /// Signals that everything has been written.
    emptied: Condvar,
    /// Lines that did not fit into the queue.
    dropped: AtomicU64,
    /// Lines that could not be written, because the disk is full, for example.
    failed: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    /// Whole lines, one after another.
    waiting: Vec<u8>,
    /// Lines that were dropped and not told about.
    dropped: u64,
    is_writing: bool,
}

impl LogWriter {
    /// Starts the thread, which runs until the process ends.
    pub(crate) fn start() -> io::Result<LogWriter> {
        let writer = LogWriter(Arc::default());
        let shared = Arc::clone(&writer.0);
        let builder = thread::Builder::new().name("log".into()).stack_size(STACK_BYTES);
        builder.spawn(move || {
            let mut batch = Vec::new();
            loop {
                shared.write_next(&mut batch, &mut io::stderr());
            }
        })?;
        Ok(writer)
    }

    /// A writer for one event, as `tracing` wants it.
    pub(crate) fn line(&self) -> Line {
        Line(Arc::clone(&self.0))
    }

    /// Waits until all lines are written, a second at most.
    pub(crate) fn flush(&self) {
        self.flush_within(FLUSH_TIMEOUT);
    }

    fn flush_within(&self, time: Duration) {
        let is_busy = |queue: &mut Queue| queue.is_writing || !queue.waiting.is_empty();
        let queue = self.0.lock();
        drop(self.0.emptied.wait_timeout_while(queue, time, is_busy));
    }
}

/// Lines that this drops and loses.
impl MetricSource for LogWriter {
    fn metrics(&self) -> Vec<OtherMetric> {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts =
            vec![("unread", count(&self.0.dropped)), ("write_failed", count(&self.0.failed))];
        vec![OtherMetric {
            name: "stderr_lines_dropped_total",
            help: "Lines missing from the server's own log, by reason.",
            value: OtherValue::CountersBy("reason", counts),
        }]
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, line: &[u8]) {
        let mut queue = self.lock();
        if queue.waiting.len() + line.len() > WAITING_BYTES_MAX {
            queue.dropped += 1;
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        queue.waiting.extend_from_slice(line);
        drop(queue);
        self.filled.notify_one();
    }

    /// Waits for lines and writes them. `batch` is reused.
    fn write_next(&self, batch: &mut Vec<u8>, out: &mut impl Write) {
        let dropped = {
            let mut queue = self.lock();
            queue.is_writing = false;
            if queue.waiting.is_empty() {
                self.emptied.notify_all();
                let is_empty = |queue: &mut Queue| queue.waiting.is_empty();
                let waited = self.filled.wait_while(queue, is_empty);
                queue = waited.unwrap_or_else(PoisonError::into_inner);
            }
            queue.is_writing = true;
            std::mem::swap(&mut queue.waiting, batch);
            std::mem::take(&mut queue.dropped)
        };
        if dropped > 0 {
            // Behind the lines of the batch, which are older.
            tracing::warn!(
                "{dropped} lines of this log were dropped, because its reader did not keep up"
            );
        }
        let failed = write_lines(batch, out);
        self.failed.fetch_add(failed, Ordering::Relaxed);
        batch.clear();
        batch.shrink_to(KEPT_BYTES);
    }
}

/// Writes all lines that can be written. Returns the number of the others.
fn write_lines(mut lines: &[u8], out: &mut impl Write) -> u64 {
    let mut failed = 0;
    while !lines.is_empty() {
        match out.write(lines) {
            Ok(written) if written > 0 => lines = &lines[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(_) | Err(_) => {
                let end = lines.iter().position(|&byte| byte == b'\n');
                lines = end.map_or(&[], |end| &lines[end + 1..]);
                failed += 1;
            }
        }
    }
    failed
}

/// Takes one line, in one write.
#[derive(Debug)]
pub(crate) struct Line(Arc<Shared>);

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a few bytes at a time, and fails for the writes whose numbers are given.
    struct Disk {
        written: Vec<u8>,
        writes: usize,
        full: &'static [usize],
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.writes += 1;
            if self.full.contains(&self.writes) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let taken = bytes.len().min(4);
            self.written.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn disk(full: &'static [usize]) -> Disk {
        Disk { written: Vec::new(), writes: 0, full }
    }

    #[test]
    fn a_line_that_cannot_be_written_takes_no_other_with_it() {
        let mut full = disk(&[2, 5]);
        assert_eq!(write_lines(b"aaa\nbbb\nccc\nddd\neee\n", &mut full), 2);
        assert_eq!(full.written, b"aaa\nccc\nddd\n");
        assert_eq!(write_lines(b"fff\nno end", &mut disk(&[2])), 1);
    }

    #[test]
    fn what_does_not_fit_is_dropped_as_whole_lines_and_counted() {
        let writer = LogWriter(Arc::default());
        let line = [b'x'; 1 << 20];
        for _ in 0..6 {
            writer.line().write_all(&line).unwrap();
        }
        assert_eq!(writer.0.lock().waiting.len(), 4 << 20);
        let mut batch = Vec::new();
        writer.0.write_next(&mut batch, &mut io::sink());
        assert!(batch.is_empty() && batch.capacity() <= KEPT_BYTES);
        let metrics = writer.metrics();
        let OtherValue::CountersBy("reason", counts) = &metrics[0].value else { panic!() };
        assert_eq!(counts[..], [("unread", 2), ("write_failed", 0)]);
        writer.line().write_all(b"fits again\n").unwrap();
        let mut out = Vec::new();
        writer.0.write_next(&mut batch, &mut out);
        assert_eq!(out, b"fits again\n");
    }

    #[test]
    fn a_flush_waits_for_the_writer() {
        let writer = LogWriter(Arc::default());
        writer.line().write_all(b"a line\n").unwrap();
        let shared = Arc::clone(&writer.0);
        let (written, lines) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let (mut batch, mut out) = (Vec::new(), Vec::new());
            shared.write_next(&mut batch, &mut out);
            written.send(out).unwrap();
            // Reports that it is done, and waits for more.
            shared.write_next(&mut batch, &mut Vec::new());
        });
        writer.flush_within(Duration::from_secs(600));
        assert_eq!(lines.try_recv().unwrap(), b"a line\n");
    }
}
