//! All of it together: the files as a configuration of rustls, and what happens when they change.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use ring::digest::{Context, Digest, SHA256};
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::server::ProducesTickets;
use throng_tls::{Acceptor, LeastVersion, provider};
use zeroize::Zeroizing;

use crate::by_name::ByName;
use crate::clients::{self, CA_SETTING, CRL_SETTING};
use crate::error::{self, CertificateError};
use crate::facts::{self, UserField};
use crate::pair::{Pair, Source};
use crate::tickets::{self, Tickets};
use crate::validations::{self, Validation};

/// The only protocol that is offered behind TLS.
const ALPN: &[u8] = b"http/1.1";

/// The files of one certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate with its chain, in PEM.
    pub certificate: PathBuf,
    /// Its key, in PEM, not encrypted.
    pub key: PathBuf,
    /// How errors name the setting with the certificate.
    pub certificate_setting: String,
    /// How errors name the setting with the key.
    pub key_setting: String,
    /// It is obtained by ACME: it may be missing, broken or expired, for a new one is on its way.
    pub is_of_acme: bool,
}

/// Demands on clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientSettings {
    /// The authorities whose certificates are accepted, in PEM.
    pub authorities: PathBuf,
    /// Lists of revoked certificates, in PEM.
    pub revocations: Option<PathBuf>,
    /// True if clients without a certificate are refused.
    pub is_required: bool,
    /// The field of the certificate that names the user, if one does.
    pub user: Option<UserField>,
}

/// Settings of a server's TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSettings {
    /// The certificates. The first is for clients that ask for no name, or for an unknown one.
    pub certificates: Vec<CertificateFiles>,
    /// The lowest version that is spoken.
    pub least_version: LeastVersion,
    /// How long a session can be resumed; zero for never.
    pub ticket_lifetime: Duration,
    /// A file with the keys of tickets; without, the server makes its own.
    pub ticket_keys: Option<PathBuf>,
    /// Whether and how clients show certificates.
    pub clients: Option<ClientSettings>,
}

/// One of the certificates that are shown now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateState {
    /// Its first DNS name, or else its common name.
    pub name: String,
    /// All DNS names that it is valid for, in lower case.
    pub names: Vec<String>,
    pub not_after: SystemTime,
    /// From when on it is valid.
    pub not_before: SystemTime,
    /// The file that it is in.
    pub path: PathBuf,
    pub is_of_acme: bool,
    /// True if its key is one of RSA, whose handshakes cost seven times as much.
    pub is_rsa: bool,
}

impl CertificateState {
    /// The time that is left at `now`; zero once it has expired.
    pub fn left(&self, now: SystemTime) -> Duration {
        self.not_after.duration_since(now).unwrap_or_default()
    }
}

/// The result of a look at the files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reload {
    /// They are as they were, or as broken as they were.
    Unchanged,
    /// They have changed, and hold from now on.
    Replaced,
    /// They have changed and cannot be used. The earlier ones stay.
    Kept(CertificateError),
}

/// The TLS of a server: an acceptor, and the files that it is made of.
#[derive(Debug)]
pub struct ServerTls {
    provider: Arc<CryptoProvider>,
    acceptor: Acceptor,
    state: Mutex<State>,
}

/// The contents of the files, ready to be used. Dropped, it changes nothing.
#[derive(Debug)]
#[must_use = "nothing is used before it is committed"]
pub struct Prepared<'t> {
    acceptor: &'t Acceptor,
    /// Locked, so that nothing else is read meanwhile.
    state: MutexGuard<'t, State>,
    /// The changes; `None` if there are none.
    new: Option<New>,
}

/// Takes effect once it is committed.
#[derive(Debug)]
struct New {
    settings: TlsSettings,
    /// That of the files.
    digest: [u8; 32],
    built: Built,
}

impl Prepared<'_> {
    /// Uses what the files have from now on. Returns whether that is a change.
    pub fn commit(mut self) -> bool {
        let Some(New { settings, digest, built }) = self.new.take() else { return false };
        let (config, certificates, tickets) = built;
        self.acceptor.replace(config);
        let replaced = self.state.reloads.replaced + 1;
        let reloads = Reloads { replaced, is_refused: false, ..self.state.reloads };
        let digest = Some(digest);
        *self.state = State { settings, digest, error: None, tickets, certificates, reloads };
        true
    }
}

/// The contents of the last read.
#[derive(Debug)]
struct State {
    settings: TlsSettings,
    /// Digest of the files at the last look; `None` after they could not be read.
    digest: Option<[u8; 32]>,
    /// The error of that look, if any, so that it is told once.
    error: Option<CertificateError>,
    tickets: Option<SealedWith>,
    certificates: Vec<CertificateState>,
    reloads: Reloads,
}

/// How often changed files were used, and how often they could not be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reloads {
    /// They were whole.
    pub replaced: u64,
    /// They were broken.
    pub refused: u64,
    /// True if they are broken now.
    pub is_refused: bool,
}

/// The tickets in use, and what their file had.
#[derive(Debug, Clone)]
struct SealedWith {
    tickets: Arc<Tickets>,
    digest: [u8; 32],
}

/// The contents of all files.
struct Contents(HashMap<PathBuf, Zeroizing<Vec<u8>>>);

impl ServerTls {
    /// Reads the files. An error means that TLS cannot be offered.
    pub fn load(settings: TlsSettings) -> Result<ServerTls, CertificateError> {
        let provider = Arc::new(provider());
        let contents = Contents::read(&settings)?;
        let (config, certificates, tickets) = build(&settings, &contents, &provider, Build::Start)?;
        let acceptor = Acceptor::new(config);
        let acceptor = match settings.clients.as_ref().and_then(|clients| clients.user) {
            Some(field) => acceptor.with_users(Arc::new(move |chain| facts::user(chain, field))),
            None => acceptor,
        };
        let digest = Some(contents.digest(&settings));
        let reloads = Reloads::default();
        let state = State { settings, digest, error: None, tickets, certificates, reloads };
        Ok(ServerTls { provider, acceptor, state: Mutex::new(state) })
    }

    /// Begins the handshakes, also after reloads.
    pub fn acceptor(&self) -> Acceptor {
        self.acceptor.clone()
    }

    /// The keys of session tickets that this server has made, for a process that takes over; empty
    /// if there are none.
    pub fn ticket_keys(&self) -> Zeroizing<Vec<u8>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.tickets.as_ref().map(|with| with.tickets.keys()).unwrap_or_default()
    }

    /// Seals and opens tickets with the keys of another process, if this one has no file of such.
    /// Bytes that are none change nothing.
    pub fn take_over_ticket_keys(&self, keys: &[u8]) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(with) = &state.tickets {
            with.tickets.take_over(keys);
        }
    }

    /// Reads the files again, and uses what they have if it has changed and is whole. Takes
    /// milliseconds.
    pub fn reload(&self) -> Reload {
        let known = self.last_error();
        match self.prepare() {
            Ok(prepared) => {
                if prepared.commit() {
                    Reload::Replaced
                } else {
                    Reload::Unchanged
                }
            }
            Err(error) if known.as_ref() == Some(&error) => Reload::Unchanged,
            Err(error) => Reload::Kept(error),
        }
    }

    /// Reads the files again. Their contents take effect once committed. Takes milliseconds.
    ///
    /// # Errors
    ///
    /// The files cannot be used, whether that is new or not.
    pub fn prepare(&self) -> Result<Prepared<'_>, CertificateError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let contents = match Contents::read(&state.settings) {
            Ok(contents) => contents,
            Err(error) => return Err(state.keep(None, error)),
        };
        let digest = contents.digest(&state.settings);
        if Some(digest) == state.digest {
            return match &state.error {
                Some(error) => Err(error.clone()),
                None => Ok(Prepared { acceptor: &self.acceptor, state, new: None }),
            };
        }
        let settings = state.settings.clone();
        match build(&settings, &contents, &self.provider, state.before()) {
            Ok(built) => {
                let new = Some(New { settings, digest, built });
                Ok(Prepared { acceptor: &self.acceptor, state, new })
            }
            Err(error) => Err(state.keep(Some(digest), error)),
        }
    }

    /// As [`ServerTls::prepare`], with these certificates in place of the earlier ones.
    ///
    /// # Errors
    ///
    /// The files cannot be used. If they are others than before, that changes nothing.
    pub fn prepare_for(
        &self,
        certificates: Vec<CertificateFiles>,
    ) -> Result<Prepared<'_>, CertificateError> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.settings.certificates == certificates {
            drop(state);
            return self.prepare();
        }
        let settings = TlsSettings { certificates, ..state.settings.clone() };
        let contents = Contents::read(&settings)?;
        let digest = contents.digest(&settings);
        let built = build(&settings, &contents, &self.provider, state.before())?;
        let new = Some(New { settings, digest, built });
        Ok(Prepared { acceptor: &self.acceptor, state, new })
    }

    /// Answers authorities that validate names with these certificates from now on, and with none
    /// before or any other.
    ///
    /// # Errors
    ///
    /// One of the keys cannot be used.
    pub fn answer_validations(&self, answers: Vec<Validation>) -> Result<(), CertificateError> {
        let config = validations::config(&self.provider, answers)?;
        self.acceptor.answer_validations(config);
        Ok(())
    }

    /// Why the files of now are not used; `None` if they are.
    pub fn last_error(&self) -> Option<CertificateError> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).error.clone()
    }

    /// The certificates that are shown now, the default one first.
    pub fn certificates(&self) -> Vec<CertificateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).certificates.clone()
    }

    /// The outcomes of the reloads so far.
    pub fn reloads(&self) -> Reloads {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).reloads
    }
}

impl State {
    /// The current configuration.
    fn before(&self) -> Build<'_> {
        Build::Reload { tickets: self.tickets.clone(), shown: &self.certificates }
    }

    /// Notes that the files cannot be used, and counts it once.
    fn keep(&mut self, digest: Option<[u8; 32]>, error: CertificateError) -> CertificateError {
        self.digest = digest;
        let is_known = self.error.as_ref() == Some(&error);
        self.error = Some(error.clone());
        self.reloads.is_refused = true;
        self.reloads.refused += u64::from(!is_known);
        error
    }
}

impl Contents {
    fn read(settings: &TlsSettings) -> Result<Contents, CertificateError> {
        let mut contents = Contents(HashMap::new());
        for (setting, path) in settings.files() {
            // An empty one is a certificate that is not there yet.
            let is_missing = settings.is_of_acme(path) && !path.exists();
            let bytes = if is_missing { Vec::new() } else { error::read(setting, path)? };
            contents.0.insert(path.to_owned(), Zeroizing::new(bytes));
        }
        Ok(contents)
    }

    fn of(&self, path: &Path) -> &Zeroizing<Vec<u8>> {
        &self.0[path]
    }

    /// A digest over all files, in the order of the settings.
    fn digest(&self, settings: &TlsSettings) -> [u8; 32] {
        let mut context = Context::new(&SHA256);
        for (_, path) in settings.files() {
            let bytes = self.of(path);
            context.update(&(bytes.len() as u64).to_be_bytes());
            context.update(bytes);
        }
        array(&context.finish())
    }
}

fn array(digest: &Digest) -> [u8; 32] {
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

impl TlsSettings {
    /// All files, each with the setting that names it.
    fn files(&self) -> impl Iterator<Item = (&str, &Path)> {
        let pairs = self.certificates.iter().flat_map(|files| {
            [
                (files.certificate_setting.as_str(), files.certificate.as_path()),
                (files.key_setting.as_str(), files.key.as_path()),
            ]
        });
        let clients = self.clients.iter().flat_map(|clients| {
            let lists = clients.revocations.as_deref().map(|path| (CRL_SETTING, path));
            [(CA_SETTING, clients.authorities.as_path())].into_iter().chain(lists)
        });
        let tickets = self.ticket_keys.as_deref().map(|path| (tickets::SETTING, path));
        pairs.chain(clients).chain(tickets)
    }
}

impl TlsSettings {
    fn is_of_acme(&self, path: &Path) -> bool {
        self.certificates.iter().any(|files| files.is_of_acme && files.certificate == path)
    }
}

/// The starting point of a configuration.
enum Build<'a> {
    /// There is nothing yet.
    Start,
    /// The current configuration.
    Reload { tickets: Option<SealedWith>, shown: &'a [CertificateState] },
}

impl Build<'_> {
    /// True if a certificate in this file may have expired: it takes the place of nothing better.
    fn may_have_expired(&self, files: &CertificateFiles, now: SystemTime) -> bool {
        let is_valid = |state: &CertificateState| {
            state.path == files.certificate && (state.not_before..=state.not_after).contains(&now)
        };
        match self {
            Build::Start => true,
            Build::Reload { shown, .. } => !shown.iter().any(is_valid),
        }
    }
}

type Built = (ServerConfig, Vec<CertificateState>, Option<SealedWith>);

/// A configuration of these contents. Tickets that are in use stay so if their file is the same.
fn build(
    settings: &TlsSettings,
    contents: &Contents,
    provider: &Arc<CryptoProvider>,
    before: Build<'_>,
) -> Result<Built, CertificateError> {
    let now = SystemTime::now();
    let (mut pairs, mut certificates) = (Vec::new(), Vec::new());
    for files in &settings.certificates {
        let source = Source {
            certificate_setting: &files.certificate_setting,
            certificate: &files.certificate,
            key_setting: &files.key_setting,
            key: &files.key,
        };
        let (certificate, key) = (contents.of(&files.certificate), contents.of(&files.key));
        let pair = match Pair::new(&source, certificate, key, provider) {
            // It is not there yet, or a new one replaces it.
            Err(_) if files.is_of_acme => continue,
            pair => pair?,
        };
        if !files.is_of_acme {
            pair.check_time(&source, now, before.may_have_expired(files, now))?;
        }
        certificates.push(state_of(&pair, files));
        pairs.push(pair);
    }
    let builder = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(settings.least_version.versions())
        .map_err(|error| CertificateError(format!("TLS cannot be offered: {error}")))?;
    let builder = match &settings.clients {
        None => builder.with_no_client_auth(),
        Some(clients) => {
            let authorities = (&*clients.authorities, contents.of(&clients.authorities).as_slice());
            let lists = clients.revocations.as_deref();
            let lists = lists.map(|path| (path, contents.of(path).as_slice()));
            let verifier = clients::verifier(provider, authorities, lists, clients.is_required)?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(ByName::new(&pairs)));
    config.alpn_protocols = vec![ALPN.to_vec()];
    // Each is a record that the client has to read, and one is enough to resume once.
    config.send_tls13_tickets = 1;
    let tickets = match before {
        Build::Start => None,
        Build::Reload { tickets, .. } => tickets,
    };
    let tickets = current_tickets(settings, contents, tickets)?;
    if let Some(sealed_with) = &tickets {
        config.ticketer = Arc::clone(&sealed_with.tickets) as Arc<dyn ProducesTickets>;
    }
    Ok((config, certificates, tickets))
}

fn state_of(pair: &Pair, files: &CertificateFiles) -> CertificateState {
    let facts = &pair.facts;
    CertificateState {
        name: facts.title.clone(),
        names: facts.dns_names.clone(),
        not_before: facts.not_before,
        not_after: facts.not_after,
        path: files.certificate.clone(),
        is_of_acme: files.is_of_acme,
        is_rsa: facts.is_rsa,
    }
}

/// The tickets to go on with; `None` if sessions are not resumed. Those of clients with
/// certificates never are: rustls would take the certificate out of the ticket, unchecked.
fn current_tickets(
    settings: &TlsSettings,
    contents: &Contents,
    tickets: Option<SealedWith>,
) -> Result<Option<SealedWith>, CertificateError> {
    let lifetime_s = settings.ticket_lifetime.as_secs() as u32;
    if lifetime_s == 0 || settings.clients.is_some() {
        return Ok(None);
    }
    let text = settings.ticket_keys.as_deref().map(|path| (path, contents.of(path)));
    let digest = array(&ring::digest::digest(&SHA256, text.map_or(&[], |(_, text)| text)));
    if let Some(tickets) = tickets.filter(|tickets| tickets.digest == digest) {
        return Ok(Some(tickets));
    }
    let tickets = match text {
        Some((path, text)) => Tickets::of_file(lifetime_s, path, text)?,
        None => Tickets::random(lifetime_s).ok_or_else(|| {
            CertificateError("the system has no random numbers for keys of tickets".into())
        })?,
    };
    Ok(Some(SealedWith { tickets: Arc::new(tickets), digest }))
}
