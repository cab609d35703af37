//! Takes the socket of a server, and holds conversations.

use std::fs::{self, File, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::place;
use super::protocol::{About, Failure, LINE_BYTES_MAX, Request, SocketAnswer, line};
use crate::settings::{ControlChoice, SettingsError};
use crate::terminal::EXIT_RUNTIME;

/// Conversations at a time. Commands are rare; further ones are told to try again.
const CONVERSATIONS_MAX: usize = 16;

/// The time for the request to arrive. A command sends it at once.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The time for an answer to leave. A command reads at once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a command that waits is looked for: whether it is still there.
const GONE_INTERVAL: Duration = Duration::from_millis(500);

/// The time to wait if the kernel cannot give a connection now.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The socket of this server. Its path is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    listener: StdUnixListener,
    path: PathBuf,
    /// The file of the socket: its device and its number there. Another server may have replaced
    /// it.
    file: (u64, u64),
}

/// Does what commands ask for.
pub(crate) trait Act: Send + Sync + 'static {
    /// Acts upon a request and ends the conversation.
    fn act(&self, request: Request, conversation: Conversation) -> impl Future<Output = ()> + Send;
}

/// A command that has asked for something, and waits.
#[derive(Debug)]
pub(crate) struct Conversation {
    stream: UnixStream,
    /// True if the command has gone, or does not read: nothing more is said.
    is_over: bool,
}

impl ControlSocket {
    /// Takes the socket for a server that listens on `listen`; `None` if the settings want none,
    /// or there is no place for one, which is logged.
    ///
    /// # Errors
    ///
    /// The settings name a path that cannot be used.
    pub(crate) fn take(
        choice: &ControlChoice,
        listen: SocketAddr,
    ) -> Result<Option<ControlSocket>, SettingsError> {
        match choice {
            ControlChoice::None => Ok(None),
            ControlChoice::Path(path) => {
                let taken = std::path::absolute(path).map_err(|error| error.to_string());
                let taken = taken.and_then(|path| ControlSocket::take_at(&path));
                taken.map(Some).map_err(|reason| {
                    SettingsError(format!("control: cannot use {}: {reason}", path.display()))
                })
            }
            ControlChoice::Auto => Ok(ControlSocket::take_somewhere(listen)),
        }
    }

    /// Takes the socket of a server that this one has taken over from. Without one the server runs
    /// all the same, and the log says why.
    pub(crate) fn take_after(choice: &ControlChoice, listen: SocketAddr) -> Option<ControlSocket> {
        ControlSocket::take(choice, listen).unwrap_or_else(|error| {
            tracing::warn!("{error}");
            None
        })
    }

    fn take_somewhere(listen: SocketAddr) -> Option<ControlSocket> {
        let mut reasons = Vec::new();
        for directory in place::directories() {
            let path = directory.join(place::name(listen));
            match ControlSocket::take_at(&path) {
                Ok(socket) => return Some(socket),
                Err(reason) => reasons.push(format!("{}: {reason}", path.display())),
            }
        }
        tracing::warn!(
            "no control socket, so that `throng reload` and `throng drain` do not reach this \
             server; `control` can name a path: {}",
            reasons.join("; ")
        );
        None
    }

    fn take_at(path: &Path) -> Result<ControlSocket, String> {
        let directory = path.parent().ok_or("it names no file")?;
        place::prepare(directory).map_err(|reason| format!("{}: {reason}", directory.display()))?;
        let words = |error: io::Error| error.to_string();
        // Held while it is decided whose the path is, so that two servers do not remove each
        // other's sockets.
        let turn = File::open(directory).map_err(words)?;
        flock(&turn, FlockOperation::LockExclusive).map_err(|error| error.to_string())?;
        remove_if_left(path)?;
        let listener = StdUnixListener::bind(path).map_err(words)?;
        fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(words)?;
        listener.set_nonblocking(true).map_err(words)?;
        let file = fs::symlink_metadata(path).map_err(words)?;
        Ok(ControlSocket { listener, path: path.to_owned(), file: (file.dev(), file.ino()) })
    }

    /// Frees the path for a process that takes over, or takes it back.
    pub(crate) fn step_aside(&self, is_aside: bool) {
        let aside = self.aside();
        let (from, to) = if is_aside { (&self.path, &aside) } else { (&aside, &self.path) };
        if self.is_at(from) {
            // Without the path the other process has no socket, and says so.
            let _ = fs::rename(from, to);
        }
    }

    fn aside(&self) -> PathBuf {
        self.path.with_added_extension("old")
    }

    /// True if it is this socket that the path leads to.
    fn is_at(&self, path: &Path) -> bool {
        let found = fs::symlink_metadata(path);
        found.is_ok_and(|found| (found.dev(), found.ino()) == self.file)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Holds conversations, each on a task of its own, until the runtime ends. The runtime must be
    /// entered.
    ///
    /// # Errors
    ///
    /// The runtime cannot watch the socket.
    pub(crate) fn serve(&self, about: About, actor: Arc<impl Act>) -> io::Result<()> {
        let listener = UnixListener::from_std(self.listener.try_clone()?)?;
        let places = Arc::new(Semaphore::new(CONVERSATIONS_MAX));
        tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                };
                let place = Arc::clone(&places).try_acquire_owned().ok();
                let (about, actor) = (about.clone(), Arc::clone(&actor));
                let is_full = place.is_none();
                let held = async move {
                    let _place = place;
                    converse(stream, about, &*actor, is_full).await;
                };
                // Without a place only a sentence is written, which the socket buffers.
                tokio::spawn(held);
            }
        });
        Ok(())
    }
}

/// Removes the socket of a server that was killed, and nothing else.
fn remove_if_left(path: &Path) -> Result<(), String> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err("there is something else that is no socket".into());
    }
    match StdUnixStream::connect(path) {
        Ok(_) => Err("another server has it".into()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|error| error.to_string())
        }
        // It belongs to a program that speaks otherwise, or that cannot answer now.
        Err(error) => Err(format!("another program has it: {error}")),
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        for path in [&self.path, &self.aside()] {
            if self.is_at(path) {
                let _ = fs::remove_file(path);
            }
        }
    }
}

/// Reads the request of a peer that may send one, and lets `actor` act.
async fn converse(stream: UnixStream, about: About, actor: &impl Act, is_full: bool) {
    let peer = stream.peer_cred().map(|peer| peer.uid());
    let mut conversation = Conversation { stream, is_over: false };
    let own = place::user();
    if !peer.is_ok_and(|user| user == own || user == 0) {
        tracing::warn!("a command of another user was refused at the control socket");
        return conversation.fail("only the server's user and root may ask").await;
    }
    if is_full {
        return conversation.fail("the server has too many commands to answer; try again").await;
    }
    let request = match timeout(REQUEST_TIMEOUT, conversation.request()).await {
        Ok(Ok(request)) => request,
        Ok(Err(reason)) => {
            let version = &about.version;
            let message = format!("the server ({version}) does not understand this: {reason}");
            return conversation.fail(&message).await;
        }
        Err(_) => return,
    };
    match request {
        Request::About => conversation.send(&SocketAnswer::Server(about)).await,
        request => actor.act(request, conversation).await,
    }
}

impl Conversation {
    /// Reads the request byte by byte: what follows, such as descriptors, is not for this reader.
    async fn request(&mut self) -> Result<Request, String> {
        let mut line = Vec::new();
        loop {
            let byte = self.stream.read_u8().await.map_err(|error| error.to_string())?;
            if byte == b'\n' {
                return serde_json::from_slice(&line).map_err(|error| error.to_string());
            }
            line.push(byte);
            if line.len() > LINE_BYTES_MAX {
                return Err("the line is too long".into());
            }
        }
    }

    /// Ready when the command has gone. It may have been interrupted, and the place that it had is
    /// for others.
    pub(crate) async fn gone(&self) {
        if self.is_over {
            return;
        }
        while let Ok(ready) = self.stream.ready(Interest::WRITABLE).await
            && !ready.is_write_closed()
        {
            sleep(GONE_INTERVAL).await;
        }
    }

    /// Says that it goes on. The command may have gone, which changes nothing.
    pub(crate) async fn progress(&mut self, message: &str) {
        self.send(&SocketAnswer::Progress { message: message.into() }).await;
    }

    /// Says what should be changed, although it works.
    pub(crate) async fn warn(&mut self, message: &str) {
        self.send(&SocketAnswer::Warning { message: message.into() }).await;
    }

    /// Says what came of the request, and ends the conversation.
    pub(crate) async fn end(mut self, outcome: Result<String, Failure>) {
        let answer = match outcome {
            Ok(message) => SocketAnswer::Done { message },
            Err(Failure { message, code }) => SocketAnswer::Failed { message, code },
        };
        self.send(&answer).await;
    }

    async fn fail(self, message: &str) {
        self.end(Err(Failure { message: message.into(), code: EXIT_RUNTIME })).await;
    }

    async fn send(&mut self, answer: &SocketAnswer) {
        if !self.is_over {
            let line = line(answer);
            let sent = timeout(ANSWER_TIMEOUT, self.stream.write_all(&line)).await;
            self.is_over = !matches!(sent, Ok(Ok(())));
        }
    }
}
