"""Commands that a test expects to succeed, such as scripts of Node."""

import subprocess

from support import TIMEOUT_SECONDS
from support.server import clean_environment


def run(*command, directory=None, environment=None, timeout=TIMEOUT_SECONDS * 8):
    """Runs a command to its end, and returns what it has printed. Fails if the command does.

    Its environment is that of the tests without THRONG_ variables, with what `environment` adds.
    """
    done = subprocess.run(
        [str(part) for part in command],
        cwd=directory,
        env=clean_environment({"NO_PROXY": "*", **(environment or {})}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, (command, done.stdout + done.stderr)
    return done.stdout
