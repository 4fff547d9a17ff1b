"""What nodes do in tests: `python -m tests.probes.ranks.node_scenes lead|serve …`, as agents.

`lead DIRECTORY CODE LOST_AFTER_S SCENE …` runs a group of two ranks for each scene, in a directory
of its own, prints how each ended, and sends the other node home with the code.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from probes.errors import ProbeError
from probes.ranks.agents import host_meeting, serve
from probes.ranks.launch import Ranks, rank_command
from probes.ranks.nodes import compare, node_of_this_process


def lead(directory: Path, code: int, lost_after_s: float, scenes: list[str]) -> int:
    node = node_of_this_process()
    assert node is not None
    with host_meeting(node) as meeting:
        facts = meeting.gather(time_limit_s=30)
        print(json.dumps([len(facts), len(compare(facts))]), flush=True)
        ranks = Ranks(
            num_processes=2,
            num_nodes=2,
            meeting=meeting.address,
            lost_after_s=lost_after_s,
            variables=(("MINE", "yours too"),),
        )
        for number, scene in enumerate(scenes):
            place = directory / str(number)
            place.mkdir(exist_ok=True)
            ended = subprocess.run(
                rank_command("tests.probes.ranks.rank_scenes", [str(place), scene], ranks),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
            last_line = (ended.stderr.strip().splitlines() or [""])[-1]
            print(json.dumps([ended.returncode, last_line]), flush=True)
        meeting.dismiss(code)
    return 0


def main() -> int:
    if sys.argv[1] == "lead":
        directory, code, lost_after_s, *scenes = sys.argv[2:]
        return lead(Path(directory), int(code), float(lost_after_s), scenes)
    node = node_of_this_process()
    assert node is not None

    def say(text: str) -> None:
        print(text, file=sys.stderr)

    try:
        return serve(node, join_limit_s=30, lost_after_s=float(sys.argv[2]), on_word=say)
    except ProbeError as error:
        print(error, file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())
