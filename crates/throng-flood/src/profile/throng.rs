//! Throng: `/channels/CHANNEL`, and all four transports at one URL.

use super::{Choice, Profile, ProfileError, is_personal, post};
use crate::plan::{Streams, Target, Transport};
use crate::template::Template;

/// A poll is answered after this many seconds at most; shorter than the server's idle timeout.
const POLL_SECONDS: &str = "wait=60";

const TRANSPORTS: [Transport; 4] =
    [Transport::WebSocket, Transport::Sse, Transport::Stream, Transport::LongPoll];

pub(super) fn target(choice: &Choice<'_>) -> Result<Target, ProfileError> {
    let transport = choice.transport_among(Profile::Throng, &TRANSPORTS)?;
    let mut room = String::new();
    let address = choice.address(&mut room)?;
    choice.refuse_channel(&address)?;
    let path = match choice.streams {
        Streams::Friends { .. } => format!("/subscribe?channel={}", choice.channels("&channel=")),
        Streams::One | Streams::Spread(_) | Streams::Own => {
            format!("/channels/{}", choice.channel())
        }
    };
    let mut target = choice.connect(transport, &address, &path)?;
    if transport == Transport::LongPoll {
        target.headers.push(("Prefer".to_owned(), Template::literal(POLL_SECONDS)));
    }
    let publish_path = match address.path {
        "" => Some(format!("/channels/{}", choice.channel())),
        // One publishes where one subscribes, at the URL without its query.
        path if path.starts_with("/channels/") || path.starts_with("/users/") => {
            (!is_personal(&target.url)).then(|| path.split('?').next().unwrap_or(path).to_owned())
        }
        _ => None,
    };
    if let Some(path) = publish_path {
        let url = choice.template(&address.http(&path))?;
        target.publish = Some(post(url, &[], Template::parse("{payload}")?));
    }
    Ok(target)
}
