//! Servers with keys of every kind, and requests that show every credential in every place.

use std::cell::Cell;
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use throng_core::later::{Answer, Later};
use throng_wire::credential::{Token, of_subscription};
use throng_wire::head::{self, Head, Limits, Parsed};
use throng_wire::subscribe::{self, Request, Route};
use throng_wire::v1::{self, Command};

use super::super::*;
use crate::algorithm::Algorithm;
use crate::certificate::CertificateUsers;
use crate::clients::Clients;
use crate::keys::{Key, KeySet, KeySources, PublishedKeys, RefreshSettings};
use crate::limit::{self, LimitSettings, Limiter, Quantity, Subject};
use crate::policy::AllowAll;
use crate::server_key::{KeyHash, ServerKeys, generate};
use crate::token::{Policy, Signer, TokenId};
use crate::{Authenticator, Authority, Passed, Revocation, Revocations, ServerKey};

pub(super) const NOW: Now = Now { steady_ms: 1_000_000, unix_s: 1_800_000_000 };
const PAGE: &str = "https://page.example";

/// The limit of a user who has too many connections.
pub(super) const FULL: limit::Refusal =
    limit::Refusal { subject: Subject::User, quantity: Quantity::Connections, after_ms: None };

fn secret(id: &str) -> [u8; 32] {
    [id.as_bytes()[0]; 32]
}

fn key(id: &str) -> Arc<Key> {
    Arc::new(Key::from_secret(Some(id), Algorithm::Hs256, &secret(id)).expect("a key"))
}

fn signed(key_id: &str, secret: &[u8], user: &str, more: &str) -> String {
    let signer = Signer::new(Some(key_id), Algorithm::Hs256, secret).expect("a key");
    let now_s = NOW.unix_s;
    signer.sign(&format!(r#"{{"sub": "{user}", "iat": {}{more}}}"#, now_s - 100))
}

/// A server, and the application that it asks.
pub(super) struct World {
    pub(super) access: AccessControl,
    application: Option<Arc<Application>>,
    server_key: String,
    unknown_key: String,
}

impl World {
    /// The server of this name in the table.
    pub(super) fn of(name: &str) -> World {
        let [server_key, unknown_key] = [generate(), generate()].map(|key| key.expect("random"));
        let (is_late, asks) = (name == "late keys", matches!(name, "application" | "limited"));
        let bad_tokens_per_s = if name == "limited" { 2 } else { 0 };
        let limits = LimitSettings { bad_tokens_per_s, ..LimitSettings::default() };
        let clients = Arc::new(Clients { limiter: Limiter::new(limits), ..Clients::default() });
        let key = ServerKey::new("app", KeyHash::of(&server_key).expect("a key"), vec![], None);
        let server_keys = ServerKeys::new(vec![key]).expect("one key");
        let application = asks.then(Arc::<Application>::default);
        let has_tokens = !matches!(name, "server keys" | "open");
        let mut access = AccessControl {
            tokens: has_tokens.then(|| Arc::new(authenticator(&clients, is_late))),
            connect: application.clone().map(|application| application as Arc<dyn Connect>),
            token_cookie: Some("t".into()),
            passed: Passed { headers: ["x-session".into()].into(), ..Passed::default() },
            clients,
            ..AccessControl::open(Arc::new(AllowAll))
        };
        if name != "open" {
            access.server_keys = Arc::new(server_keys).into();
        }
        if name == "certificates" {
            access.certificates = Some(CertificateUsers::new(Arc::default()));
        }
        World { access, application, server_key, unknown_key }
    }

    /// How many questions the application has got.
    pub(super) fn questions(&self) -> usize {
        self.application.as_ref().map_or(0, |asked| asked.questions.load(Ordering::Relaxed))
    }

    /// The identity of a valid token.
    pub(super) fn verify(&self, token: &str) -> Arc<Identity> {
        let tokens = self.access.tokens.as_ref().expect("it verifies tokens");
        tokens.verifier().verify(token, NOW.unix_s).expect("a valid token")
    }

    /// The text of a credential of the table.
    pub(super) fn token(&self, name: &str) -> String {
        let life = format!(r#", "exp": {}"#, NOW.unix_s + 600);
        match name {
            "good" => signed("a", &secret("a"), "ann", &life),
            "of bob" => signed("a", &secret("a"), "bob", &life),
            "of nobody" => {
                let signer = Signer::new(Some("a"), Algorithm::Hs256, &secret("a")).expect("a key");
                signer.sign(&format!(r#"{{"iat": {}{life}}}"#, NOW.unix_s))
            }
            "locked out" => {
                signed("a", &secret("a"), "ann", &format!(r#"{life}, "jti": "locked out""#))
            }
            "forged" => signed("a", &secret("x"), "ann", &life),
            "of an unknown key" | "of a late key" => signed("x", &secret("x"), "ann", &life),
            "malformed" => "a.b".into(),
            "long" => "x".repeat(8193),
            "expired" => {
                signed("a", &secret("a"), "ann", &format!(r#", "exp": {}"#, NOW.unix_s - 50))
            }
            "early" => {
                let early = format!(r#"{life}, "nbf": {}"#, NOW.unix_s + 300);
                signed("a", &secret("a"), "ann", &early)
            }
            "revoked" => signed("a", &secret("a"), "ann", &format!(r#"{life}, "jti": "revoked""#)),
            "key" => self.server_key.clone(),
            "unknown key" => self.unknown_key.clone(),
            "mistyped key" => "throng_key_x".into(),
            "session" | "stranger" | "certificate" => name.into(),
            _ => panic!("there is no credential {name}"),
        }
    }

    /// A request that shows credentials in places, which are separated by spaces.
    pub(super) fn request(&self, shows: &[String], places: &str, page: Option<&str>) -> Built {
        let (mut target, mut fields, mut cookies) =
            ("/channels/a".to_owned(), String::new(), Vec::new());
        let (mut command, mut is_read, mut certified) = (None, true, None);
        for (name, place) in shows.iter().zip(places.split(' ')) {
            let text = self.token(name);
            match place {
                "header" => write!(fields, "Authorization: Bearer {text}\r\n"),
                "schemeless" => write!(fields, "Authorization: {text}\r\n"),
                "session" => write!(fields, "X-Session: {text}\r\n"),
                "query" => write!(target, "?token={text}"),
                "subprotocol" => {
                    is_read = false;
                    write!(
                        fields,
                        "Upgrade: websocket\r\nConnection: Upgrade\r\n\
                         Sec-WebSocket-Version: 13\r\n\
                         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                         Sec-WebSocket-Protocol: throng.v1, throng.token.{text}\r\n"
                    )
                }
                "cookie" => {
                    cookies.push(format!("t={text}"));
                    Ok(())
                }
                "command" => {
                    command = Some(text);
                    Ok(())
                }
                "certificate" => {
                    certified = Some(Certified { user: "ann", from_s: 1, until_s: u32::MAX });
                    Ok(())
                }
                _ => panic!("there is no place {place}"),
            }
            .expect("a string takes it");
        }
        if !cookies.is_empty() {
            fields += &format!("Cookie: {}\r\n", cookies.join("; "));
        }
        let page = match page {
            Some("listed") => Some(PAGE),
            Some("other") => Some("https://other.example"),
            None if !cookies.is_empty() => Some(PAGE),
            _ => None,
        };
        if let Some(page) = page {
            fields += &format!("Origin: {page}\r\n");
        }
        let head = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
        Built { head, command, origin: page, is_read, certified }
    }
}

fn authenticator(clients: &Arc<Clients>, is_late: bool) -> Authenticator {
    let published = PublishedKeys::new(KeySet::default());
    let mut sources = KeySources::new(Arc::clone(&published));
    let source = sources.add();
    sources.replace(source, vec![key("a")]).expect("one key");
    let revocations = Arc::<Revocations>::default();
    revocations.add(&Revocation::Token { id: TokenId::of("revoked"), at_s: 1 });
    let authority = Authority::new(published, Policy::default(), revocations, 100);
    let tokens = Authenticator::new(authority, sources, Arc::clone(clients), || {});
    if is_late {
        let source = tokens.add_url(RefreshSettings::default(), NOW);
        assert_eq!(tokens.begin(NOW), [source]);
        assert_eq!(tokens.fetched(source, None, NOW), Ok(false));
    }
    tokens
}

/// The text of a request.
pub(super) struct Built {
    head: String,
    command: Option<String>,
    origin: Option<&'static str>,
    is_read: bool,
    certified: Option<Certified<'static>>,
}

impl Built {
    /// The same, as it is identified.
    pub(super) fn shown(&self) -> Asked<'_> {
        let parsed = head::parse(self.head.as_bytes(), Limits { max_head_bytes: 64 << 10 });
        let Ok(Parsed::Complete { head, .. }) = parsed else { panic!("{}", self.head) };
        let Ok(Route::Subscribe(request)) = subscribe::route(&head) else { panic!("{head:?}") };
        let command = self.command.as_ref().map(|token| {
            let text = format!(r#"{{"type": "auth", "token": "{token}"}}"#);
            match v1::parse(&text).command? {
                Command::Auth { token } => Ok(token),
                other => panic!("{other:?}"),
            }
        });
        Asked {
            built: self,
            head,
            request,
            command,
            address: None,
            listener: Listener::Public,
            certified: self.certified,
            is_full: false,
            admitted: Cell::new(0),
        }
    }
}

/// A request or a command, and its connection.
pub(super) struct Asked<'a> {
    built: &'a Built,
    head: Head<'a>,
    request: Box<Request>,
    command: Option<Result<Token, ErrorResponse>>,
    pub(super) address: Option<IpAddr>,
    pub(super) listener: Listener,
    certified: Option<Certified<'a>>,
    /// Its user has too many connections.
    pub(super) is_full: bool,
    /// How often it was admitted.
    pub(super) admitted: Cell<usize>,
}

impl Shown for Asked<'_> {
    fn credential(&self, cookie: Option<&str>) -> Result<Option<Credential<'_>>, ErrorResponse> {
        match &self.command {
            Some(Ok(token)) => Ok(Some(token.credential())),
            Some(Err(error)) => Err(error.clone()),
            None => of_subscription(&self.head, &self.request, cookie),
        }
    }

    fn header(&self, name: &str) -> Vec<&[u8]> {
        self.head.headers(name).collect()
    }

    fn check_page(&self, check: PageCheck) -> Result<(), ErrorResponse> {
        let origins = [PAGE.to_owned()];
        let policy = OriginPolicy {
            listen: Ipv4Addr::LOCALHOST.into(),
            origins: &origins,
            hosts: &[],
            is_same_port_only: false,
        };
        let Built { origin, is_read, .. } = *self.built;
        check(&policy, CookieRequest { origin, fetch_site: None, is_read })
    }

    fn certified(&self) -> Option<Certified<'_>> {
        self.certified
    }

    fn address(&self) -> Result<Option<IpAddr>, ErrorResponse> {
        Ok(self.address)
    }

    fn listener(&self) -> Listener {
        self.listener
    }

    fn transport(&self) -> &'static str {
        "websocket"
    }

    fn admit(&self, _: &Client) -> Result<(), Refused> {
        self.admitted.set(self.admitted.get() + 1);
        if self.is_full { Err(FULL.into()) } else { Ok(()) }
    }
}

/// Lets in clients with a session, and everybody with a token but the one that is locked out.
#[derive(Debug, Default)]
struct Application {
    questions: AtomicUsize,
    /// The sessions that it was asked about, which it remembers.
    known: Mutex<Vec<Box<str>>>,
}

fn session_of<'a>(newcomer: &Newcomer<'a>) -> Option<&'a str> {
    let headers = newcomer.details.headers?;
    headers.iter().find_map(|(name, value)| (name == "x-session").then_some(value))
}

fn ann() -> Arc<Identity> {
    Arc::new(Identity::of_application(Some("ann".into()), Arc::default(), 1, u32::MAX))
}

impl Connect for Application {
    fn known(&self, newcomer: Newcomer<'_>) -> Option<Arc<Identity>> {
        let known = self.known.lock().expect("it does not panic");
        let session = session_of(&newcomer)?;
        known.iter().any(|name| **name == *session).then(ann)
    }

    fn who(&self, newcomer: Newcomer<'_>, _: Later<'_, ConnectVerdict>) -> Answer<ConnectVerdict> {
        self.questions.fetch_add(1, Ordering::Relaxed);
        let denied = |code, message| Err(ErrorResponse::new(code, message));
        match (newcomer.token, session_of(&newcomer)) {
            (Some(token), _) if token.identity.token_id() == Some(TokenId::of("locked out")) => {
                denied(ErrorCode::Forbidden, "you are locked out")
            }
            (Some(token), _) => Ok(Arc::new(token.identity.narrowed(None, u32::MAX))),
            (None, Some("session")) => {
                self.known.lock().expect("it does not panic").push("session".into());
                Ok(ann())
            }
            (None, _) => denied(ErrorCode::Unauthorized, "log in first"),
        }
        .into()
    }

    fn decides_tokens(&self) -> bool {
        true
    }

    fn recheck(&self, identity: &Identity, now_s: u64) -> Result<(), ErrorResponse> {
        if identity.is_current(now_s) { Ok(()) } else { Err(ErrorCode::TokenExpired.into()) }
    }

    fn passes_ambient(&self, _: &PassedHeaders) -> bool {
        false
    }

    fn passes_cookies(&self) -> bool {
        false
    }
}
