"""`kill -9` before and after every function that a verb passes through: what nobody thought of as a step.

Some hundreds of kills a verb, so only with SKERRY_TEST_CRASH=every. SKERRY_TEST_CRASH_FROM=n goes on at the nth.
"""

import os
from collections.abc import Callable

import pytest
from crash import cases, durable_cases, steps
from crash.instances import CrashServer, Step

from skerry import Sandbox, SkerryError

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.environ.get("SKERRY_TEST_CRASH") != "every", reason="SKERRY_TEST_CRASH=every runs it"),
    pytest.mark.timeout(6 * 3600),
]

Case = Callable[[CrashServer, Step, str], None]


def _kill_everywhere(crash: CrashServer, found: list[Step], case: Case) -> None:
    """All of them, and then what went wrong, so that one fault does not hide the others."""
    failures: list[str] = []
    start = int(os.environ.get("SKERRY_TEST_CRASH_FROM", "0"))
    for number, step in enumerate(found[start:], start):
        crash.rest()
        try:
            case(crash, step, step.part)
        except AssertionError as error:
            failures.append(f"{number} {step}: {error}")
            crash.go_on(step.part)
        print(number, len(found), step, len(failures), flush=True)
    assert not failures, "\n".join(failures)


def test_f34_a_create_survives_a_kill_anywhere(crash: CrashServer) -> None:
    boxes: list[Sandbox] = []
    with crash.client() as client:
        found = steps.every(crash, lambda: boxes.append(client.create()))
        boxes[0].destroy()
    _kill_everywhere(crash, found, cases.create)


def test_f34_a_command_survives_a_kill_anywhere(crash: CrashServer) -> None:
    with crash.client() as client, client.create() as box:
        found = steps.every(crash, lambda: box.commands.start(cases.COUNTING).wait())
    _kill_everywhere(crash, found, cases.command)


def test_f34_a_destroy_survives_a_kill_anywhere(crash: CrashServer) -> None:
    with crash.client() as client:
        box = client.create()
        box.commands.start("sleep 600")
        found = steps.every(crash, box.destroy)
    _kill_everywhere(crash, found, cases.destroy)


def test_f34_a_stop_survives_a_kill_anywhere(crash: CrashServer) -> None:
    with crash.client() as client, durable_cases.box_with_files(client) as box:
        found = steps.every(crash, box.stop)
    _kill_everywhere(crash, found, durable_cases.stop)


def test_f34_a_restore_survives_a_kill_anywhere(crash: CrashServer) -> None:
    with crash.client() as client, durable_cases.box_with_files(client) as box:
        box.stop()
        durable_cases.drop(crash, box.id)
        found = steps.every(crash, box.resume)
    _kill_everywhere(crash, found, durable_cases.restore)


def test_f34_a_fork_survives_a_kill_anywhere(crash: CrashServer) -> None:
    copies: list[Sandbox | SkerryError] = []
    with crash.client() as client, durable_cases.box_with_files(client) as box:
        found = steps.every(crash, lambda: copies.extend(box.forks(2)))
        for copy in copies:
            assert isinstance(copy, Sandbox)
            copy.destroy()
    _kill_everywhere(crash, found, durable_cases.fork)
