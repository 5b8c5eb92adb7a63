"""`kill -9` at each step of create, exec and destroy: of the API, of the node, of both, of the supervisor with all.

Each kill costs the start of a Python process or two, so a usual run kills at every second step what makes the step, and
at every sixth one another victim in turn, too. SKERRY_TEST_CRASH=all is the whole matrix;
SKERRY_TEST_CRASH_RUNTIME=runsc runs either on gVisor.
"""

import os
from collections.abc import Sequence

import pytest
from crash import cases
from crash.instances import CrashServer, Step
from crash.steps import CREATE, DESTROY, EXEC, VICTIMS

_EVERY = 2
_OTHERS_EVERY = 6
ALL = os.environ.get("SKERRY_TEST_CRASH") == "all"


def matrix(steps: Sequence[Step]) -> list[object]:
    """The cases of a run. The supervisor comes last of a step's: what it starts has no deaths to be slow about."""
    found: list[object] = []
    for number, step in enumerate(steps):
        others = [victim for victim in VICTIMS if victim != step.part]
        also = others[number // _OTHERS_EVERY % len(others)]
        usual = (step.part, also) if number % _OTHERS_EVERY == 0 else (step.part,) if number % _EVERY == 0 else ()
        chosen = VICTIMS if ALL else usual
        found += [pytest.param(step, victim, id=f"{step}-kills-{victim}") for victim in chosen]
    return found


@pytest.mark.parametrize(("step", "victim"), matrix(CREATE))
def test_f34_a_create_is_finished_or_undone(crash: CrashServer, step: Step, victim: str) -> None:
    cases.create(crash, step, victim)


@pytest.mark.parametrize(("step", "victim"), matrix(EXEC))
def test_f34_a_command_runs_once_and_is_told_or_is_told_not_to_have_run(
    crash: CrashServer, step: Step, victim: str
) -> None:
    cases.command(crash, step, victim)


@pytest.mark.parametrize(("step", "victim"), matrix(DESTROY))
def test_f34_a_destroy_is_finished(crash: CrashServer, step: Step, victim: str) -> None:
    cases.destroy(crash, step, victim)
