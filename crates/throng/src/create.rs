//! `throng create`: creates a channel, with its first messages.

use anyhow::{Context as _, Result, bail};
use serde::Serialize;

use crate::cli::{self, CreateArguments};
use crate::client::escaped;
use crate::publish::Data;
use crate::terminal;

const JSON: &str = "application/json";

/// The body of the request.
#[derive(Serialize)]
struct Properties<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl: Option<u64>,
    messages: Vec<Message<'a>>,
}

#[derive(Serialize)]
struct Message<'a> {
    data: Data<'a>,
}

pub(crate) fn create(arguments: &CreateArguments) -> Result<()> {
    cli::refuse_pattern(&arguments.channel, false)?;
    let client = arguments.server.client(None)?;
    let message = |(number, text): (usize, _)| {
        let data = Data::of(text, arguments.json).with_context(|| format!("message {number}"))?;
        Ok(Message { data })
    };
    let messages =
        (1..).zip(arguments.messages.iter().map(|it| &**it)).map(message).collect::<Result<_>>()?;
    let content_type = if arguments.json { Some(JSON) } else { arguments.content_type.as_deref() };
    let ttl = arguments.ttl.map(|ttl| ttl.0.as_secs());
    let body = serde_json::to_vec(&Properties { content_type, ttl, messages })?;
    let path = format!("/channels/{}/creation", escaped(&arguments.channel));
    let request = client.put(&path).header("Content-Type", JSON);
    let mut response = request.send(&body[..]).map_err(|error| client.unreachable(&error))?;
    if !response.status().is_success() {
        bail!(client.rejection(&mut response));
    }
    let text = response.body_mut().read_to_string().context("the response is incomplete")?;
    Ok(terminal::print(&format!("{}\n", text.trim_end()))?)
}
