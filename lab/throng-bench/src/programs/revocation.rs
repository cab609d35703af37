//! A user among many is revoked while messages go to all.
//!
//! Figures: `gone`, the milliseconds from the request until the user's connection is closed.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::context::{Abort, Context, Watch};
use crate::file::Run;
use crate::http::Http;
use crate::keys::Keys;

/// The user who is revoked.
const USER: &str = "revoked";

/// The number of the phase, from 1, in which the user is revoked.
const REVOKING: usize = 3;

/// Time limit of the revocation and of its effect.
const TIMEOUT: Duration = Duration::from_secs(30);

pub(super) fn run(context: &mut Context<'_>, run: &Run) -> Result<(), Abort> {
    context.serve(run)?;
    let (start, started) = channel();
    let keys = context.directory()?.keys.as_ref();
    let keys = keys.ok_or_else(|| "a server that revokes has tokens".to_owned())?;
    let user = revoke(&context.url(), keys, started)?;
    let mut revoking = Revoking(start);
    context.load_watched(run, &context.target(run), &mut revoking)?;
    drop(revoking);
    let gone = user.join().unwrap_or_else(|_| Err("the revoked client panicked".to_owned()));
    context.give([("gone", Some(gone?.as_secs_f64() * 1e3))]);
    Ok(())
}

/// Says when to revoke. Only the first message counts; nothing reads the others.
struct Revoking(Sender<()>);

impl Watch for Revoking {
    fn on_second(&mut self, phase: usize) {
        if phase == REVOKING {
            let _ = self.0.send(());
        }
    }
}

/// Connects the user, who is revoked after a message on `started`. The thread returns the time from
/// the request until the connection is closed.
fn revoke(
    url: &str,
    keys: &Keys,
    started: Receiver<()>,
) -> Result<JoinHandle<Result<Duration, String>>, String> {
    let fault = |error: std::io::Error| format!("the user to be revoked cannot connect: {error}");
    let token = keys.token(USER);
    let address = url.strip_prefix("http://").unwrap_or(url);
    let mut stream = TcpStream::connect(address).map_err(fault)?;
    let request = format!(
        "GET /channels/quiet HTTP/1.1\r\nHost: {address}\r\nAccept: text/event-stream\r\n\
         Authorization: Bearer {token}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).map_err(fault)?;
    let request = format!("{url}/revocations/users/{USER}");
    let key = keys.server_key.clone();
    Ok(thread::spawn(move || {
        started.recv().map_err(|_| "the user was not revoked".to_owned())?;
        let begun = Instant::now();
        let revoked = Http::new(TIMEOUT).post(&request, b"", Some(&key));
        revoked.map_err(|error| format!("the user was not revoked: {error}"))?;
        stream.set_read_timeout(Some(TIMEOUT)).map_err(|error| error.to_string())?;
        let mut rest = Vec::new();
        match stream.read_to_end(&mut rest) {
            Ok(_) => Ok(begun.elapsed()),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(begun.elapsed()),
            Err(error) => Err(format!("the revoked user is still connected: {error}")),
        }
    }))
}
