//! `[access]` and `[[channels]]` as rules of access.

use throng_access::pattern::{Pattern, USER};
use throng_access::{AccessRules, ChannelAccess};
use throng_core::name::Kind;

use crate::settings::{ChannelTable, Settings, SettingsError};

/// The rules of access: one for each table, and one for all other channels and users. Of a server
/// without keys, everything is open.
pub(crate) fn access_rules(settings: &Settings) -> Result<AccessRules, SettingsError> {
    if !settings.has_keys() {
        return Ok(AccessRules::new(Vec::new(), ChannelAccess::OPEN));
    }
    let global = &settings.access;
    let fallback = ChannelAccess {
        subscribe: global.subscribe.0,
        publish: global.publish.0,
        history: global.history.0,
        presence: global.presence.0,
        erase: global.erase.0,
        edit: global.edit.0,
        state: global.state.0,
        end: global.end.0,
        update: global.update.0,
        create: global.create.0,
    };
    let rules = settings.channels.iter().zip(1..).map(|(table, nth)| {
        let (kind, text) = match (&table.channels, &table.users) {
            (_, Some(users)) => (Kind::User, users.as_str()),
            (channels, None) => (Kind::Channel, channels.as_deref().unwrap_or_default()),
        };
        let pattern = pattern(&format!("[[channels]] number {nth}"), kind, text)?;
        Ok((pattern, rule(table, &fallback)))
    });
    Ok(AccessRules::new(rules.collect::<Result<_, SettingsError>>()?, fallback))
}

/// The rule of one table. A key that is not there has the value of `fallback`.
fn rule(table: &ChannelTable, fallback: &ChannelAccess) -> ChannelAccess {
    ChannelAccess {
        subscribe: table.subscribe.map_or(fallback.subscribe, |who| who.0),
        publish: table.publish.map_or(fallback.publish, |who| who.0),
        history: table.history.map_or(fallback.history, |who| who.0),
        presence: table.presence.map_or(fallback.presence, |who| who.0),
        erase: table.erase.map_or(fallback.erase, |who| who.0),
        edit: table.edit.map_or(fallback.edit, |who| who.0),
        state: table.state.map_or(fallback.state, |who| who.0),
        end: table.end.map_or(fallback.end, |who| who.0),
        update: table.update.map_or(fallback.update, |who| who.0),
        create: table.create.map_or(fallback.create, |who| who.0),
    }
}

/// A pattern of the table `at`, in which there is no user.
pub(crate) fn pattern(at: &str, kind: Kind, text: &str) -> Result<Pattern, SettingsError> {
    let pattern = Pattern::new(kind, text).map_err(|error| {
        SettingsError(format!("{at}: the pattern {text:?} is invalid: {error}"))
    })?;
    if pattern.has_user() {
        return Err(SettingsError(format!(
            "{at}: the pattern {text:?} contains {USER}, which stands for a token's user and works \
             in tokens only; use `*`"
        )));
    }
    Ok(pattern)
}

#[cfg(test)]
mod tests {
    use throng_access::Who;
    use throng_core::ChannelName;

    use super::*;
    use crate::access::AccessSettings;
    use crate::settings::read_text;

    const HASH: &str = "sha256:0000000000000000000000000000000000000000000000000000000000000000";

    fn load(text: &str) -> Result<AccessSettings, String> {
        let settings = read_text(text).unwrap();
        AccessSettings::load(&settings).map_err(|error| error.to_string())
    }

    #[test]
    fn the_first_matching_table_says_who_may_do_what() {
        let text = "
            access = { subscribe = 'user' }
            [[token-keys]]
            secret = '0123456789abcdef0123456789abcdef'
            [[channels]]
            match = 'rooms/*'
            publish = 'anyone'
            [[channels]]
            match = 'rooms/a'
            publish = 'nobody'
            [[channels]]
            users = '*'
            messages = 5
        ";
        let rules = load(text).unwrap().rules;
        let room = rules.find(&ChannelName::channel("rooms/a"));
        assert_eq!((room.subscribe, room.publish), (Who::User, Who::Anyone));
        let other = rules.find(&ChannelName::channel("news"));
        assert_eq!((other.subscribe, other.publish), (Who::User, Who::Granted));
        assert_eq!(rules.find(&ChannelName::user("ann")).history, Who::Granted);
    }

    #[test]
    fn without_keys_everything_is_open() {
        let access = load("[[channels]]\nmatch = 'private/{user}'\nmessages = 1").unwrap();
        let rule = access.rules.find(&ChannelName::channel("private/{user}"));
        assert_eq!(rule, ChannelAccess::OPEN);
    }

    #[test]
    fn an_error_names_the_table_and_says_what_to_do() {
        let key = |rest: &str| format!("[[server-keys]]\nname = 'app'\nhash = '{HASH}'\n{rest}");
        let one = "throng.toml, [[server-keys]] number 1";
        for (text, expected) in [
            ("[[server-keys]]\nhash = 'a'".to_owned(), format!("{one} has no name; add one")),
            ("[[server-keys]]\nname = 'a b'".to_owned(), format!("{one} has a name that is not")),
            ("[[server-keys]]\nname = 'a'".to_owned(), format!("{one} has no hash; `throng key`")),
            (
                "[[server-keys]]\nname = 'a'\nhash = 'throng_key_abc'".to_owned(),
                format!("{one} has the key itself as its hash"),
            ),
            (
                "[[server-keys]]\nname = 'a'\nhash = 'sha256:1'".to_owned(),
                format!("{one} has a malformed hash: the hash of a server key is sha256: and 64"),
            ),
            (key(""), format!("{one} has no scopes; add its permissions")),
            (key("scopes = ['all']"), format!("{one} has the unknown scope \"all\"; use some of")),
            (
                key("scopes = ['publish']\nchannels = ['a{user}']"),
                format!("{one}: the pattern \"a{{user}}\" is invalid: next to {{user}}"),
            ),
            (
                key("scopes = ['publish']\nusers = ['{user}']"),
                format!("{one}: the pattern \"{{user}}\" contains {{user}}, which stands for"),
            ),
            (
                key(&format!("scopes = ['publish']\n{}", key("scopes = ['history']"))),
                "[[server-keys]]: two server keys have the same name or the same hash".to_owned(),
            ),
            (
                key("scopes = ['publish']\n[[channels]]\nmatch = 'private/{user}'"),
                "[[channels]] number 1: the pattern \"private/{user}\" contains {user}".to_owned(),
            ),
        ] {
            let error = load(&text).unwrap_err();
            assert!(error.starts_with(&expected), "{text}: {error}");
            assert!(!error.contains("throng_key_abc"), "{error}");
        }
    }
}
