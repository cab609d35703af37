//! Logging in: the server says what it is, the client says who it is.

use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::lost::Lost;
use crate::protocol::decoder::{Decoder, ServerOp};
use crate::protocol::encoder::{self, Connect};

/// Who logs in.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Login {
    /// Nobody: the server asks for nothing.
    #[default]
    Anonymous,
    /// A user with a password.
    User {
        /// The name of the user.
        user: String,
        /// The password of the user.
        password: String,
    },
    /// Whoever has this token.
    Token(String),
}

#[derive(Deserialize)]
struct Info {
    #[serde(default = "default_payload")]
    max_payload: usize,
    #[serde(default)]
    headers: bool,
    #[serde(default)]
    tls_required: bool,
    #[serde(default)]
    nonce: Option<String>,
    #[serde(default)]
    auth_required: bool,
}

/// What servers accept unless they are told otherwise.
fn default_payload() -> usize {
    1 << 20
}

/// Logs in. Returns the largest message that the server accepts.
pub(super) async fn log_in(
    stream: &mut TcpStream,
    decoder: &mut Decoder,
    login: &Login,
    name: &str,
) -> Result<usize, Lost> {
    let mut payload_bytes_max = None;
    let mut buffer = vec![0; 8 << 10];
    loop {
        let mut out = Vec::new();
        while let Some(op) = decoder.next_op()? {
            match (op, payload_bytes_max) {
                (ServerOp::Info(info), None) => {
                    let info = serde_json::from_slice(info).map_err(|error| {
                        Lost::Said(format!("something that is not its INFO: {error}"))
                    })?;
                    payload_bytes_max = Some(check(&info, login)?);
                    encoder::connect(&mut out, &connect(login, name));
                    encoder::ping(&mut out);
                }
                (ServerOp::Pong, Some(most)) => return Ok(most),
                (ServerOp::Error(error), _) => return Err(Lost::Said(error.to_owned())),
                (ServerOp::Ping, _) => encoder::pong(&mut out),
                _ => {}
            }
        }
        stream.write_all(&out).await?;
        match stream.read(&mut buffer).await? {
            0 => return Err(Lost::Closed),
            count => decoder.feed(&buffer[..count]),
        }
    }
}

/// What the server asks for that this client does not do yet, in clear words.
fn check(info: &Info, login: &Login) -> Result<usize, Lost> {
    let refusal = if info.tls_required {
        "it requires TLS, which this client does not speak"
    } else if !info.headers {
        "it does not support headers: version 2.11 or later is needed"
    } else if info.auth_required && info.nonce.is_some() && *login == Login::Anonymous {
        "it requires a signed login, which this client cannot make; give a user or a token"
    } else {
        return Ok(info.max_payload);
    };
    Err(Lost::Said(refusal.to_owned()))
}

fn connect<'a>(login: &'a Login, name: &'a str) -> Connect<'a> {
    let connect = Connect::new(name);
    match login {
        Login::Anonymous => connect,
        Login::User { user, password } => {
            Connect { user: Some(user), pass: Some(password), ..connect }
        }
        Login::Token(token) => Connect { auth_token: Some(token), ..connect },
    }
}
