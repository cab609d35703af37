//! Watchlists: clients that are told which of the users that their application has signed are
//! online.

use std::collections::BTreeSet;

use throng_core::{ChannelName, StartAt};
use throng_dialect::Saying;
use throng_pusher::App;
use throng_wire::{ErrorCode, ErrorResponse, check_target_name};

use crate::connection::ConnectionId;
use crate::net::Net;
use crate::sessions::Sessions;

/// The most users that a client watches. Further ones are left out.
const WATCHED_MAX: usize = 100;

impl<N: Net> Sessions<N> {
    /// Tells a client which of these users are online, now and whenever that changes, if its
    /// application has watchlists.
    pub(super) fn watch_users(&mut self, id: ConnectionId, app: &App, watchlist: &[Box<str>]) {
        if watchlist.is_empty() || !self.engine.memory().has_watchlists(app.prefix()) {
            return;
        }
        let names = watchlist.iter().map(|user| app.own(user));
        let mut users: BTreeSet<_> =
            names.filter(|name| check_target_name(name, "user").is_ok()).collect();
        let are_too_many = users.len() > WATCHED_MAX;
        while users.len() > WATCHED_MAX {
            users.pop_last();
        }
        if let Err(refusal) = self.limit_subscriptions(id, users.len()) {
            self.say(id, &Saying::Unwatched(&refusal.into()));
            return;
        }
        let now_ms = self.clock().unix_ms();
        let mut online = Vec::new();
        for user in &users {
            self.follow(id, &ChannelName::online(user), StartAt::Live);
            if self.engine.memory().watch(now_ms, user) {
                online.push(user.as_str());
            }
        }
        if !online.is_empty() {
            self.say(id, &Saying::Watched { users: &online, is_online: true });
        }
        if are_too_many {
            let message = format!("a watchlist has at most {WATCHED_MAX} users: some are left out");
            let error = ErrorResponse::new(ErrorCode::TooManyChannels, message);
            self.say(id, &Saying::Unwatched(&error));
        }
    }
}
