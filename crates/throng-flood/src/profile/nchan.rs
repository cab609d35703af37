//! Nchan: nginx locations, by default `/sub/CHANNEL` for subscribers (`nchan_subscriber`) and
//! `/pub/CHANNEL` for publishers (`nchan_publisher`).

use super::{Choice, Profile, ProfileError, is_personal, post};
use crate::plan::{Target, Transport};
use crate::template::Template;

const TRANSPORTS: [Transport; 4] =
    [Transport::WebSocket, Transport::Sse, Transport::Stream, Transport::LongPoll];

pub(super) fn target(choice: &Choice<'_>) -> Result<Target, ProfileError> {
    let transport = choice.transport_among(Profile::Nchan, &TRANSPORTS)?;
    let mut room = String::new();
    let address = choice.address(&mut room)?;
    choice.refuse_channel(&address)?;
    let mut target =
        choice.connect(transport, &address, &format!("/sub/{}", choice.channels(",")))?;
    if transport == Transport::Stream {
        // Without it Nchan answers as to a long poll.
        target.headers.push(("TE".to_owned(), Template::literal("chunked")));
    }
    let publish_path = match address.path {
        "" => Some(format!("/pub/{}", choice.channel())),
        path => path
            .strip_prefix("/sub/")
            .filter(|_| !is_personal(&target.url))
            .map(|channel| format!("/pub/{channel}")),
    };
    if let Some(path) = publish_path {
        let url = choice.template(&address.http(&path))?;
        // With a type, messages are not taken for form fields.
        let headers = [("Content-Type", "text/plain")];
        // In a stream Nchan puts nothing between messages, so that each must end its line itself.
        let body = if transport == Transport::Stream { "{payload}\n" } else { "{payload}" };
        target.publish = Some(post(url, &headers, Template::parse(body)?));
    }
    Ok(target)
}
