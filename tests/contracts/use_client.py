"""Publishes and reads with the client that openapi-python-client has generated.

use_client.py FOLDER URL CHANNEL
"""

import sys

folder, url, channel = sys.argv[1:]
sys.path.insert(0, folder)

from generated import Client
from generated.api.lists import list_channels
from generated.api.publish import publish_batch
from generated.api.read import get_channel_history, get_channel_presence
from generated.models import Publication

client = Client(base_url=url, raise_on_unexpected_status=True)
items = [Publication(channel=channel, data=data) for data in ("text", {"n": 1})]
answers = publish_batch.sync(client=client, body=items)
assert len(answers) == 2, answers

page = get_channel_history.sync(channel, client=client, limit=1)
(message,) = page.messages
assert (message.channel, message.data, page.more) == (channel, {"n": 1}, True), message
assert page.id == answers[1].id == message.id

assert get_channel_presence.sync(channel, client=client).connections == 0
listed = list_channels.sync(client=client, pattern=channel)
assert [entry.channel for entry in listed.channels] == [channel], listed

refused = get_channel_history.sync(channel, client=client, before="1-1", after="1-1")
assert refused.error == "bad_parameter" and refused.message, refused
