//! `[[token-keys]]` as keys.

use std::path::Path;
use std::sync::Arc;

use throng_access::algorithm::Algorithm;
use throng_access::keys::{Jwks, JwksSource, Key, KeyError};

use super::key_file;
use crate::settings::{Secret, SettingsError, TokenKeyTable};

/// The keys of all tables. `warnings` gets what should be changed.
pub(crate) fn read(
    tables: &[TokenKeyTable],
    warnings: &mut Vec<String>,
) -> Result<Vec<Arc<Key>>, SettingsError> {
    let mut keys = Vec::new();
    for table in tables {
        keys.extend(read_one(table, warnings)?);
    }
    Ok(keys)
}

/// Where a table has its key.
enum Source<'a> {
    Secret(&'a str),
    SecretFile(&'a Path),
    PublicKey(&'a str),
    PublicKeyFile(&'a Path),
    JwksFile(&'a Path),
}

fn read_one(
    table: &TokenKeyTable,
    warnings: &mut Vec<String>,
) -> Result<Vec<Arc<Key>>, SettingsError> {
    let at = &table.at;
    let algorithm = algorithm(table)?;
    let key = match source(table)? {
        Source::Secret(secret) => of_secret(table, algorithm, secret.as_bytes())?,
        Source::SecretFile(path) => {
            let file = key_file::read(at, "secret-file", path)?;
            if file.is_readable_by_others {
                warnings.push(key_file::exposed(at, path));
            }
            of_secret(table, algorithm, without_line_end(&file.bytes))?
        }
        Source::PublicKey(pem) => of_pem(table, algorithm, "public-key", pem)?,
        Source::PublicKeyFile(path) => {
            let file = key_file::read(at, "public-key-file", path)?;
            let pem = String::from_utf8_lossy(&file.bytes);
            of_pem(table, algorithm, &format!("public-key-file {}", path.display()), &pem)?
        }
        Source::JwksFile(path) => return of_jwks(table, path, warnings),
    };
    Ok(vec![Arc::new(key)])
}

/// The one source that the table names.
fn source(table: &TokenKeyTable) -> Result<Source<'_>, SettingsError> {
    let named = [
        table.secret.as_ref().map(|secret| Source::Secret(&secret.0)),
        table.secret_file.as_deref().map(Source::SecretFile),
        table.public_key.as_deref().map(Source::PublicKey),
        table.public_key_file.as_deref().map(Source::PublicKeyFile),
        table.jwks_file.as_deref().map(Source::JwksFile),
    ];
    let mut named = named.into_iter().flatten();
    match (named.next(), named.next()) {
        (Some(source), None) => Ok(source),
        (None, _) => Err(fault(
            table,
            "has no key; add one of secret-file, secret, public-key-file, public-key and jwks-file",
        )),
        (Some(_), Some(_)) => Err(fault(
            table,
            "has more than one key; write a table for each of secret-file, secret, \
             public-key-file, public-key and jwks-file",
        )),
    }
}

fn algorithm(table: &TokenKeyTable) -> Result<Option<Algorithm>, SettingsError> {
    let Some(name) = &table.algorithm else { return Ok(None) };
    let algorithm = Algorithm::from_name(name).ok_or_else(|| {
        let names = Algorithm::ALL.map(Algorithm::name).join(", ");
        fault(table, &format!("has the unknown algorithm {name:?}; use one of {names}"))
    })?;
    Ok(Some(algorithm))
}

fn of_secret(
    table: &TokenKeyTable,
    algorithm: Option<Algorithm>,
    secret: &[u8],
) -> Result<Key, SettingsError> {
    if table.secret.as_ref().is_some_and(Secret::is_hidden) {
        return Err(fault(table, "has no secret: `throng check` does not print it; add it again"));
    }
    let algorithm = algorithm.unwrap_or(Algorithm::Hs256);
    Key::from_secret(table.id.as_deref(), algorithm, secret).map_err(|error| match error {
        KeyError::ShortSecret(bytes) => fault(
            table,
            &format!(
                "has a secret of {} bytes, and {} needs at least {bytes}; `openssl rand -hex 32` \
                 makes one of 64",
                secret.len(),
                algorithm.name()
            ),
        ),
        KeyError::WrongFamily => fault(
            table,
            &format!(
                "has a secret, and {} works with public keys; use public-key-file, or HS256",
                algorithm.name()
            ),
        ),
        KeyError::PublicAsSecret => fault(
            table,
            "has a public key or a certificate as its secret, with which everyone could sign \
             tokens; use public-key-file",
        ),
        other => fault(table, &format!("is invalid: {other}")),
    })
}

fn of_pem(
    table: &TokenKeyTable,
    algorithm: Option<Algorithm>,
    what: &str,
    pem: &str,
) -> Result<Key, SettingsError> {
    Key::from_pem(table.id.as_deref(), algorithm, pem).map_err(|error| match error {
        KeyError::PrivateKey => fault(
            table,
            &format!(
                "has a private key in {what}, which the server must not have; \
                 `openssl pkey -in KEY -pubout` prints the public one"
            ),
        ),
        KeyError::WrongFamily => fault(
            table,
            &format!(
                "has a key in {what} that does not work with its algorithm; leave out `algorithm`, \
                 or name that of the key"
            ),
        ),
        other => fault(table, &format!("has an unusable key in {what}: {other}")),
    })
}

fn of_jwks(
    table: &TokenKeyTable,
    path: &Path,
    warnings: &mut Vec<String>,
) -> Result<Vec<Arc<Key>>, SettingsError> {
    if table.id.is_some() || table.algorithm.is_some() {
        let message = "has a jwks-file, whose keys name their ids and algorithms; leave out `id` \
                       and `algorithm`";
        return Err(fault(table, message));
    }
    let file = key_file::read(&table.at, "jwks-file", path)?;
    let shown = path.display();
    let jwks = Jwks::parse(&file.bytes, JwksSource::File)
        .map_err(|error| fault(table, &format!("has an unusable jwks-file {shown}: {error}")))?;
    if jwks.left_out > 0 {
        let at = &table.at;
        let count = jwks.left_out;
        warnings.push(format!("{at}: {count} of the keys in {shown} cannot verify tokens"));
    }
    if file.is_readable_by_others && jwks.keys.iter().any(|key| key.is_secret()) {
        warnings.push(key_file::exposed(&table.at, path));
    }
    Ok(jwks.keys)
}

/// The bytes of the secret that a table has or names. To sign with.
pub(crate) fn read_secret(table: &TokenKeyTable) -> Result<Vec<u8>, SettingsError> {
    match source(table)? {
        Source::Secret(secret) => Ok(secret.as_bytes().to_vec()),
        Source::SecretFile(path) => {
            let file = key_file::read(&table.at, "secret-file", path)?;
            Ok(without_line_end(&file.bytes).to_vec())
        }
        _ => Err(fault(table, "has no secret")),
    }
}

/// A file without the line feed that editors and commands add to its end.
pub(crate) fn without_line_end(bytes: &[u8]) -> &[u8] {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    bytes.strip_suffix(b"\r").unwrap_or(bytes)
}

fn fault(table: &TokenKeyTable, predicate: &str) -> SettingsError {
    SettingsError(format!("{} {predicate}", table.at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::AccessSettings;
    use crate::settings::read_text;

    const SECRET: &str = "0123456789abcdef0123456789abcdef";
    const PUBLIC: &str = include_str!("../../../throng-access/tests/fixtures/es256.pem");

    fn load(text: &str) -> Result<AccessSettings, String> {
        let settings = read_text(text).unwrap();
        AccessSettings::load(&settings).map_err(|error| error.to_string())
    }

    #[test]
    fn a_table_has_one_key() {
        let text = format!(
            "[[token-keys]]\nid = 'a'\nsecret = '{SECRET}'\n\
             [[token-keys]]\nid = 'b'\npublic-key = \"\"\"{PUBLIC}\"\"\"",
        );
        let keys = load(&text).unwrap().token_keys;
        let ids: Vec<_> = keys.iter().map(|key| (key.id(), key.is_secret())).collect();
        assert_eq!(ids, [(Some("a"), true), (Some("b"), false)]);
    }

    #[test]
    fn an_error_names_the_table_and_says_what_to_do() {
        let table = |rest: &str| format!("[[token-keys]]\n{rest}");
        for (text, expected) in [
            (table(""), "has no key; add one of secret-file, secret"),
            (
                table(&format!("secret = '{SECRET}'\npublic-key = 'a'")),
                "has more than one key; write a table for each",
            ),
            (
                table("secret = 'hunter2'"),
                "has a secret of 7 bytes, and HS256 needs at least 32; `openssl rand -hex 32`",
            ),
            (
                table(&format!("secret = '{SECRET}'\nalgorithm = 'HS512'")),
                "has a secret of 32 bytes, and HS512 needs at least 64",
            ),
            (
                table(&format!("secret = '{SECRET}'\nalgorithm = 'ES256'")),
                "has a secret, and ES256 works with public keys; use public-key-file, or HS256",
            ),
            (
                table(&format!("secret = '{SECRET}'\nalgorithm = 'none'")),
                "has the unknown algorithm \"none\"; use one of HS256, HS384",
            ),
            (
                table(&format!("secret = \"\"\"{PUBLIC}\"\"\"")),
                "has a public key or a certificate as its secret",
            ),
            (table("secret = 'not shown'"), "has no secret: `throng check` does not print it"),
            (table("public-key = 'a'"), "has an unusable key in public-key: this is not a public"),
            (
                table("public-key = '-----BEGIN PRIVATE KEY-----'"),
                "has a private key in public-key, which the server must not have",
            ),
            (
                table(&format!("public-key = \"\"\"{PUBLIC}\"\"\"\nalgorithm = 'RS256'")),
                "has a key in public-key that does not work with its algorithm; leave out",
            ),
            (table("jwks-file = 'a'\nid = 'b'"), "has a jwks-file, whose keys name their ids"),
            (
                table("secret-file = 'no/such/file'"),
                ": secret-file = \"no/such/file\" cannot be read: no such file or directory",
            ),
            (table("jwks-file = '/'"), ": jwks-file = \"/\" cannot be read: is a directory"),
        ] {
            let error = load(&text).unwrap_err();
            let rest = error.strip_prefix("throng.toml, [[token-keys]] number 1");
            assert!(rest.is_some_and(|rest| rest.trim_start().starts_with(expected)), "{error}");
            assert!(!error.contains("hunter2") && !error.contains(SECRET), "{error}");
        }
        let many = format!("[[token-keys]]\nsecret = '{SECRET}'\n").repeat(65);
        let error = load(&many).unwrap_err();
        assert_eq!(error, "[[token-keys]]: there are more than 64 keys for tokens");
    }

    #[test]
    fn a_line_feed_at_the_end_of_a_file_does_not_count() {
        for (text, expected) in [("a\n", "a"), ("a\r\n", "a"), ("a", "a"), ("a\n\n", "a\n")] {
            assert_eq!(without_line_end(text.as_bytes()), expected.as_bytes());
        }
    }
}
