//! Rules: who may follow, publish to, and read the channels that match a pattern.

use throng_core::later::{Answer, Later};
use throng_core::name::{ChannelName, Kind};
use throng_wire::{ErrorCode, ErrorResponse};

use crate::grants::Grants;
use crate::pattern::Pattern;
use crate::permission::Permission;
use crate::policy::{Access, Action, Asker, Credentials, Decision};

/// The clients that have a permission on a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Who {
    /// Every client, with or without a token.
    Anyone,
    /// Every client with a valid token, whatever it grants.
    User,
    /// Clients whose token grants it.
    #[default]
    Granted,
    /// Server keys only.
    Nobody,
}

impl Who {
    /// All values, from the most open to the strictest.
    pub const ALL: [Who; 4] = [Who::Anyone, Who::User, Who::Granted, Who::Nobody];

    /// The word for it in settings.
    pub fn word(self) -> &'static str {
        match self {
            Who::Anyone => "anyone",
            Who::User => "user",
            Who::Granted => "granted",
            Who::Nobody => "nobody",
        }
    }

    /// The inverse of [`Who::word`].
    pub fn from_word(word: &str) -> Option<Who> {
        Who::ALL.into_iter().find(|who| who.word() == word)
    }
}

/// For each permission on a channel, the clients that have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChannelAccess {
    pub subscribe: Who,
    pub publish: Who,
    /// Readers of the messages that it keeps.
    pub history: Who,
    /// Readers of the list of its subscribers.
    pub presence: Who,
    pub erase: Who,
    /// Those who replace messages of others.
    pub edit: Who,
    /// Those who set and remove keys.
    pub state: Who,
    /// Those who end channels and open them again.
    pub end: Who,
    /// Those who choose what they show of themselves to other members.
    pub update: Who,
    /// Those who create channels.
    pub create: Who,
}

impl ChannelAccess {
    /// The rule of a server without keys: everything is allowed to every client.
    pub const OPEN: ChannelAccess = ChannelAccess {
        subscribe: Who::Anyone,
        publish: Who::Anyone,
        history: Who::Anyone,
        presence: Who::Anyone,
        erase: Who::Anyone,
        edit: Who::Anyone,
        state: Who::Anyone,
        end: Who::Anyone,
        update: Who::Anyone,
        create: Who::Anyone,
    };

    /// The rule of the server's own logs.
    const CLOSED: ChannelAccess = ChannelAccess {
        subscribe: Who::Nobody,
        publish: Who::Nobody,
        history: Who::Nobody,
        presence: Who::Nobody,
        erase: Who::Nobody,
        edit: Who::Nobody,
        state: Who::Nobody,
        end: Who::Nobody,
        update: Who::Nobody,
        create: Who::Nobody,
    };

    /// The holders of `permission`.
    pub fn who(&self, permission: Permission) -> Who {
        match permission {
            Permission::Subscribe => self.subscribe,
            Permission::Publish => self.publish,
            Permission::History => self.history,
            Permission::Presence => self.presence,
            Permission::Erase => self.erase,
            Permission::Edit => self.edit,
            Permission::State => self.state,
            Permission::End => self.end,
            Permission::Update => self.update,
            Permission::Create => self.create,
        }
    }
}

/// All rules. The first one whose pattern matches a channel applies, else the fallback.
#[derive(Debug, Clone, Default)]
pub struct AccessRules {
    /// Patterns without `{user}`: a rule is about a channel, and does not depend on who asks.
    list: Vec<(Pattern, ChannelAccess)>,
    fallback: ChannelAccess,
}

impl AccessRules {
    /// The rules of `specific` in order, then `fallback` for all other channels and users. In a
    /// rule `{user}` matches nothing.
    pub fn new(specific: Vec<(Pattern, ChannelAccess)>, fallback: ChannelAccess) -> AccessRules {
        AccessRules { list: specific, fallback }
    }

    /// The rule for a channel or user. Nothing but a server key is allowed to read an internal log.
    pub fn find(&self, name: &ChannelName) -> ChannelAccess {
        if name.kind() == Kind::Internal {
            return ChannelAccess::CLOSED;
        }
        let matching = self.list.iter().find(|(pattern, _)| pattern.matches(name, None));
        matching.map_or(self.fallback, |&(_, access)| access)
    }

    /// Whether a client with `credentials` may do `action`. A batch is allowed to those who may
    /// publish to some channel; each of its lines is asked for again. Allocates nothing.
    ///
    /// # Errors
    ///
    /// The reason, if not.
    pub fn decide(&self, credentials: Credentials<'_>, action: Action<'_>) -> Result<(), Denial> {
        match action.permission() {
            Some((permission, name)) => may(&self.find(name), credentials, permission, name),
            None => self.may_publish_somewhere(credentials),
        }
    }

    fn may_publish_somewhere(&self, credentials: Credentials<'_>) -> Result<(), Denial> {
        let has = |who| {
            let mut all = self.list.iter().map(|(_, access)| access).chain([&self.fallback]);
            all.any(|access| access.publish == who)
        };
        let is_granted = |grants: &Grants| grants.may_grant(Permission::Publish);
        match credentials {
            Credentials::Anonymous | Credentials::Claimed { .. } => {
                if has(Who::Anyone) {
                    Ok(())
                } else if has(Who::User) || has(Who::Granted) {
                    Err(Denial::NeedsToken)
                } else {
                    Err(Denial::KeysOnly)
                }
            }
            Credentials::Known { grants, .. } if grants.is_of_key() => {
                if is_granted(grants) {
                    Ok(())
                } else {
                    Err(Denial::OutOfScope)
                }
            }
            Credentials::Known { .. } if has(Who::Anyone) || has(Who::User) => Ok(()),
            Credentials::Known { grants, .. } if has(Who::Granted) => {
                if is_granted(grants) {
                    Ok(())
                } else {
                    Err(Denial::NotGranted)
                }
            }
            Credentials::Known { .. } => Err(Denial::KeysOnly),
        }
    }
}

impl Access for AccessRules {
    fn may(
        &self,
        asker: &Asker<'_>,
        action: Action<'_>,
        _: Later<'_, Decision>,
    ) -> Answer<Decision> {
        let decision = match self.decide(asker.credentials, action) {
            Ok(()) => Decision::Allowed,
            Err(denial) => Decision::Denied(denial.error(action)),
        };
        decision.into()
    }
}

/// Why a client may not do something. Each sentence fits into a WebSocket's close frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// A token could help, and the client has none. The status is 401.
    #[error("this needs a token")]
    NeedsToken,
    /// Any token would do, and the client has none. The status is 401.
    #[error("this needs a token")]
    NeedsAnyToken,
    /// The client's token does not grant it. The status is 403.
    #[error("the token does not grant this")]
    NotGranted,
    /// No token can grant it. The status is 403.
    #[error("only server keys may do this")]
    KeysOnly,
    /// The server key's scopes do not include it. The status is 403.
    #[error("the scopes of this server key do not include this")]
    OutOfScope,
}

impl Denial {
    /// The error code that the client gets.
    pub fn code(self) -> ErrorCode {
        match self {
            Denial::NeedsToken | Denial::NeedsAnyToken => ErrorCode::Unauthorized,
            Denial::NotGranted | Denial::KeysOnly | Denial::OutOfScope => ErrorCode::Forbidden,
        }
    }
}

/// The most bytes of a name that a denial repeats: the whole sentence fits into a close frame.
const NAME_BYTES_MAX: usize = 40;

impl Denial {
    /// The error for a client that asked for `action`: says which right it lacks on what.
    pub fn error(self, action: Action<'_>) -> ErrorResponse {
        let right = match action.permission() {
            None => "publish on any channel".to_owned(),
            Some((permission, name)) => {
                let of_user = if name.kind() == Kind::User { "the user " } else { "" };
                let whole = name.name();
                let short = &whole[..whole.floor_char_boundary(NAME_BYTES_MAX)];
                let dots = if short.len() < whole.len() { "…" } else { "" };
                format!("{} on {of_user}{short}{dots}", permission.word())
            }
        };
        let message = match self {
            Denial::NeedsToken => format!("this needs a token that grants {right}"),
            Denial::NeedsAnyToken => format!("this needs a token, of any user: {right}"),
            Denial::NotGranted => format!("the token does not grant {right}"),
            Denial::KeysOnly => format!("only server keys have the right to {right}"),
            Denial::OutOfScope => {
                format!("the scopes of this server key do not include {right}")
            }
        };
        ErrorResponse::new(self.code(), message)
    }
}

/// Whether a client with `credentials` has `permission` on `name`, to which `access` applies. A
/// user may always follow their own inbox. For a server key its scopes count, whatever `access`
/// says. Allocates nothing.
///
/// # Errors
///
/// The reason, if not.
pub fn may(
    access: &ChannelAccess,
    credentials: Credentials<'_>,
    permission: Permission,
    name: &ChannelName,
) -> Result<(), Denial> {
    let who = access.who(permission);
    let (user, grants) = match credentials {
        Credentials::Anonymous | Credentials::Claimed { .. } => {
            return match who {
                Who::Anyone => Ok(()),
                Who::User => Err(Denial::NeedsAnyToken),
                Who::Granted => Err(Denial::NeedsToken),
                // With a token it may turn out to be the client's own inbox.
                Who::Nobody if name.kind() == Kind::User => Err(Denial::NeedsToken),
                Who::Nobody => Err(Denial::KeysOnly),
            };
        }
        Credentials::Known { user, grants } => (user, grants),
    };
    // A client of an application is confined to its names, even where a rule lets everybody in.
    if !grants.includes(name) {
        return Err(Denial::NotGranted);
    }
    if grants.is_of_key() {
        let is_allowed = grants.allow(permission, name, user);
        return if is_allowed { Ok(()) } else { Err(Denial::OutOfScope) };
    }
    let is_own_inbox = name.kind() == Kind::User && user == Some(name.name());
    if is_own_inbox && permission == Permission::Subscribe {
        return Ok(());
    }
    match who {
        Who::Anyone | Who::User => Ok(()),
        Who::Granted if grants.allow(permission, name, user) => Ok(()),
        Who::Granted => Err(Denial::NotGranted),
        Who::Nobody => Err(Denial::KeysOnly),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server_key::ServerKey;

    fn access(who: Who) -> ChannelAccess {
        ChannelAccess {
            subscribe: who,
            publish: who,
            history: who,
            presence: who,
            erase: who,
            edit: who,
            state: who,
            end: who,
            update: who,
            create: who,
        }
    }

    fn grants(claim: &str) -> Grants {
        Grants::from_claim(claim).unwrap()
    }

    #[test]
    fn each_rule_admits_who_it_names() {
        let lobby = ChannelName::channel("rooms/lobby");
        let granting = grants(
            r#"{"subscribe": ["rooms/*"], "publish": ["rooms/*"], "history": ["rooms/*"],
                "presence": ["rooms/*"]}"#,
        );
        let none = Grants::default();
        let key = ServerKey::for_tests("app", &["publish", "subscribe", "history"]);
        let by_key = Credentials::Known { user: None, grants: key.grants() };
        let with = |grants| Credentials::Known { user: Some("ann"), grants };
        for (who, asker, expected) in [
            (Who::Anyone, Credentials::Anonymous, Ok(())),
            (Who::User, Credentials::Anonymous, Err(Denial::NeedsAnyToken)),
            (Who::Granted, Credentials::Anonymous, Err(Denial::NeedsToken)),
            (Who::Nobody, Credentials::Anonymous, Err(Denial::KeysOnly)),
            (Who::Anyone, with(&none), Ok(())),
            (Who::User, with(&none), Ok(())),
            (Who::Granted, with(&none), Err(Denial::NotGranted)),
            (Who::Nobody, with(&none), Err(Denial::KeysOnly)),
            (Who::Granted, with(&granting), Ok(())),
            (Who::Nobody, with(&granting), Err(Denial::KeysOnly)),
            (Who::Nobody, by_key, Ok(())),
        ] {
            for permission in [Permission::Subscribe, Permission::Publish, Permission::History] {
                let decision = may(&access(who), asker, permission, &lobby);
                assert_eq!(decision, expected, "{who:?} {asker:?} {permission:?}");
            }
        }
        let decision = may(&ChannelAccess::OPEN, by_key, Permission::Presence, &lobby);
        assert_eq!(decision, Err(Denial::OutOfScope), "a key has its scopes, whatever the rule");
    }

    #[test]
    fn users_may_always_follow_their_own_inbox() {
        let none = Grants::default();
        let [ann, bob] =
            ["ann", "ann/x"].map(|user| Credentials::Known { user: Some(user), grants: &none });
        for who in Who::ALL {
            let may = |asker, permission, name: &str| {
                may(&access(who), asker, permission, &ChannelName::user(name))
            };
            assert_eq!(may(ann, Permission::Subscribe, "ann"), Ok(()));
            assert_eq!(may(bob, Permission::Subscribe, "ann/x"), Ok(()));
            let is_open = matches!(who, Who::Anyone | Who::User);
            assert_eq!(may(bob, Permission::Subscribe, "ann").is_ok(), is_open);
            assert_eq!(may(ann, Permission::Publish, "ann").is_ok(), is_open);
            assert_eq!(may(ann, Permission::History, "ann").is_ok(), is_open);
        }
        let channel = ChannelName::channel("ann");
        let decision = may(&access(Who::Nobody), ann, Permission::Subscribe, &channel);
        assert_eq!(decision, Err(Denial::KeysOnly), "a channel of the same name is no inbox");
    }

    #[test]
    fn a_token_without_a_user_has_no_inbox() {
        let none = Grants::default();
        let asker = Credentials::Known { user: None, grants: &none };
        let inbox = ChannelName::user("ann");
        let decision = may(&access(Who::Granted), asker, Permission::Subscribe, &inbox);
        assert_eq!(decision, Err(Denial::NotGranted));
    }

    #[test]
    fn the_first_matching_rule_applies() {
        let rule = |kind, text, who| (Pattern::new(kind, text).unwrap(), access(who));
        let rules = AccessRules::new(
            vec![
                rule(Kind::User, "*", Who::Nobody),
                rule(Kind::Channel, "news", Who::Anyone),
                rule(Kind::Channel, "n*", Who::User),
            ],
            access(Who::Granted),
        );
        let who = |name| rules.find(&name).subscribe;
        assert_eq!(who(ChannelName::user("news")), Who::Nobody);
        assert_eq!(who(ChannelName::channel("news")), Who::Anyone);
        assert_eq!(who(ChannelName::channel("next")), Who::User);
        assert_eq!(who(ChannelName::channel("other")), Who::Granted);
        assert_eq!(who(ChannelName::status()), Who::Nobody);
    }

    #[test]
    fn a_batch_is_for_those_who_may_publish_somewhere() {
        let none = Grants::default();
        let granting = grants(r#"{"publish": ["elsewhere"]}"#);
        let [publisher, reader] =
            [["publish"], ["history"]].map(|scopes| ServerKey::for_tests("app", &scopes));
        let known = |grants| Credentials::Known { user: None, grants };
        let askers =
            [Credentials::Anonymous, known(&none), known(&granting), known(publisher.grants())];
        let key_of_a_reader = known(reader.grants());
        let lobby = Pattern::new(Kind::Channel, "lobby").unwrap();
        for (who, in_the_lobby, expected) in [
            (Who::Anyone, Who::Nobody, [Ok(()), Ok(()), Ok(()), Ok(())]),
            (Who::Nobody, Who::Anyone, [Ok(()), Ok(()), Ok(()), Ok(())]),
            (Who::Nobody, Who::User, [Err(Denial::NeedsToken), Ok(()), Ok(()), Ok(())]),
            (
                Who::Granted,
                Who::Nobody,
                [Err(Denial::NeedsToken), Err(Denial::NotGranted), Ok(()), Ok(())],
            ),
            (
                Who::Nobody,
                Who::Nobody,
                [Err(Denial::KeysOnly), Err(Denial::KeysOnly), Err(Denial::KeysOnly), Ok(())],
            ),
        ] {
            let rules = AccessRules::new(vec![(lobby.clone(), access(in_the_lobby))], access(who));
            let decide = |asker| rules.decide(asker, Action::PublishBatch);
            assert_eq!(askers.map(decide), expected, "{who:?} {in_the_lobby:?}");
            assert_eq!(decide(key_of_a_reader), Err(Denial::OutOfScope));
        }
    }

    #[test]
    fn actions_are_decided_by_the_rule_of_their_channel() {
        let lobby = Pattern::new(Kind::Channel, "lobby").unwrap();
        let rule = ChannelAccess { publish: Who::Nobody, ..ChannelAccess::OPEN };
        let rules = AccessRules::new(vec![(lobby, rule)], ChannelAccess::default());
        let [lobby, other] = ["lobby", "other"].map(ChannelName::channel);
        let decide = |action| rules.decide(Credentials::Anonymous, action);
        assert_eq!(decide(Action::Subscribe(&lobby)), Ok(()));
        assert_eq!(decide(Action::ReadHistory(&lobby)), Ok(()));
        assert_eq!(decide(Action::ReadPresence(&lobby)), Ok(()));
        assert_eq!(decide(Action::Publish(&lobby)), Err(Denial::KeysOnly));
        assert_eq!(decide(Action::Subscribe(&other)), Err(Denial::NeedsToken));
    }

    #[test]
    fn words_are_parsed() {
        for who in Who::ALL {
            assert_eq!(Who::from_word(who.word()), Some(who));
        }
        assert_eq!(Who::from_word("everyone"), None);
    }

    #[test]
    fn sentences_fit_into_a_close_frame() {
        use Denial::{KeysOnly, NeedsAnyToken, NeedsToken, NotGranted, OutOfScope};
        let long = ChannelName::user(&"ä".repeat(100));
        for denial in [NeedsToken, NeedsAnyToken, NotGranted, KeysOnly, OutOfScope] {
            let message = denial.error(Action::Subscribe(&long)).message;
            assert!(message.len() <= 123 && message.ends_with("ä…"), "{message}");
        }
    }

    #[test]
    fn a_denial_says_which_right_is_missing_for_what() {
        let (garden, ann) = (ChannelName::channel("rooms/garden"), ChannelName::user("ann"));
        for (denial, action, message) in [
            (
                Denial::NeedsToken,
                Action::Subscribe(&garden),
                "this needs a token that grants subscribe on rooms/garden",
            ),
            (
                Denial::NotGranted,
                Action::Publish(&ann),
                "the token does not grant publish on the user ann",
            ),
            (
                Denial::NotGranted,
                Action::PublishBatch,
                "the token does not grant publish on any channel",
            ),
        ] {
            assert_eq!(denial.error(action).message, message);
        }
    }
}
