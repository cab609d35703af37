//! `[[apps]]` as applications.

use std::path::PathBuf;
use std::sync::Arc;

use throng_access::algorithm::Algorithm;
use throng_access::apps::{APP_MEMBERS, APP_MEMBERS_MAX};
use throng_access::keys::Key;
use throng_access::{AppSettings, Apps};
use throng_pusher::App;

use super::key_file;
use super::token_keys::without_line_end;
use crate::settings::{AppKeyTable, AppTable, Secret, SettingsError};

/// The applications, and what should be changed about them although it works.
pub(crate) fn read(tables: &[AppTable], warnings: &mut Vec<String>) -> Result<Apps, SettingsError> {
    let apps = tables.iter().map(|table| read_one(table, warnings));
    let apps = apps.collect::<Result<Vec<_>, _>>()?;
    Apps::new(apps).map_err(|error| SettingsError(format!("[[apps]]: {error}")))
}

fn read_one(table: &AppTable, warnings: &mut Vec<String>) -> Result<AppSettings, SettingsError> {
    let fault = |predicate: &str| SettingsError(format!("{} {predicate}", table.at));
    let id = table.id.as_deref().ok_or_else(|| {
        fault("has no id; add one of digits, such as id = \"1\", which its paths have")
    })?;
    let key = table.own.key.as_deref().ok_or_else(|| {
        fault("has no key; add the public one that its clients show, such as key = \"app-key\"")
    })?;
    let own = secret(&table.at, &table.own, warnings)?;
    let app = App::new(id, key, &own, &table.prefix());
    let mut app = app.map_err(|error| fault(&error.to_string()))?;
    for (at, own) in further(table) {
        let name = own.key.as_deref().unwrap_or_default();
        let secret = secret(&at, own, warnings)?;
        let with_key = app.with_key(name, &secret, own.enabled.unwrap_or(true));
        app = with_key.map_err(|error| SettingsError(format!("{at} {error}")))?;
    }
    let origins = table.allowed_origins.as_ref().map_or_else(Vec::new, |list| list.0.clone());
    let app = app.with_history(table.history.unwrap_or(false));
    let max_members = table.max_members.map_or(APP_MEMBERS, |count| count.0);
    if !(1..=APP_MEMBERS_MAX).contains(&max_members) {
        return Err(fault(&format!("has max-members that is not 1 to {APP_MEMBERS_MAX}")));
    }
    Ok(AppSettings { app, origins, max_members })
}

/// The further keys of an application, and where they are.
fn further(table: &AppTable) -> impl Iterator<Item = (String, &AppKeyTable)> {
    let at = |nth| format!("{}, further key number {nth}", table.at);
    (1..).map(at).zip(&table.keys)
}

/// The keys of the tokens that applications sign for their clients.
pub(super) fn token_keys(
    tables: &[AppTable],
    warnings: &mut Vec<String>,
) -> Result<Vec<Arc<Key>>, SettingsError> {
    let mut all = Vec::new();
    for (table, at, own) in signing_tokens(tables) {
        let secret = token_secret_of(&at, own, warnings)?;
        let key = Key::from_secret(own.key.as_deref(), Algorithm::Hs256, &secret);
        let key = key.map_err(|error| SettingsError(format!("{at}, token-secret: {error}")))?;
        all.push(Arc::new(key.of_app(&table.prefix())));
    }
    Ok(all)
}

/// The secret of the tokens that name a key of an application, and its place in the settings;
/// `None` if there is no such key. To sign with.
pub(crate) fn token_secret(
    tables: &[AppTable],
    key: &str,
) -> Result<Option<(Vec<u8>, String)>, SettingsError> {
    let mut named = signing_tokens(tables).filter(|(.., own)| own.key.as_deref() == Some(key));
    let Some((_, at, own)) = named.next() else { return Ok(None) };
    Ok(Some((token_secret_of(&at, own, &mut Vec::new())?, at)))
}

/// The keys of applications that have secrets of tokens, with their tables and places.
fn signing_tokens(tables: &[AppTable]) -> impl Iterator<Item = (&AppTable, String, &AppKeyTable)> {
    let all = tables.iter().flat_map(|table| {
        let own = std::iter::once((table.at.clone(), &table.own));
        own.chain(further(table)).map(move |(at, own)| (table, at, own))
    });
    all.filter(|(.., own)| own.signs_tokens())
}

fn token_secret_of(
    at: &str,
    own: &AppKeyTable,
    warnings: &mut Vec<String>,
) -> Result<Vec<u8>, SettingsError> {
    one_secret(at, "token-secret", (&own.token_secret, &own.token_secret_file), warnings)
}

/// The secret of a key at `at`.
fn secret(
    at: &str,
    own: &AppKeyTable,
    warnings: &mut Vec<String>,
) -> Result<Vec<u8>, SettingsError> {
    one_secret(at, "secret", (&own.secret, &own.secret_file), warnings)
}

fn one_secret(
    at: &str,
    name: &str,
    (secret, file): (&Option<Secret>, &Option<PathBuf>),
    warnings: &mut Vec<String>,
) -> Result<Vec<u8>, SettingsError> {
    let fault = |predicate: String| Err(SettingsError(format!("{at} {predicate}")));
    match (secret, file) {
        (Some(secret), None) if secret.is_hidden() => {
            fault(format!("has no {name}: `throng check` does not print it"))
        }
        (Some(secret), None) => Ok(secret.0.as_bytes().to_vec()),
        (None, Some(path)) => {
            let file = key_file::read(at, &format!("{name}-file"), path)?;
            if file.is_readable_by_others {
                warnings.push(key_file::exposed(at, path));
            }
            Ok(without_line_end(&file.bytes).to_vec())
        }
        (None, None) => fault(format!("has no {name}; add {name}-file, or {name}")),
        (Some(_), Some(_)) => fault(format!("has two of {name}; leave out one of them")),
    }
}

#[cfg(test)]
mod tests {
    use crate::access::AccessSettings;
    use crate::settings::read_text;

    fn load(text: &str) -> Result<AccessSettings, String> {
        let settings = read_text(text).unwrap();
        AccessSettings::load(&settings).map_err(|error| error.to_string())
    }

    #[test]
    fn an_application_has_its_id_as_prefix_or_another() {
        let text = "
            [[apps]]
            id = '7'
            key = 'a'
            secret = '0123456789abcdef'
            [[apps]]
            id = '8'
            key = 'b'
            secret = '0123456789abcdef'
            prefix = 'shop/'
        ";
        let apps = load(text).unwrap().apps;
        let keys = "
            [[apps.keys]]
            key = 'older'
            secret = '0123456789abcdef'
            [[apps.keys]]
            key = 'oldest'
            secret = '0123456789abcdef'
            enabled = false
        ";
        let with_keys = load(&format!("{text}{keys}")).unwrap().apps;
        let of_last = with_keys.iter().last().unwrap().app().keys();
        let are_enabled: Vec<_> = of_last.iter().map(|key| key.is_enabled()).collect();
        assert_eq!(are_enabled, [true, true, false]);
        let prefixes: Vec<_> = apps.iter().map(|own| own.app().prefix().to_owned()).collect();
        assert_eq!(prefixes, ["7/", "shop/"]);
    }

    #[test]
    fn an_error_names_the_table_and_says_what_to_do() {
        let table = |rest: &str| format!("[[apps]]\nid = '1'\nkey = 'a'\n{rest}");
        let secret = "secret = '0123456789abcdef'\n";
        for (text, expected) in [
            ("[[apps]]".to_owned(), "has no id; add one of digits"),
            ("[[apps]]\nid = '1'".to_owned(), "has no key; add the public one"),
            (table(""), "has no secret; add secret-file"),
            (table("secret = 'hunter2'"), "has a secret of fewer than 16 bytes; `openssl rand"),
            (table("secret = 'not shown'"), "has no secret: `throng check` does not print it"),
            (table(&format!("{secret}secret-file = 'a'")), "has two of secret;"),
            (table(&format!("{secret}token-secret = 'short'")), ", token-secret: a secret for"),
            (
                table(&format!("{secret}token-secret = 'a'\ntoken-secret-file = 'a'")),
                "has two of token-secret;",
            ),
            (
                table(&format!(
                    "{secret}keys = [{{ key = 'b', {0}, token-secret = 'a' }}]",
                    secret.trim()
                )),
                ", further key number 1, token-secret: a secret for this algorithm needs",
            ),
            (table(&format!("{secret}prefix = 'shop'")), "has a prefix that is not a name"),
            (table(&format!("{secret}max-members = 0")), "has max-members that is not 1 to 5000"),
            (table(&format!("{secret}max-members = '5001'")), "has max-members that is not"),
            (
                table(&format!("{secret}keys = [{{ key = 'b' }}]")),
                ", further key number 1 has no secret; add secret-file",
            ),
            (
                table(&format!("{secret}keys = [{{ {}, key = 'a' }}]", secret.trim())),
                ", further key number 1 has the same key twice",
            ),
            (table("secret-file = 'no/such'"), ": secret-file = \"no/such\" cannot be read"),
        ] {
            let error = load(&text).unwrap_err();
            let rest = error.strip_prefix("throng.toml, [[apps]] number 1");
            assert!(rest.is_some_and(|rest| rest.trim_start().starts_with(expected)), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
        let error = load(&table(&format!("{secret}{}", table(secret)))).unwrap_err();
        assert_eq!(error, "[[apps]]: two applications have the same id");
    }
}
