"""Stands in for a worker: speaks its language, trains nothing, and misbehaves as it is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

from autotune.outcome import Failed, MemoryUse, OutOfMemory
from autotune.trial.channel import Channel
from autotune.trial.protocol import (
    CannotLoad,
    Envelope,
    MemoryMeasured,
    Progress,
    Ready,
    envelope_adapter,
)
from autotune.workload.facts import WorkloadFacts

FACTS = WorkloadFacts(
    name="fake",
    task="causal-lm",
    model_class="Fake",
    num_parameters=1,
    num_trainable_parameters=1,
    parameter_bytes=4,
    num_rows=1,
    tokens_median=1,
    tokens_max=1,
    precision="fp32",
    optim="sgd",
    has_batch_norm=False,
    batch_dependent_loss=None,
)


def ready(device: str = "cpu") -> Ready:
    return Ready(facts=FACTS, process=os.getpid(), load_s=0.5, level_bytes=1000, device=device)


def measured(total_bytes: int = 10) -> MemoryMeasured:
    memory = MemoryUse(
        allocated_bytes=total_bytes,
        reserved_bytes=total_bytes,
        outside_bytes=0,
        total_bytes=total_bytes,
        method="made up",
    )
    return MemoryMeasured(memory=memory, steps_s=0.1)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_to(envelope: Envelope | None, text: str) -> None:
    """Prints during a command, as a trial does."""
    assert envelope is not None
    assert envelope.log is not None
    with open(envelope.log, "a") as file:
        file.write(text + "\n")


def main() -> None:
    scenario = os.environ["FAKE_SCENARIO"]
    channel = Channel(int(sys.argv[-2]))
    options = json.loads(sys.argv[-1])
    match scenario.split(":"):
        case ["cannot load", name]:
            channel.send(CannotLoad(error=name, cause="No such column.", remedy="Name another."))
        case ["dies loading", code]:
            say("reading the model")
            say("the disk is on fire")
            os._exit(int(code))
        case ["killed loading"]:
            os.kill(os.getpid(), signal.SIGKILL)
        case ["no memory to load"]:
            channel.send(OutOfMemory(where="host", cause="can't allocate 9 GiB"))
        case ["hangs loading"]:
            time.sleep(600)
        case ["says nonsense first"]:
            channel.send(measured())
        case _:
            channel.send(ready(os.environ.get("FAKE_DEVICE", "cpu")))
            serve(scenario, channel, options["isolation"])


def serve(scenario: str, channel: Channel, isolation: str) -> None:
    if scenario == "dies idle":
        channel.receive()
        channel.send(measured())
        os._exit(7)
    number = 0
    while (envelope := channel.receive()) is not None:
        number += 1
        match scenario:
            case "chatters":
                say('{"body": {"kind": "failed", "cause": "noise"}}')
                for step in range(3):
                    channel.send(Progress(stage="speed", step=step, num_steps=3))
                last = Envelope(body=Progress(stage="last"), number=envelope.number)
                line = envelope_adapter().dump_json(last) + b"\n"
                os.write(channel.fileno(), line[:20])
                time.sleep(0.2)
                os.write(channel.fileno(), line[20:])
                channel.send(measured(number))
            case "crashes":
                print_to(envelope, "about to crash")
                os.kill(os.getpid(), signal.SIGSEGV)
            case "crashes silently":
                say("long ago")
                os.kill(os.getpid(), signal.SIGSEGV)
            case "leaves a child":
                os.set_inheritable(channel.fileno(), True)
                subprocess.Popen(
                    [sys.executable, "-c", "import time; time.sleep(600)"], close_fds=False
                )
                os._exit(3)
            case "hangs":
                time.sleep(600)
            case "hangs in a fork" if isolation == "fork":
                time.sleep(600)
            case "is no longer clean":
                channel.send(measured(number), is_last=True)
                time.sleep(600)
            case "answers twice":
                channel.send(measured(number))
                channel.send(measured(-1))
            case "fails":
                channel.send(Failed(cause="shape"))
            case _:
                channel.send(measured(number))


if __name__ == "__main__":
    main()
