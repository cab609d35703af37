//! The identity of a client: by a verified token, by its certificate, or by the application's word.

use std::fmt;
use std::sync::Arc;

use ring::digest::{SHA256, digest};

use crate::grants::Grants;
use crate::keys::Fingerprint;

/// The id of a token, `jti`, as a hash of 128 bits: ids may be long, and are only compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenId(pub(crate) [u8; 16]);

impl TokenId {
    /// The hash of a `jti`.
    pub fn of(id: &str) -> TokenId {
        let mut hash = [0; 16];
        hash.copy_from_slice(&digest(&SHA256, id.as_bytes()).as_ref()[..16]);
        TokenId(hash)
    }

    /// The id in the place of a token's for all clients of an application.
    pub(crate) fn of_app(id: &str) -> TokenId {
        TokenId::of(&format!("app:{id}"))
    }

    /// The inverse of `to_string`: 32 hexadecimal digits.
    pub fn from_digits(digits: &str) -> Option<TokenId> {
        let is_form = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(digits, 16).ok().filter(|_| is_form)?;
        Some(TokenId(number.to_be_bytes()))
    }
}

/// The hash in hexadecimal digits: the `jti` itself is not known any more.
impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// Separates the display name from the member's `info`. No name contains it.
const BEFORE_INFO: char = '\0';

/// A user, the name for people, and what the user shows as a member of channels, as an [`Identity`]
/// has them: in one text, so that a token with the user alone takes no more memory.
pub(super) fn joined(user: &str, name: Option<&str>, info: Option<&str>) -> (Box<str>, u16) {
    let info = info.map_or(String::new(), |info| format!("{BEFORE_INFO}{info}"));
    let rest = [name.unwrap_or_default(), &info].concat();
    let bytes = u16::try_from(rest.len()).unwrap_or_default();
    let rest = if bytes == 0 { "" } else { &*rest };
    ([user, rest].concat().into_boxed_str(), bytes)
}

/// A verified identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The user, and behind that the name for people and what the user shows as a member, if the
    /// token has these.
    pub(crate) names: Option<Box<str>>,
    /// The length of all behind the user.
    pub(crate) name_bytes: u16,
    pub(crate) token_id: Option<TokenId>,
    pub(crate) grants: Arc<Grants>,
    /// The key that signed it.
    pub(crate) key: Fingerprint,
    pub(crate) expires_s: u32,
    pub(crate) valid_from_s: u32,
    pub(crate) issued_s: u32,
    /// The application was asked about the token, and has not refused it.
    pub(crate) is_narrowed: bool,
}

const _: () = assert!(size_of::<Identity>() == 72);

impl Identity {
    /// An identity by the application's word of `issued_s`. It is believed until `expires_s`; both
    /// are in seconds since 1970.
    pub fn of_application(
        user: Option<Box<str>>,
        grants: Arc<Grants>,
        issued_s: u32,
        expires_s: u32,
    ) -> Identity {
        let (token_id, key, valid_from_s) = (None, Fingerprint::NONE, 0);
        Identity {
            names: user,
            name_bytes: 0,
            token_id,
            grants,
            key,
            expires_s,
            valid_from_s,
            issued_s,
            is_narrowed: false,
        }
    }

    /// A client of the application with this id, for as long as its connection stands.
    pub(crate) fn of_app(id: &str, user: Option<Box<str>>, grants: Arc<Grants>) -> Identity {
        let identity = Identity::of_application(user, grants, 0, u32::MAX);
        Identity { token_id: Some(TokenId::of_app(id)), ..identity }
    }

    /// An identity by a certificate that is valid between these times, in seconds since 1970.
    pub(crate) fn of_certificate(user: Box<str>, from_s: u32, until_s: u32) -> Identity {
        let identity = Identity::of_application(Some(user), Arc::default(), from_s, until_s);
        Identity { key: Fingerprint::CERTIFICATE, valid_from_s: from_s, ..identity }
    }

    /// This token's identity for a client whose certificate names `user` until `until_s`, in
    /// seconds since 1970.
    pub(crate) fn certified(&self, user: &str, until_s: u32) -> Identity {
        let expires_s = self.expires_s.min(until_s);
        let (names, name_bytes) = joined(user, self.name(), self.info());
        Identity { names: Some(names), name_bytes, expires_s, ..self.clone() }
    }

    /// This token's identity as far as the application agrees: it may restrict the grants, `None`
    /// if it does not, and believes it until `expires_s`, in seconds since 1970.
    #[must_use]
    pub fn narrowed(&self, grants: Option<&Arc<Grants>>, expires_s: u32) -> Identity {
        let narrowed = |limit: &Arc<Grants>| Arc::new(self.grants.narrowed_to(limit));
        Identity {
            grants: grants.map_or_else(|| Arc::clone(&self.grants), narrowed),
            expires_s: self.expires_s.min(expires_s),
            is_narrowed: true,
            ..self.clone()
        }
    }

    /// True if the application was asked about the token, and has let it in.
    pub fn is_narrowed(&self) -> bool {
        self.is_narrowed
    }

    /// True if the application says so, and no token.
    pub fn is_of_application(&self) -> bool {
        self.key == Fingerprint::NONE
    }

    /// The application whose client it is, as its sessions know it.
    pub(crate) fn app(&self) -> Option<TokenId> {
        self.token_id.filter(|_| self.is_of_application())
    }

    /// True if a certificate says so, and no token.
    pub(crate) fn is_of_certificate(&self) -> bool {
        self.key == Fingerprint::CERTIFICATE
    }

    /// The user, `sub`.
    pub fn user(&self) -> Option<&str> {
        Some(self.split_names()?.0)
    }

    /// The name of the user for people, `name`. It is no proof of anything.
    pub fn name(&self) -> Option<&str> {
        let rest = self.split_names()?.1;
        let name = rest.split_once(BEFORE_INFO).map_or(rest, |(name, _)| name);
        Some(name).filter(|name| !name.is_empty())
    }

    /// The user's `info`, which other members of channels see: a JSON object on one line.
    pub fn info(&self) -> Option<&str> {
        Some(self.split_names()?.1.split_once(BEFORE_INFO)?.1)
    }

    /// The same with other information for the other members of channels, if there is any.
    #[must_use]
    pub fn with_info(self, info: Option<&str>) -> Identity {
        let (Some(user), Some(_)) = (self.user(), info) else { return self };
        let (names, name_bytes) = joined(user, self.name(), info);
        Identity { names: Some(names), name_bytes, ..self }
    }

    fn split_names(&self) -> Option<(&str, &str)> {
        let names = self.names.as_deref()?;
        names.split_at_checked(names.len().saturating_sub(usize::from(self.name_bytes)))
    }

    /// The id, `jti`.
    pub fn token_id(&self) -> Option<TokenId> {
        self.token_id
    }

    /// The granted permissions.
    pub fn grants(&self) -> &Arc<Grants> {
        &self.grants
    }

    /// From this moment on the token is refused, in seconds since 1970: `exp` and the leeway.
    pub fn expires_s(&self) -> u32 {
        self.expires_s
    }

    /// When it was issued, `iat`, in seconds since 1970. 0 if the token does not say, so that it
    /// counts as the oldest.
    pub fn issued_s(&self) -> u32 {
        self.issued_s
    }

    /// True if the token may be used at `now_s`.
    pub fn is_current(&self, now_s: u64) -> bool {
        (u64::from(self.valid_from_s)..u64::from(self.expires_s)).contains(&now_s)
    }
}
