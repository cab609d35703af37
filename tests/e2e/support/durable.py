"""Settings with durable channels: all inboxes, and the channels whose names begin with `kept`.

Their limits are far from what a test publishes, so that nothing but the test loses a message.
"""

SETTINGS = """
[[channels]]
match = "kept*"
durable = true
messages = 100000
bytes = "64MiB"
max-lag-messages = 100000
max-lag-bytes = "64MiB"
read-markers = true

[[channels]]
users = "*"
durable = true
"""
