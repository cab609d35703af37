"""What schemathesis has to know about Throng: a subscription has no end, so it asks for polls that do
not wait; and how lines of JSON are written."""

import json

import schemathesis

SUBSCRIPTIONS = {"/subscribe", "/channels/{channel}", "/users/{user}"}


@schemathesis.hook
def before_call(context, case, kwargs):
    if case.method.upper() == "GET" and case.operation.path in SUBSCRIPTIONS:
        case.query = {**(case.query or {}), "transport": "poll", "wait": "0"}


@schemathesis.serializer("application/x-ndjson")
def lines(context, value):
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()
