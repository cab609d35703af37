//! The bodies of what operators and applications ask: kept subscriptions, connections, revocations,
//! the status.

use serde_json::{Value, json};

use super::form::{count, described, flag, list, object, partial, reference, text, time_ms};

pub(super) fn all() -> Vec<(&'static str, Value)> {
    let mut all = kept();
    all.extend(connections());
    all.extend(revocations());
    all.extend(status());
    all
}

fn kept() -> Vec<(&'static str, Value)> {
    let names = || list(reference("Name"));
    let page = |noun, plural| {
        let fields =
            [(noun, reference("Name")), (plural, names()), ("count", count()), ("more", flag())];
        object(&fields, &[("after", text())])
    };
    let changed = [
        ("user", reference("Name")),
        ("channels", described(count(), "How many the user follows now.")),
        ("added", count()),
        ("removed", count()),
    ];
    let line = [("line", count()), ("error", reference("ErrorCode")), ("message", text())];
    let bulk = [
        ("lines", described(count(), "How many lines were applied.")),
        ("added", count()),
        ("removed", count()),
        ("errors", list(object(&line, &[]))),
    ];
    let mut update = object(&[], &[("add", names()), ("remove", names())]);
    update["minProperties"] = 1.into();
    vec![
        ("KeptReplacement", object(&[("channels", names())], &[])),
        ("KeptUpdate", update),
        ("KeptChanged", object(&changed, &[])),
        ("KeptChannels", page("user", "channels")),
        ("Followers", page("channel", "followers")),
        ("BulkChanged", object(&bulk, &[])),
    ]
}

fn connections() -> Vec<(&'static str, Value)> {
    let transports = json!({ "type": "string", "enum": ["websocket", "sse", "stream", "poll"] });
    let nullable = |kind: &str| json!({ "type": [kind, "null"] });
    let own = || {
        vec![
            ("connection", text()),
            ("transport", transports.clone()),
            ("since", described(nullable("integer"), "Milliseconds since 1970.")),
            ("address", nullable("string")),
        ]
    };
    let proxy = || [("proxy", described(nullable("string"), "The other end of the connection."))];
    let mut behind = own();
    behind.extend([
        ("user", nullable("string")),
        ("channels", list(text())),
        ("inboxes", list(text())),
        ("subscriptions", count()),
        ("behind_since", time_ms()),
        ("messages", count()),
        ("bytes", count()),
        ("kernel_bytes", count()),
    ]);
    let page =
        |entry| vec![("count", count()), ("connections", list(reference(entry))), ("more", flag())];
    let named = |noun| {
        let mut fields = page("Connection");
        fields.push((noun, reference("Name")));
        object(&fields, &[("partial", partial())])
    };
    vec![
        ("Connection", object(&own(), &proxy())),
        ("ConnectionBehind", object(&behind, &proxy())),
        ("ChannelConnections", named("channel")),
        ("UserConnections", named("user")),
        ("ConnectionsBehind", object(&page("ConnectionBehind"), &[])),
        ("Disconnected", object(&[("disconnected", count())], &[("partial", partial())])),
    ]
}

fn revocations() -> Vec<(&'static str, Value)> {
    let seconds = || described(count(), "Seconds since 1970.");
    let token = [("token", text()), ("at", seconds())];
    let user = [("user", reference("Name")), ("before", seconds())];
    let hash = [("token_hash", text()), ("at", seconds())];
    let entry = json!({ "oneOf": [object(&user, &[]), object(&hash, &[])] });
    let page = [("revocations", list(entry)), ("more", flag())];
    vec![
        ("TokenRevocation", object(&token, &[])),
        ("UserRevocation", object(&user, &[])),
        ("Revocations", object(&page, &[("after", text())])),
    ]
}

fn status() -> Vec<(&'static str, Value)> {
    let any = || json!({ "type": "object" });
    let maybe = || json!({ "type": ["object", "null"] });
    let rate = || json!({ "type": "number", "minimum": 0 });
    let status = object(
        &[
            ("time_ms", time_ms()),
            ("started_ms", time_ms()),
            ("version", text()),
            ("draining", flag()),
            ("departure", maybe()),
            ("upgrade", maybe()),
            ("connections", any()),
            ("channels", count()),
            ("accepted", any()),
            ("admission", any()),
            ("messages_in", any()),
            ("deliveries", any()),
            ("sent_bytes", any()),
            ("latency", any()),
            ("http", any()),
            ("canary", maybe()),
            ("cpu", any()),
            ("memory", any()),
            ("kernel", any()),
            ("tls", maybe()),
            ("data", maybe()),
            ("cluster", maybe()),
            ("refused", any()),
            ("dropped", any()),
            ("closed", any()),
            ("refused_per_s", rate()),
            ("dropped_per_s", rate()),
        ],
        &[("history", any())],
    );
    let states = json!({
        "type": "string",
        "enum": ["live", "ready", "degraded", "starting", "draining", "stuck"],
    });
    let reason = object(&[("reason", text()), ("message", text())], &[]);
    let finding = object(&[("status", states), ("reasons", list(reason))], &[]);
    let status = described(status, "A sample: `/status.md` says what each field means.");
    vec![("Status", status), ("Finding", finding)]
}
