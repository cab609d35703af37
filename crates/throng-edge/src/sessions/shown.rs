//! Requests and commands, as the identification of their clients sees them.

use std::net::IpAddr;

use throng_access::identification::PageCheck;
use throng_access::{AccessControl, Certified, Client, Refused, Shown};
use throng_wire::credential::{CookieRequest, Credential, Token, of_subscription};
use throng_wire::head::Head;
use throng_wire::subscribe::{Request, Transport};
use throng_wire::{ErrorCode, ErrorResponse};

use crate::connection::ConnectionId;
use crate::net::Net;
use crate::sessions::Sessions;
use crate::settings::Settings;
use crate::sockets::Sockets;

/// The connection of a client, and the settings by which it is judged.
pub(super) struct Connected<'a, N: Net> {
    pub(super) id: ConnectionId,
    pub(super) sockets: &'a Sockets<N>,
    pub(super) settings: &'a Settings,
    pub(super) access: &'a AccessControl,
    /// By the clock of limits.
    pub(super) now_ms: u64,
}

impl<N: Net> Connected<'_, N> {
    /// The address of the client, kept or asked for: a system call.
    pub(super) fn address(&self) -> Option<IpAddr> {
        self.sockets.connections().address(self.id).or_else(|| {
            let peer = self.sockets.peer(&self.sockets[self.id].socket)?;
            self.access.clients.source.of_connection(peer.ip())
        })
    }

    /// True if the client, who is nobody, may become a user.
    fn may_sign_in(&self) -> bool {
        let is_awaited = self.sockets.connections().identify_by(self.id).is_some();
        let own = self.sockets[self.id].encoding().dialect().late_identity();
        is_awaited || own.or(self.settings.late_identity).may_sign_in
    }

    fn certified(&self) -> Option<Certified<'_>> {
        let shown = self.sockets.certified_user(self.id)?;
        let (from_s, until_s) = (shown.from_s, shown.until_s);
        Some(Certified { user: &shown.name, from_s, until_s })
    }
}

impl<N: Net> Sessions<N> {
    pub(super) fn connected(&self, id: ConnectionId) -> Connected<'_, N> {
        Connected {
            id,
            sockets: self,
            settings: &self.settings,
            access: &self.access,
            now_ms: self.clock().unix_ms(),
        }
    }
}

/// A request that subscribes.
pub(super) struct ShownRequest<'a, N: Net> {
    pub(super) on: Connected<'a, N>,
    pub(super) request: &'a Request,
    pub(super) head: &'a Head<'a>,
}

impl<N: Net> Shown for ShownRequest<'_, N> {
    fn credential(&self, cookie: Option<&str>) -> Result<Option<Credential<'_>>, ErrorResponse> {
        of_subscription(self.head, self.request, cookie)
    }

    fn header(&self, name: &str) -> Vec<&[u8]> {
        self.head.headers(name).collect()
    }

    fn check_page(&self, check: PageCheck) -> Result<(), ErrorResponse> {
        let pages = self.on.settings.pages.load();
        let request = CookieRequest {
            origin: self.request.origin.as_deref(),
            fetch_site: self.head.header("sec-fetch-site"),
            is_read: !matches!(self.request.transport, Transport::WebSocket { .. }),
        };
        check(&self.on.settings.origin_policy(&pages), request)
    }

    fn certified(&self) -> Option<Certified<'_>> {
        self.on.certified()
    }

    fn address(&self) -> Result<Option<IpAddr>, ErrorResponse> {
        Ok(self.on.address())
    }

    fn transport(&self) -> &'static str {
        match self.request.transport {
            Transport::WebSocket { .. } => "websocket",
            Transport::Sse => "sse",
            Transport::Stream => "stream",
            Transport::LongPoll { .. } => "long-poll",
        }
    }

    /// Whether the user or the server key may have one more connection. A poll that goes on is no
    /// new one.
    fn admit(&self, client: &Client) -> Result<(), Refused> {
        let Connected { access, now_ms, .. } = self.on;
        let (limiter, limited) = (&access.clients.limiter, access.limited_by(client));
        Ok(limiter.admit_connection(limited, !continues(self.request), now_ms)?)
    }
}

/// True if the request is a long-poll that resumes.
pub(crate) fn continues(request: &Request) -> bool {
    matches!(request.transport, Transport::LongPoll { .. }) && request.since.is_some()
}

/// The command that shows a token: a newer one, or the first.
pub(super) struct ShownCommand<'a, N: Net> {
    pub(super) on: Connected<'a, N>,
    pub(super) token: &'a Token,
}

impl<N: Net> Shown for ShownCommand<'_, N> {
    fn credential(&self, _: Option<&str>) -> Result<Option<Credential<'_>>, ErrorResponse> {
        Ok(Some(self.token.credential()))
    }

    fn header(&self, _: &str) -> Vec<&[u8]> {
        Vec::new()
    }

    fn check_page(&self, _: PageCheck) -> Result<(), ErrorResponse> {
        Ok(())
    }

    fn certified(&self) -> Option<Certified<'_>> {
        self.on.certified()
    }

    fn address(&self) -> Result<Option<IpAddr>, ErrorResponse> {
        Ok(self.on.address())
    }

    fn transport(&self) -> &'static str {
        "websocket"
    }

    /// A newer token has to be of the user that the connection has. A client that becomes somebody
    /// has one more connection then. A server key does not get here: no command may show one.
    fn admit(&self, client: &Client) -> Result<(), Refused> {
        let Connected { id, sockets, access, now_ms, .. } = self.on;
        let user = client.credentials().user();
        let is_same_user = match (sockets.connections().session(id), user) {
            (Some(session), Some(user)) => session.is_of_user(user, &access.tagger),
            (Some(session), None) => !session.has_user(),
            (None, user) if user.is_none() || self.on.may_sign_in() => {
                let limited = access.limited_by(client);
                return Ok(access.clients.limiter.admit_connection(limited, true, now_ms)?);
            }
            (None, _) => false,
        };
        if is_same_user {
            return Ok(());
        }
        let message = "the token is of another user than the connection";
        Err(ErrorResponse::new(ErrorCode::Forbidden, message).into())
    }
}
