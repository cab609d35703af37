//! `[[apps]]` as applications.

use throng_access::Apps;
use throng_pusher::App;

use super::key_file;
use super::token_keys::without_line_end;
use crate::settings::{AppTable, SettingsError};

/// The applications, and what should be changed about them although it works.
pub(crate) fn read(tables: &[AppTable], warnings: &mut Vec<String>) -> Result<Apps, SettingsError> {
    let apps = tables.iter().map(|table| read_one(table, warnings));
    let apps = apps.collect::<Result<_, _>>()?;
    Apps::new(apps).map_err(|error| SettingsError(format!("[[apps]]: {error}")))
}

fn read_one(table: &AppTable, warnings: &mut Vec<String>) -> Result<App, SettingsError> {
    let fault = |predicate: &str| SettingsError(format!("{} {predicate}", table.at));
    let id = table.id.as_deref().ok_or_else(|| {
        fault("has no id; add one of digits, such as id = \"1\", which its paths have")
    })?;
    let key = table.key.as_deref().ok_or_else(|| {
        fault("has no key; add the public one that its clients show, such as key = \"app-key\"")
    })?;
    let secret = match (&table.secret, &table.secret_file) {
        (Some(secret), None) if secret.is_hidden() => {
            return Err(fault("has no secret: `throng check` does not print it"));
        }
        (Some(secret), None) => secret.0.as_bytes().to_vec(),
        (None, Some(path)) => {
            let file = key_file::read(&table.at, "secret-file", path)?;
            if file.is_readable_by_others {
                warnings.push(key_file::exposed(&table.at, path));
            }
            without_line_end(&file.bytes).to_vec()
        }
        (None, None) => return Err(fault("has no secret; add secret-file, or secret")),
        (Some(_), Some(_)) => return Err(fault("has two secrets; leave out one of them")),
    };
    App::new(id, key, &secret, &table.prefix()).map_err(|error| fault(&error.to_string()))
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
            (table(&format!("{secret}secret-file = 'a'")), "has two secrets"),
            (table(&format!("{secret}prefix = 'shop'")), "has a prefix that is not a name"),
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
