//! One certificate, from the order to its file.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use instant_acme::{
    Account, AccountBuilder, AuthorizationStatus, Challenge, ChallengeType, Error, Identifier,
    NewAccount, NewOrder, Order, OrderStatus, Problem, RetryPolicy,
};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use throng_outbound::Trust;

use crate::client::{AskedWait, AuthorityClient};
use crate::error::{AcmeError, OrderFailure, sorted, text};
use crate::server::ChallengeResponder;
use crate::settings::AcmeSettings;
use crate::store::{Store, validity};
use crate::validation::ChallengeCertificate;

/// How often, and how long, the authority is asked whether it has validated a name or signed.
const POLLS: RetryPolicy = RetryPolicy::new()
    .initial_delay(Duration::from_millis(500))
    .backoff(1.5)
    .timeout(Duration::from_secs(120));

/// The most time that an order may take.
const ORDER_TIME_MAX: Duration = Duration::from_secs(10 * 60);

pub(crate) struct Orders {
    pub(crate) settings: AcmeSettings,
    pub(crate) store: Store,
    pub(crate) trust: Trust,
    pub(crate) server: Arc<dyn ChallengeResponder>,
    pub(crate) asked: AskedWait,
    /// True if the authority names windows for renewals. Orders then name the certificate that they
    /// replace (RFC 9773 section 5).
    pub(crate) names_windows: bool,
    account: Option<Account>,
}

impl Orders {
    pub(crate) fn new(
        settings: AcmeSettings,
        store: Store,
        trust: Trust,
        server: Arc<dyn ChallengeResponder>,
    ) -> Orders {
        let asked = AskedWait::default();
        Orders { settings, store, trust, server, asked, names_windows: false, account: None }
    }

    /// Obtains a certificate for `name`, and stores it.
    pub(crate) async fn obtain(&mut self, name: &str) -> Result<(), OrderFailure> {
        self.forget_asked();
        let obtained = tokio::time::timeout(ORDER_TIME_MAX, self.try_to_obtain(name)).await;
        // Also after a failure: what the authority was server is of no use any more.
        self.server.answer(Vec::new()).map_err(own)?;
        let late = || AcmeError::Unreachable("the order took more than ten minutes".into());
        obtained.unwrap_or_else(|_| Err(late())).map_err(|error| {
            let not_before = *self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            OrderFailure { error, not_before }
        })
    }

    async fn try_to_obtain(&mut self, name: &str) -> Result<(), AcmeError> {
        self.store.prepare()?;
        let mut order = self.new_order(name).await?;
        self.validate(&mut order, name).await?;
        let key = KeyPair::generate().map_err(|_| random())?;
        let mut params = CertificateParams::new(vec![name.to_owned()])
            .map_err(|_| AcmeError::Own(format!("{name} is no DNS name")))?;
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&key).map_err(|_| random())?;
        order.finalize_csr(request.der()).await.map_err(sorted)?;
        let chain = order.poll_certificate(&POLLS).await.map_err(sorted)?;
        if validity(chain.as_bytes()).is_none() {
            return Err(AcmeError::Refused("it has sent something that is no certificate".into()));
        }
        Ok(self.store.keep_certificate(name, &chain, &key.serialize_pem())?)
    }

    /// Orders a certificate for `name`. Names the certificate that it replaces if the authority
    /// supports renewal information.
    async fn new_order(&mut self, name: &str) -> Result<Order, AcmeError> {
        let account = match self.known_account().await? {
            Some(account) => account,
            None => self.new_account().await?,
        };
        let names = [Identifier::Dns(name.to_owned())];
        let replaced = if self.names_windows { self.store.identifier(name)? } else { None };
        let is_renewal = replaced.is_some();
        let ordered = match replaced {
            Some(replaced) => account.new_order(&NewOrder::new(&names).replaces(replaced)).await,
            None => account.new_order(&NewOrder::new(&names)).await,
        };
        match ordered {
            Err(Error::Api(problem)) if is_gone(&problem) => {
                tracing::warn!("the certificate authority no longer knows the ACME account");
                let account = self.new_account().await?;
                account.new_order(&NewOrder::new(&names)).await
            }
            // The certificate before may be of another account, or replaced already, and some
            // authorities do not repeat its name in their answer, which the library refuses. It is
            // a hint, and no reason to be without a certificate.
            Err(error) if is_renewal && !is_limit(&error) => {
                tracing::debug!("ordering without the certificate before: {}", sorted(error));
                self.forget_asked();
                account.new_order(&NewOrder::new(&names)).await
            }
            order => order,
        }
        .map_err(sorted)
    }

    /// A wait that the authority has asked for before does not belong to what follows.
    fn forget_asked(&self) {
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The account of this run, or the stored one.
    pub(crate) async fn known_account(&mut self) -> Result<Option<Account>, AcmeError> {
        if self.account.is_none()
            && let Some(credentials) = self.store.account()?
        {
            let restored = self.builder().from_credentials(credentials).await;
            self.account = Some(restored.map_err(sorted)?);
        }
        Ok(self.account.clone())
    }

    async fn new_account(&mut self) -> Result<Account, AcmeError> {
        let contact = self.settings.email.as_ref().map(|email| format!("mailto:{email}"));
        let contact: Vec<&str> = contact.as_deref().into_iter().collect();
        let new = NewAccount {
            contact: &contact,
            terms_of_service_agreed: true,
            only_return_existing: false,
        };
        let directory = self.settings.directory.clone();
        let created = self.builder().create(&new, directory, None).await;
        let (account, credentials) = created.map_err(sorted)?;
        self.store.keep_account(&credentials)?;
        Ok(self.account.insert(account).clone())
    }

    fn builder(&self) -> AccountBuilder {
        let client = AuthorityClient { trust: self.trust.clone(), asked: Arc::clone(&self.asked) };
        Account::builder_with_http(Box::new(client))
    }

    /// Shows the authority that the name leads here, unless it knows already.
    async fn validate(&self, order: &mut Order, name: &str) -> Result<(), AcmeError> {
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization.map_err(sorted)?;
            if authorization.status == AuthorizationStatus::Valid {
                continue;
            }
            let mut challenge =
                authorization.challenge(ChallengeType::TlsAlpn01).ok_or_else(|| {
                    AcmeError::Refused("it does not validate names by tls-alpn-01".into())
                })?;
            let digest = challenge.key_authorization().digest();
            self.server
                .answer(vec![ChallengeCertificate::new(name, digest.as_ref())?])
                .map_err(AcmeError::Own)?;
            challenge.set_ready().await.map_err(sorted)?;
        }
        match order.poll_ready(&POLLS).await.map_err(sorted)? {
            OrderStatus::Ready | OrderStatus::Valid => Ok(()),
            _ => Err(self.why_invalid(order).await),
        }
    }

    /// Why the authority has not validated the name: the order itself does not say.
    async fn why_invalid(&self, order: &mut Order) -> AcmeError {
        let mut authorizations = order.authorizations();
        while let Some(Ok(mut authorization)) = authorizations.next().await {
            let Ok(state) = authorization.refresh().await else { continue };
            let mut errors =
                state.challenges.iter().filter_map(|one: &Challenge| one.error.as_ref());
            if let Some(problem) = errors.next() {
                return AcmeError::Refused(text(problem));
            }
        }
        AcmeError::Refused("it could not validate the name, and does not say why".into())
    }
}

fn own(message: String) -> OrderFailure {
    OrderFailure { error: AcmeError::Own(message), not_before: None }
}

fn is_gone(problem: &Problem) -> bool {
    problem.r#type.as_deref() == Some("urn:ietf:params:acme:error:accountDoesNotExist")
}

fn is_limit(error: &Error) -> bool {
    let Error::Api(problem) = error else { return false };
    problem.r#type.as_deref() == Some("urn:ietf:params:acme:error:rateLimited")
}

fn random() -> AcmeError {
    AcmeError::Own("cannot make a key: the system has no random bytes".into())
}
