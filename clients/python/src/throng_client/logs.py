"""The logger of the client, and warnings that come once per cause."""

from __future__ import annotations

import logging
import threading
import time

log = logging.getLogger("throng_client")

# A cause that lasts is told again after this time, in seconds.
REPEAT_AFTER = 300.0
# Beyond this number the causes told first are forgotten, and may be told again.
CAUSES_MAX = 256

_lock = threading.Lock()
_told: dict[str, float] = {}


def warn_once(message: str) -> None:
    """Logs a warning, unless the same one was logged a short time ago."""
    now = time.monotonic()
    with _lock:
        told = _told.get(message)
        if told is not None and now - told < REPEAT_AFTER:
            return
        _told.pop(message, None)
        _told[message] = now
        if len(_told) > CAUSES_MAX:
            del _told[next(iter(_told))]
    log.warning("%s", message)
