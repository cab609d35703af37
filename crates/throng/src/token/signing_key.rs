//! The key to sign a token with: of a file that the command names, or a secret of the settings.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Args;
use throng_access::algorithm::Algorithm;
use throng_access::token::{KeyPair, Signer};

use crate::access::{self, read_secret, without_line_end};
use crate::settings::{Settings, TokenKeyTable};

/// The flags that name the key.
#[derive(Debug, Args)]
pub(super) struct KeyArguments {
    /// Sign with the secret of this id in [[token-keys]], or of this key in [[apps]]; with a key
    /// file, the token's `kid`
    #[arg(long, value_name = "ID")]
    key_id: Option<String>,

    /// Sign with the secret in this file
    #[arg(long, value_name = "FILE", conflicts_with = "private_key_file")]
    secret_file: Option<PathBuf>,

    /// Sign with the private key in this file (PEM)
    #[arg(long, value_name = "FILE")]
    private_key_file: Option<PathBuf>,

    /// Signature algorithm: HS256, RS256 and so on [default: chosen by the type of key]
    #[arg(long, value_name = "NAME", value_parser = algorithm)]
    algorithm: Option<Algorithm>,
}

fn algorithm(name: &str) -> Result<Algorithm, String> {
    let names = Algorithm::ALL.map(Algorithm::name).join(", ");
    Algorithm::from_name(name).ok_or_else(|| format!("this is none of {names}"))
}

pub(super) enum SigningKey {
    Secret(Signer),
    Private(Box<KeyPair>),
}

impl SigningKey {
    /// The key that the flags name, or else a secret of the settings.
    pub(super) fn find(arguments: &KeyArguments, settings: &Settings) -> Result<SigningKey> {
        let (id, algorithm) = (arguments.key_id.as_deref(), arguments.algorithm);
        if let Some(path) = &arguments.private_key_file {
            let pem = String::from_utf8_lossy(&read(path)?).into_owned();
            let pair = KeyPair::from_pem(id, algorithm, &pem);
            let pair = pair.with_context(|| path.display().to_string())?;
            return Ok(SigningKey::Private(Box::new(pair)));
        }
        if let Some(path) = &arguments.secret_file {
            let bytes = read(path)?;
            let algorithm = algorithm.unwrap_or(Algorithm::Hs256);
            let signer = Signer::new(id, algorithm, without_line_end(&bytes));
            return Ok(SigningKey::Secret(signer.with_context(|| path.display().to_string())?));
        }
        let Some(table) = of_settings(arguments, settings)? else {
            return of_application(id.unwrap_or_default(), algorithm, settings);
        };
        let named = table.algorithm.as_deref().and_then(Algorithm::from_name);
        // Without a name, a secret of the settings is for HS256 only.
        let algorithm = named.unwrap_or(Algorithm::Hs256);
        if arguments.algorithm.is_some_and(|wanted| wanted != algorithm) {
            bail!("{} is for {}; leave out --algorithm", table.at, algorithm.name());
        }
        let signer = Signer::new(table.id.as_deref(), algorithm, &read_secret(table)?);
        Ok(SigningKey::Secret(signer.with_context(|| table.at.clone())?))
    }

    /// A token with these claims, which are a JSON object.
    pub(super) fn sign(&self, claims: &str) -> Result<String> {
        match self {
            SigningKey::Secret(signer) => Ok(signer.sign(claims)),
            SigningKey::Private(pair) => Ok(pair.sign(claims)?),
        }
    }
}

/// The table with a secret that has the id, or without an id the first one with a secret. `None` if
/// no table has the id.
fn of_settings<'a>(
    arguments: &KeyArguments,
    settings: &'a Settings,
) -> Result<Option<&'a TokenKeyTable>> {
    let mut secrets = settings
        .token_keys
        .iter()
        .filter(|table| table.secret.is_some() || table.secret_file.is_some());
    match &arguments.key_id {
        Some(id) => Ok(secrets.find(|table| table.id.as_ref() == Some(id))),
        None => secrets.next().map(Some).ok_or_else(|| {
            anyhow!(
                "the settings have no secret in [[token-keys]] to sign with; name the settings \
                 with --config, the key of an application with --key-id, or the key with \
                 --secret-file or --private-key-file"
            )
        }),
    }
}

/// The secret of tokens of the application that has this key.
fn of_application(
    key: &str,
    algorithm: Option<Algorithm>,
    settings: &Settings,
) -> Result<SigningKey> {
    let (secret, at) = access::token_secret(&settings.apps, key)?.ok_or_else(|| {
        anyhow!(
            "no secret in [[token-keys]] has the id {key:?}, and no key in [[apps]] with a \
             token-secret has this name; name the key with --secret-file or --private-key-file"
        )
    })?;
    if algorithm.is_some_and(|wanted| wanted != Algorithm::Hs256) {
        bail!("{at}: tokens of an application are signed with HS256; leave out --algorithm");
    }
    let signer = Signer::new(Some(key), Algorithm::Hs256, &secret);
    Ok(SigningKey::Secret(signer.context(at)?))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}
