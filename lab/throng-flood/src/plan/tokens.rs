//! The tokens that clients and publishers of a plan show.
//!
//! They are added to a plan that has been checked, so that no error can show one.

use std::sync::Arc;

use super::model::{PlanError, PublishBy, Target};
use super::options::Options;
use super::values::{TokenPlace, Transport};
use crate::template::{PerClient, Template};
use crate::tokens::{SignedTokens, Signer, read_claims};

/// Stands for a token wherever a plan is shown.
const SHOWN: &str = "(token)";

/// The header with a token.
const AUTHORIZATION: &str = "Authorization";

/// The sub-protocol that is offered besides the token, if none is given: the server must select
/// one, and never selects the token.
const PLAIN: &str = "throng.plain";

type Tokens = Arc<dyn PerClient>;

impl Options {
    /// Makes the clients and publishers of a checked plan show their tokens.
    pub(super) fn add_tokens(&self, target: &mut Target) -> Result<(), PlanError> {
        let tokens = self.client_tokens()?;
        if let Some(tokens) = &tokens {
            show(tokens, self.tokens.place(), target)?;
        }
        let of_publisher = match &self.publish.token_file {
            Some(file) => Some(token_of(&file.content)?),
            None => tokens.filter(|_| self.target.profile().publish_needs().is_none()),
        };
        match target.publish.as_mut().map(|publish| &mut publish.by) {
            Some(PublishBy::Http { headers, .. }) => {
                // A header that is given is more specific.
                if let Some(tokens) = of_publisher.filter(|_| !has_authorization(headers)) {
                    headers.push(header(tokens));
                }
            }
            Some(PublishBy::WebSocket { .. }) if self.publish.token_file.is_some() => {
                let message = "a WebSocket publisher shows a client's token";
                return Err(PlanError::new("publish.token-file", message));
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn have_tokens(&self) -> bool {
        let tokens = &self.tokens;
        let is_signed = tokens.secret_file.is_some() || tokens.key_file.is_some();
        tokens.file.is_some() || tokens.template.is_some() || is_signed
    }

    fn client_tokens(&self) -> Result<Option<Tokens>, PlanError> {
        let options = &self.tokens;
        let sources = (&options.file, &options.template, &options.secret_file, &options.key_file);
        let (key, signer) = match sources {
            (None, None, None, None) => return self.refuse_details(),
            (Some(file), None, None, None) => {
                let column = Template::with_table("{token}", Some(&file.content));
                return Ok(column.ok().map(|column| Arc::new(column) as Tokens));
            }
            (None, Some(text), None, None) => {
                return Ok(Some(Arc::new(self.token_template("tokens.template", text)?)));
            }
            (None, None, Some(file), None) => {
                ("tokens.secret-file", Signer::from_secret(&file.content))
            }
            (None, None, None, Some(file)) => {
                ("tokens.key-file", Signer::from_private_key(&file.content))
            }
            _ => {
                let message = "tokens come from one source: a file, a template, a secret or a key";
                return Err(PlanError::new("tokens", message));
            }
        };
        let signer = signer.map_err(|fault| PlanError::new(key, fault))?;
        let claims = read_claims(&options.claims());
        let claims = claims.map_err(|message| PlanError::new("tokens.claims", message))?;
        let lifetime = options.lifetime().0;
        if lifetime.as_secs() == 0 {
            return Err(PlanError::new("tokens.lifetime", "must be at least a second"));
        }
        let user = self.token_template("tokens.user", &options.user())?;
        let key_id = options.key_id.as_deref();
        Ok(Some(Arc::new(SignedTokens::new(signer, key_id, user, &claims, lifetime))))
    }

    /// Refuses options that say how to sign or show tokens if there are none.
    fn refuse_details(&self) -> Result<Option<Tokens>, PlanError> {
        let details = ["key-id", "user", "claims", "lifetime", "in"];
        let is_given = |key: &&str| self.has_any(&format!("tokens.{key}"));
        match details.iter().find(|key| is_given(key)) {
            Some(key) => Err(PlanError::new(
                format!("tokens.{key}"),
                "there are no tokens: say where they come from, like --token-secret-file FILE",
            )),
            None => Ok(None),
        }
    }

    fn token_template(&self, key: &str, text: &str) -> Result<Template, PlanError> {
        Template::with_table(text, self.columns()).map_err(|error| PlanError::new(key, error))
    }
}

fn show(tokens: &Tokens, place: TokenPlace, target: &mut Target) -> Result<(), PlanError> {
    let refuse = |message| Err(PlanError::new("tokens.in", message));
    match place {
        TokenPlace::Header if has_authorization(&target.headers) => {
            return refuse("the header Authorization is set already");
        }
        TokenPlace::Header => target.headers.push(header(Arc::clone(tokens))),
        TokenPlace::Query => {
            let has_query = target.url.rendered(&Default::default()).contains('?');
            let before = if has_query { "&token=" } else { "?token=" };
            target.url = target.url.followed_by(before, Arc::clone(tokens), SHOWN);
        }
        TokenPlace::Subprotocol if target.transport != Transport::WebSocket => {
            return refuse("a sub-protocol is for the transport websocket only");
        }
        TokenPlace::Subprotocol => {
            let other = target.subprotocol.take().unwrap_or_else(|| Template::literal(PLAIN));
            let both = other.followed_by(", throng.token.", Arc::clone(tokens), SHOWN);
            target.subprotocol = Some(both);
        }
    }
    Ok(())
}

fn header(tokens: Tokens) -> (String, Template) {
    let value = Template::literal("").followed_by("Bearer ", tokens, SHOWN);
    (AUTHORIZATION.to_owned(), value)
}

fn has_authorization(headers: &[(String, Template)]) -> bool {
    headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(AUTHORIZATION))
}

/// The publishers' key or token: the first line of its file.
fn token_of(file: &[u8]) -> Result<Tokens, PlanError> {
    let text = std::str::from_utf8(file).ok().and_then(|text| text.lines().next()).map(str::trim);
    let is_token =
        |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    match text.filter(is_token) {
        Some(text) => Ok(Arc::new(Template::literal(text))),
        None => {
            let message = "the first line of the file is no server key and no token";
            Err(PlanError::new("publish.token-file", message))
        }
    }
}

#[cfg(test)]
mod tests;
