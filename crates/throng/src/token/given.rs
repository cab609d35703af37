//! The token that a command is about.

use std::io::{self, IsTerminal as _, Read as _};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use throng_access::server_key::PREFIX;

use crate::terminal;

/// The argument with the token.
#[derive(Debug, Args)]
pub(super) struct GivenToken {
    /// The token; `-` reads standard input [default: THRONG_TOKEN, or else standard input]
    #[arg(value_name = "TOKEN")]
    token: Option<String>,
}

impl GivenToken {
    /// Its text. `Bearer` before it, as in a header, does not count.
    pub(super) fn read(&self) -> Result<String> {
        let text = match self.token.as_deref() {
            Some("-") => read_input()?,
            Some(token) => token.to_owned(),
            None => match std::env::var("THRONG_TOKEN") {
                Ok(token) => token,
                Err(_) => read_input()?,
            },
        };
        let token = text.trim();
        let token = token.strip_prefix("Bearer ").unwrap_or(token).trim();
        if token.is_empty() {
            bail!(
                "there is no token; give it as an argument, in THRONG_TOKEN, or on standard input"
            );
        }
        refuse_key(token)?;
        Ok(token.to_owned())
    }
}

/// Refuses a server key where a token belongs.
pub(crate) fn refuse_key(token: &str) -> Result<()> {
    if token.starts_with(PREFIX) {
        bail!("this is a server key, and no token: put it into THRONG_KEY instead");
    }
    Ok(())
}

fn read_input() -> Result<String> {
    if io::stdin().is_terminal() {
        terminal::print_note("type or paste the token, then press Enter and Ctrl-D");
    }
    let mut text = String::new();
    io::stdin().lock().read_to_string(&mut text).context("cannot read standard input")?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_may_come_with_its_scheme() {
        let read = |text: &str| GivenToken { token: Some(text.into()) }.read().map_err(|_| ());
        assert_eq!(read(" a.b.c\n"), Ok("a.b.c".to_owned()));
        assert_eq!(read("Bearer a.b.c"), Ok("a.b.c".to_owned()));
        assert_eq!(read(" "), Err(()));
        assert_eq!(read("throng_key_abc"), Err(()));
    }
}
