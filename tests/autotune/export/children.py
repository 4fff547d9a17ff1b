"""A child of the export's kind with bad manners: `python -m tests.autotune.export.children FD`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from autotune.export.child import Channel


def main() -> None:
    """Does what the request says."""
    channel = Channel(int(sys.argv[1]))
    match channel.request:
        case "echo":
            channel.stage("listening")
            channel.result({"variable": os.environ.get("AUTOTUNE_TEST_VARIABLE")})
        case "ranks":
            channel.result({"world_size": os.environ.get("WORLD_SIZE")})
        case "exit":
            channel.stage("counting")
            print("last words", flush=True)
            sys.exit(3)
        case "killed":
            channel.stage("counting")
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            channel.stage("sleeping")
            time.sleep(600)
        case "orphan":
            # Its own child holds no channel: it ends only with its process group.
            sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            channel.result(sleeper.pid)
            time.sleep(600)


if __name__ == "__main__":
    main()
