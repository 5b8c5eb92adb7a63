"""`kill -9` at each step of stop, archive, resume, restore, snapshot, its deletion and fork: no file lost or left.

A usual run kills at every seventh step, each time another victim; SKERRY_TEST_CRASH=all is the whole matrix, and
SKERRY_TEST_CRASH_RUNTIME=runsc runs either on gVisor.
"""

import os
from collections.abc import Callable

import pytest
from crash import durable_cases as cases
from crash.durable_steps import ARCHIVE, DELETE, FORK, RESTORE, RESUME, SNAPSHOT, STOP
from crash.instances import CrashServer, Step
from crash.steps import VICTIMS

_EVERY = 7
ALL = os.environ.get("SKERRY_TEST_CRASH") == "all"

Case = Callable[[CrashServer, Step, str], None]
CASES: tuple[tuple[str, Case, tuple[Step, ...]], ...] = (
    ("stop", cases.stop, STOP),
    ("archive", cases.stop, ARCHIVE),
    ("resume", cases.resume, RESUME),
    ("restore", cases.restore, RESTORE),
    ("snapshot", cases.snapshot, SNAPSHOT),
    ("delete", cases.delete, DELETE),
    ("fork", cases.fork, FORK),
)


def matrix() -> list[object]:
    """The cases of a run."""
    everything = [(verb, case, step) for verb, case, steps in CASES for step in steps]
    found: list[object] = []
    for number, (verb, case, step) in enumerate(everything):
        others = [victim for victim in VICTIMS if victim != step.part]
        in_turn = (step.part, *others)[number // _EVERY % len(VICTIMS)]
        chosen = VICTIMS if ALL else (in_turn,) if number % _EVERY == 0 else ()
        found += [pytest.param(case, step, victim, id=f"{verb}-{step}-kills-{victim}") for victim in chosen]
    return found


@pytest.mark.parametrize(("case", "step", "victim"), matrix())
def test_f34_x2_a_crash_loses_no_files_and_leaves_none(crash: CrashServer, case: Case, step: Step, victim: str) -> None:
    case(crash, step, victim)
