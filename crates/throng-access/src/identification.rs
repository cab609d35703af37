//! Finds out who a client is, by what its request shows: a token, a server key, a certificate, a
//! cookie, or whatever the application is asked about. Both planes use it, so that the same fault
//! has the same status, close code and sentence everywhere.
//!
//! It does no I/O. [`Identification::step`] says what it needs next; the caller verifies a token or
//! asks the application, at once or later, reports the answer, and takes the next step:
//!
//! ```text
//! step ─┬─► Known(client)     ┌──────── verified(verdict) ◄──┐
//!       ├─► Awaited           │                              │
//!       ├─► Refused(refused)  ▼                              │
//!       ├─► Verify(token) ── the caller's verifier ──────────┤
//!       └─► Ask(question) ── the application ── told(verdict)┘
//! ```
//!
//! # Order
//!
//! 1. A server without keys ignores credentials: they may be for a proxy in front of it.
//! 2. The credential is found. Two different ones are refused, and malformed ones.
//! 3. A cookie, a certificate, and headers that a browser adds by itself count only for pages of
//!    listed origins.
//! 4. A server key is refused from a page, then outside of `Authorization`, then if it is not
//!    known. A page does not learn whether the key is right.
//! 5. Tokens are verified: of two cookies both. A certificate besides may not be another user's.
//! 6. The limits of the client's user or key are checked ([`Shown::admit`]).
//! 7. The application is asked about a client without a credential, beyond a rate of its denials
//!    no more; and about one with a token, if it wants.
//! 8. A client that may show who it is on its connection is waited for, if it shows nothing, and if
//!    the application does not know it by its headers.
//!
//! # Charges
//!
//! A forged token counts against its address, by the
//! [`Authenticator`](crate::Authenticator). So does a `401` of the application, whatever the client
//! has shown; its `403` does not, nor does a failure of its own.

mod client;
mod cookies;
mod refused;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;

use throng_core::Listener;
use throng_wire::credential::{
    CookieRequest, Credential, Place, check_certificate, check_cookie, check_scheme,
};
use throng_wire::{ErrorCode, ErrorResponse, OriginPolicy};

use crate::access_control::AccessControl;
use crate::authenticator::{Now, Verdict};
use crate::certificate::Certified;
use crate::connect::{Connect, ConnectVerdict, Details, Newcomer, PassedHeaders, ShownToken};
use crate::refused_credentials::NO_TOKEN_KEYS;
use crate::token::Identity;
pub use client::Client;
use cookies::{VerifiedToken, choose_cookie};
pub use refused::Refused;

/// A check of something that browsers send by themselves, also for foreign pages.
pub type PageCheck = fn(&OriginPolicy<'_>, CookieRequest<'_>) -> Result<(), ErrorResponse>;

/// The facts about a client in its request or command, and about its connection.
pub trait Shown {
    /// Its credential, in the places where requests of this kind have one. `cookie` is the name of
    /// the token's cookie.
    ///
    /// # Errors
    ///
    /// There are two different ones, or one that none can be.
    fn credential(&self, cookie: Option<&str>) -> Result<Option<Credential<'_>>, ErrorResponse>;

    /// All values of a header of the request; empty for a command.
    fn header(&self, name: &str) -> Vec<&[u8]>;

    /// Applies a check to the origin of the request, by the pages that may use the server.
    ///
    /// # Errors
    ///
    /// The error of the check.
    fn check_page(&self, check: PageCheck) -> Result<(), ErrorResponse>;

    /// The user of the certificate of the connection.
    fn certified(&self) -> Option<Certified<'_>>;

    /// The client's address, if it is known.
    ///
    /// # Errors
    ///
    /// The header that names it is malformed.
    fn address(&self) -> Result<Option<IpAddr>, ErrorResponse>;

    /// The listener that accepted the connection. The application is not asked about clients of
    /// the admin listener, which is its own, and their addresses have no limits.
    fn listener(&self) -> Listener {
        Listener::Public
    }

    /// The word for the transport, for the application.
    fn transport(&self) -> &'static str;

    /// Checks a client as soon as it is known: once, and before the application is asked about its
    /// token.
    ///
    /// # Errors
    ///
    /// The client is beyond a limit, or not the one that it has to be.
    fn admit(&self, _client: &Client) -> Result<(), Refused> {
        Ok(())
    }
}

/// The next step of an identification.
#[derive(Debug)]
pub enum Step<'a> {
    /// The client is known, and may go on.
    Known(Client),
    /// The client has to show who it is on its connection.
    Awaited,
    /// The client is refused.
    Refused(Refused),
    /// This token is to be verified, then [`Identification::verified`].
    Verify(&'a str),
    /// The application is to be asked this, then [`Identification::told`].
    Ask(&'a dyn Connect, Question<'a>),
}

/// A question to the application about a client.
#[derive(Debug)]
pub struct Question<'a> {
    transport: &'static str,
    address: Option<IpAddr>,
    /// `None` for a command, which has no headers.
    headers: Option<PassedHeaders>,
    token: Option<(Arc<Identity>, &'a str)>,
}

impl Question<'_> {
    /// The question, as the application is asked it.
    pub fn newcomer(&self) -> Newcomer<'_> {
        let token = self.token.as_ref().map(|(identity, text)| ShownToken { identity, text });
        let details =
            Details { address: self.address, headers: self.headers.as_ref(), content: None };
        Newcomer { transport: self.transport, details, token }
    }
}

/// The answers that an identification has had. A request that waits keeps them.
#[derive(Debug, Clone, Default)]
pub struct Answers {
    /// The verdicts on the tokens of the request, in the order in which they stand: two if there
    /// are two cookies of one name.
    verdicts: [Option<Result<Arc<Identity>, Refused>>; 2],
    /// The application's answer about the client.
    told: Option<Result<Arc<Identity>, Refused>>,
    /// The client was admitted.
    is_admitted: bool,
    /// Which token waited for its keys last.
    awaited: usize,
    /// One of the tokens has counted before, so that it was verified lately.
    has_counted: bool,
}

impl Answers {
    /// The answers about a client that was identified before, and may not be asked about again:
    /// `told` is what the application has said of it.
    pub fn of_known(told: Option<Arc<Identity>>, is_admitted: bool) -> Answers {
        Answers { told: told.map(Ok), is_admitted, has_counted: true, ..Answers::default() }
    }

    /// The token whose keys were awaited is refused.
    pub fn refuse_awaited(&mut self, error: ErrorResponse) {
        self.verdicts[self.awaited] = Some(Err(error.into()));
    }

    /// The application has denied the client.
    pub fn deny(&mut self, error: ErrorResponse) {
        self.told = Some(Err(error.into()));
    }

    /// True if these wait for keys that the earlier ones have not waited for.
    pub fn wait_for_others_than(&self, earlier: &Answers) -> bool {
        self.awaited > earlier.awaited
    }
}

/// Finds out who a client is.
#[derive(Debug)]
pub struct Identification<'s, S> {
    access: &'s AccessControl,
    shown: &'s S,
    credential: Option<Credential<'s>>,
    answers: Answers,
    /// True if the client may show who it is on its connection.
    may_come_later: bool,
}

impl<'s, S: Shown> Identification<'s, S> {
    /// The client that shows this, with the answers that it has had.
    ///
    /// # Errors
    ///
    /// The error of [`Shown::credential`].
    pub fn new(
        access: &'s AccessControl,
        shown: &'s S,
        answers: Answers,
    ) -> Result<Identification<'s, S>, Refused> {
        let cookie = access.token_cookie.as_deref();
        let credential = if access.has_keys() { shown.credential(cookie)? } else { None };
        Ok(Identification { access, shown, credential, answers, may_come_later: false })
    }

    /// Lets the client show who it is on its connection, if neither its request nor the application
    /// says it.
    pub fn let_come_later(&mut self) {
        self.may_come_later = true;
    }

    /// Passes over a cookie that was refused before, if the other one has counted, and `knows` says
    /// that it was verified lately: to verify it again would charge its address again.
    pub fn pass_over(&mut self, mut knows: impl FnMut(&str) -> bool) {
        let Some(credential) = self.credential.as_ref().filter(|_| self.answers.has_counted) else {
            return;
        };
        let counted = credential.texts().position(&mut knows);
        let is_pair = credential.other_cookie().is_some();
        if let Some(counted) = counted.filter(|_| is_pair) {
            self.answers.verdicts[1 - counted] =
                Some(Err(Refused::Error(ErrorCode::InvalidToken.into())));
        }
    }

    /// The answers so far, for a request that waits for the answer to this step. A token that
    /// counted is verified again: it may be revoked meanwhile.
    pub fn wait(self) -> Answers {
        let Answers { mut verdicts, told, is_admitted, has_counted, .. } = self.answers;
        let awaited = verdicts.iter().flatten().count().min(verdicts.len() - 1);
        for verdict in &mut verdicts {
            *verdict = verdict.take().filter(Result::is_err);
        }
        Answers { verdicts, told, is_admitted, awaited, has_counted }
    }

    /// The next step.
    pub fn step(&mut self, now: Now) -> Step<'_> {
        let Identification { access, shown, credential, answers, may_come_later } = self;
        let check = Check { access, shown: *shown, now };
        let step = match credential {
            _ if !access.has_keys() => Ok(Step::Known(Client::Anonymous)),
            Some(credential) => check.credential(credential, answers),
            None => check.without_credential(*may_come_later, answers),
        };
        step.unwrap_or_else(Step::Refused)
    }

    /// The verdict on the token of [`Step::Verify`]; `None` if none has come in time.
    pub fn verified(&mut self, verdict: Option<Verdict>, now: Now) {
        let check = Check { access: self.access, shown: self.shown, now };
        let verdict = check.verdict(verdict);
        if let Some(open) = self.answers.verdicts.iter_mut().find(|verdict| verdict.is_none()) {
            *open = Some(verdict);
        }
    }

    /// The answer to the question of [`Step::Ask`]; `None` if none has come in time.
    pub fn told(&mut self, answer: Option<ConnectVerdict>, now: Now) {
        let answer = answer.unwrap_or_else(|| Err(ErrorResponse::unanswered()));
        if let Err(error) = &answer {
            // The question was asked with this address: it is well-formed.
            let address = self.access.limited_address(self.shown).unwrap_or_default();
            self.access.charge_denial(address, error, now.steady_ms);
        }
        self.answers.told = Some(answer.map_err(Refused::Error));
    }
}

/// The facts by which one step is taken.
struct Check<'s, S> {
    access: &'s AccessControl,
    shown: &'s S,
    now: Now,
}

impl<'s, S: Shown> Check<'s, S> {
    fn credential<'c>(
        &self,
        credential: &'c Credential<'_>,
        answers: &mut Answers,
    ) -> Result<Step<'c>, Refused>
    where
        's: 'c,
    {
        if credential.place() == Place::Cookie {
            self.shown.check_page(check_cookie)?;
        }
        for (text, verdict) in credential.texts().zip(&mut answers.verdicts) {
            if verdict.is_some() {
                continue;
            }
            let has_origin = || !self.shown.header("origin").is_empty();
            match self.access.server_key((text, credential.place()), has_origin) {
                Some(Ok(key)) => return self.known(Client::Key(key), answers),
                Some(Err(refusal)) => {
                    self.access.refused_credentials.count(refusal.label());
                    *verdict = Some(Err(refusal.into()));
                }
                None if self.access.tokens.is_none() => {
                    self.access.refused_credentials.count(NO_TOKEN_KEYS);
                    *verdict = Some(Err(Refused::no_token_keys()));
                }
                None => return Ok(Step::Verify(text)),
            }
        }
        self.confirm(chosen(credential, answers)?, credential.place(), answers)
    }

    /// The client with a token that counts, if the application agrees, where it is asked.
    fn confirm<'c>(
        &self,
        (identity, text): VerifiedToken<'c>,
        place: Place,
        answers: &mut Answers,
    ) -> Result<Step<'c>, Refused>
    where
        's: 'c,
    {
        let client = Client::Token(Arc::clone(&identity));
        let Some(connect) = self.connect().filter(|connect| connect.decides_tokens()) else {
            return self.known(client, answers);
        };
        if let Some(told) = &answers.told {
            return self.believe(connect, told.clone()?).map(Step::Known);
        }
        self.admit(&client, answers)?;
        let headers = match place {
            Place::Command => None,
            _ => Some(self.access.passed_headers(self.shown)?),
        };
        Ok(Step::Ask(connect, self.question(headers, Some((identity, text)))?))
    }

    fn without_credential<'c>(
        &self,
        may_come_later: bool,
        answers: &mut Answers,
    ) -> Result<Step<'c>, Refused>
    where
        's: 'c,
    {
        if let (Some(users), Some(certified)) = (&self.access.certificates, self.shown.certified())
        {
            self.shown.check_page(check_certificate)?;
            let identity = users.identify(certified, self.now.unix_s)?;
            return self.known(Client::Token(identity), answers);
        }
        let connect = self.connect().filter(|_| !may_come_later || self.shows_passed_header());
        let step = match connect {
            Some(connect) => self.ask(connect, answers),
            None => {
                check_scheme(self.shown.header("authorization").into_iter())?;
                if may_come_later {
                    Ok(Step::Awaited)
                } else {
                    self.known(Client::Anonymous, answers)
                }
            }
        };
        match step {
            Err(refused) if may_come_later && refused.is_of_stranger() => Ok(Step::Awaited),
            step => step,
        }
    }

    /// True if the request has a header that the application gets, by which it may know the client.
    fn shows_passed_header(&self) -> bool {
        self.access.passed.headers.iter().any(|name| !self.shown.header(name).is_empty())
    }

    /// Asks the application about a client without a credential, if it has not said who it is.
    fn ask<'c>(&self, connect: &'s dyn Connect, answers: &mut Answers) -> Result<Step<'c>, Refused>
    where
        's: 'c,
    {
        if let Some(told) = &answers.told {
            let client = self.believe(connect, told.clone()?)?;
            return self.known(client, answers);
        }
        let headers = self.access.passed.pick(|name| self.shown.header(name).into_iter())?;
        // Browsers let foreign pages connect with their cookies, to a WebSocket as well.
        if connect.passes_ambient(&headers) {
            self.shown.check_page(check_cookie)?;
        }
        let question = self.question(Some(headers), None)?;
        // Before the limit, so that strangers at an address cannot lock out its admitted clients.
        if let Some(identity) = connect.known(question.newcomer()) {
            return self.known(Client::Token(identity), answers);
        }
        // A stranger who was refused too often must not make the application work any more.
        let address = self.access.limited_address(self.shown)?;
        self.access.clients.limiter.may_verify(address, self.now.steady_ms)?;
        Ok(Step::Ask(connect, question))
    }

    /// The identity by a verdict on a token, perhaps besides a certificate.
    fn verdict(&self, verdict: Option<Verdict>) -> Result<Arc<Identity>, Refused> {
        let identity = match verdict {
            Some(Ok(identity)) => identity,
            Some(Err(refusal)) => {
                self.access.refused_credentials.count(refusal.label());
                return Err(refusal.into());
            }
            None => {
                self.access.refused_credentials.count_unanswered();
                return Err(ErrorResponse::unanswered().into());
            }
        };
        match (&self.access.certificates, self.shown.certified()) {
            (Some(users), Some(certified)) => {
                Ok(users.confirm(certified, &identity, self.now.unix_s)?)
            }
            _ => Ok(identity),
        }
    }

    /// The client that the application has named. It may have been revoked since.
    fn believe(&self, connect: &dyn Connect, told: Arc<Identity>) -> Result<Client, Refused> {
        connect.recheck(&told, self.now.unix_s)?;
        Ok(Client::Token(told))
    }

    fn known<'c>(&self, client: Client, answers: &mut Answers) -> Result<Step<'c>, Refused> {
        self.admit(&client, answers)?;
        Ok(Step::Known(client))
    }

    fn admit(&self, client: &Client, answers: &mut Answers) -> Result<(), Refused> {
        if !answers.is_admitted {
            self.shown.admit(client)?;
            answers.is_admitted = true;
        }
        Ok(())
    }

    /// The application, if it is asked about clients of this listener.
    fn connect(&self) -> Option<&'s dyn Connect> {
        let connect = self.access.connect.as_deref();
        connect.filter(|_| self.shown.listener() == Listener::Public)
    }

    fn question<'c>(
        &self,
        headers: Option<PassedHeaders>,
        token: Option<VerifiedToken<'c>>,
    ) -> Result<Question<'c>, ErrorResponse> {
        let address = self.access.passed_address(self.shown)?;
        Ok(Question { transport: self.shown.transport(), address, headers, token })
    }
}

/// The token that counts: of two cookies the valid one.
fn chosen<'c>(
    credential: &'c Credential<'_>,
    answers: &Answers,
) -> Result<VerifiedToken<'c>, Refused> {
    let mut verdicts = credential
        .texts()
        .zip(&answers.verdicts)
        .filter_map(|(text, verdict)| Some(verdict.clone()?.map(|identity| (identity, text))));
    // There is a verdict on each by now.
    let first = verdicts.next().unwrap_or_else(|| Err(ErrorResponse::unanswered().into()));
    match verdicts.next() {
        Some(second) => choose_cookie(first, second),
        None => first,
    }
}

impl AccessControl {
    /// The address against which a client's bad tokens and denials count; `None` if nothing does.
    ///
    /// # Errors
    ///
    /// Those of [`Shown::address`].
    pub fn limited_address(&self, shown: &impl Shown) -> Result<Option<IpAddr>, ErrorResponse> {
        match shown.listener() {
            Listener::Public if self.clients.limiter.limits_strangers() => shown.address(),
            Listener::Public | Listener::Admin => Ok(None),
        }
    }

    /// The address of a client, if those who decide about it need it.
    ///
    /// # Errors
    ///
    /// Those of [`Shown::address`].
    pub fn passed_address(&self, shown: &impl Shown) -> Result<Option<IpAddr>, ErrorResponse> {
        if self.passed.address { shown.address() } else { Ok(None) }
    }

    /// The headers of a request that those who decide get, besides a credential. The credential
    /// says who the client is; whatever a foreign page made the browser send besides does not.
    ///
    /// # Errors
    ///
    /// They are too large.
    pub fn passed_headers(&self, shown: &impl Shown) -> Result<PassedHeaders, ErrorResponse> {
        let mut headers = self.passed.pick(|name| shown.header(name).into_iter())?;
        headers.keep_ambient_if(|| shown.check_page(check_cookie).is_ok());
        Ok(headers)
    }

    /// The application has refused a client at this address. A `401` counts as a bad token: beyond
    /// a rate of them, the application is not asked about strangers any more.
    pub fn charge_denial(&self, address: Option<IpAddr>, error: &ErrorResponse, now_ms: u64) {
        if error.code == ErrorCode::Unauthorized {
            self.clients.limiter.charge_bad_token(address, now_ms);
        }
    }

    /// Fails if a client that was identified before is not to be believed any more: what it has
    /// shown may have ended, or may have been revoked, while it waited.
    ///
    /// # Errors
    ///
    /// `token_expired` or `token_revoked`.
    pub fn recheck(&self, client: &Client, now_s: u64) -> Result<(), ErrorResponse> {
        let Client::Token(identity) = client else { return Ok(()) };
        if let Some(certificates) = &self.certificates
            && identity.is_of_certificate()
        {
            return certificates.recheck(identity, now_s);
        }
        match (&self.connect, &self.tokens) {
            (Some(connect), _) if identity.is_of_application() => connect.recheck(identity, now_s),
            (_, Some(tokens)) if tokens.authority().revocations().is_revoked(identity) => {
                Err(ErrorCode::TokenRevoked.into())
            }
            _ if !identity.is_current(now_s) => Err(ErrorCode::TokenExpired.into()),
            _ => Ok(()),
        }
    }
}
