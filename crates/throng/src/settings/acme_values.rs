//! The grammar of settings about ACME.

use std::fmt;
use std::str::FromStr;

use throng_acme::{LETS_ENCRYPT, LETS_ENCRYPT_STAGING};
use throng_outbound::Endpoint;
use throng_units::{Invalid, Value};

/// The URL of the directory of a certificate authority, or a word for a well-known one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AcmeDirectory(String);

/// The words, and what they stand for.
const WELL_KNOWN: [(&str, &str); 2] =
    [("letsencrypt", LETS_ENCRYPT), ("letsencrypt-staging", LETS_ENCRYPT_STAGING)];

impl AcmeDirectory {
    /// The URL of the directory.
    pub(crate) fn url(&self) -> &str {
        let known = WELL_KNOWN.iter().find(|(word, _)| *word == self.0);
        known.map_or(&self.0, |(_, url)| url)
    }
}

impl Value for AcmeDirectory {
    const PLACEHOLDER: &'static str = "DIRECTORY";
    const EXPECTED: &'static str =
        "\"letsencrypt\", \"letsencrypt-staging\", or the URL of a directory of ACME with https";
}

impl FromStr for AcmeDirectory {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<AcmeDirectory, Invalid> {
        let text = text.trim();
        let word = text.to_ascii_lowercase();
        if WELL_KNOWN.iter().any(|(known, _)| *known == word) {
            return Ok(AcmeDirectory(word));
        }
        let is_url = text.parse::<Endpoint>().is_ok();
        let directory = is_url.then(|| AcmeDirectory(text.to_owned()));
        directory.ok_or_else(|| Invalid::new(text, AcmeDirectory::EXPECTED))
    }
}

impl fmt::Display for AcmeDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An e-mail address, or `none`. Whether it exists is for the authority to find out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Email(pub(crate) Option<String>);

impl Value for Email {
    const PLACEHOLDER: &'static str = "EMAIL";
    const EXPECTED: &'static str = "an e-mail address, like admin@example.com, or \"none\"";
}

impl FromStr for Email {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Email, Invalid> {
        let text = text.trim();
        if text.eq_ignore_ascii_case("none") {
            return Ok(Email(None));
        }
        // Several, or headers, would be separated by one of these.
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !b",?&<>".contains(&byte);
        let parts = text.split_once('@').filter(|(name, host)| {
            !name.is_empty() && host.contains('.') && !host.contains('@') && host.len() < 254
        });
        let email = parts.filter(|_| text.bytes().all(is_plain));
        email.map(|_| Email(Some(text.into()))).ok_or_else(|| Invalid::new(text, Email::EXPECTED))
    }
}

impl fmt::Display for Email {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_deref().unwrap_or("none"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_a_word_or_a_url() {
        let url = |text: &str| text.parse::<AcmeDirectory>().map(|one| one.url().to_owned());
        assert_eq!(url("LetsEncrypt"), Ok(LETS_ENCRYPT.into()));
        assert_eq!(url("https://ca.example/dir"), Ok("https://ca.example/dir".into()));
        for bad in ["", "ca.example", "http://ca.example/dir", "letsencrypt2"] {
            assert!(bad.parse::<AcmeDirectory>().is_err(), "{bad}");
        }
    }

    #[test]
    fn an_email_address_is_one_plain_address() {
        assert_eq!("a.b+c@example.org".parse(), Ok(Email(Some("a.b+c@example.org".into()))));
        assert_eq!("None".parse(), Ok(Email(None)));
        for bad in ["", "a", "@example.org", "a@b", "a@b.c,d@e.f", "a@b.c?subject=x", "a @b.c"] {
            assert!(bad.parse::<Email>().is_err(), "{bad}");
        }
    }
}
