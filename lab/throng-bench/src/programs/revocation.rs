//! A user among many is revoked while messages go to all.
//!
//! Figures: `gone`, the milliseconds from the request until the user's connection is closed.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::context::{Abort, Context};
use crate::file::Run;
use crate::http::{Http, parts};

/// The user who is revoked.
const USER: &str = "revoked";

/// The number of the phase, from 1, in which the user is revoked.
const REVOKING: usize = 3;

/// Time limit of the revocation and of its effect.
const TIMEOUT: Duration = Duration::from_secs(30);

pub(super) fn run(context: &mut Context<'_>, run: &Run) -> Result<(), Abort> {
    context.serve(run)?;
    let keys = context.directory()?.keys.as_ref();
    let keys = keys.ok_or_else(|| "a server that revokes has tokens".to_owned())?;
    let (url, key) = (context.url(), keys.server_key.clone());
    let user = connect(&url, &keys.token(USER));
    let user = user.map_err(|error| format!("the user to be revoked cannot connect: {error}"))?;
    let target = context.target(run);
    let gone = context.load_beside(run, &target, REVOKING, |_| revoke(user, &url, &key))?;
    context.give([("gone", Some(gone.as_secs_f64() * 1e3))]);
    Ok(())
}

/// Connects the user.
fn connect(url: &str, token: &str) -> std::io::Result<TcpStream> {
    let (authority, _) = parts(url);
    let mut stream = TcpStream::connect(authority)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let request = format!(
        "GET /channels/quiet HTTP/1.1\r\nHost: {authority}\r\nAccept: text/event-stream\r\n\
         Authorization: Bearer {token}\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    Ok(stream)
}

/// Revokes the user. Returns the time from the request until the connection is closed.
fn revoke(mut user: TcpStream, url: &str, key: &str) -> Result<Duration, String> {
    let begun = Instant::now();
    let request = format!("{url}/revocations/users/{USER}");
    let revoked = Http::new(TIMEOUT).post(&request, b"", Some(key));
    revoked.map_err(|error| format!("the user was not revoked: {error}"))?;
    match user.read_to_end(&mut Vec::new()) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => {
            Err(format!("the revoked user is still connected: {error}"))
        }
        _ => Ok(begun.elapsed()),
    }
}
