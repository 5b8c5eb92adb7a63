"""`skerry doctor --leaks` on a real server: clean after all that sandboxes go through, and what is planted is named."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from acceptance.marks import on_both
from acceptance.servers import Server

from skerry import Skerry
from skerry.model.ids import new_sandbox_id

Look = Callable[[], dict[str, Any]]


@pytest.fixture
def look(server: Server) -> Look:
    def run() -> dict[str, Any]:
        words = ["skerry", "doctor", "--leaks", "-o", "json"]
        done = subprocess.run(words, env=server.environ, capture_output=True, timeout=300)
        told = json.loads(done.stdout)
        assert done.returncode == (1 if told["leaks"] else 0), done.stderr
        return told

    return run


@on_both
def test_x3_a_whole_life_leaves_nothing_that_is_on_no_record(client: Skerry, look: Look) -> None:
    with client.create("python") as box:
        box.files.write("file", os.urandom(100_000))
        box.stop()
        assert look()["leaks"] == []
        box.resume()
        copy, snapshot = box.fork(), box.snapshot("kept")
        assert look()["leaks"] == []
        snapshot.delete()
        copy.destroy()
    told = look()
    assert (told["clean"], told["leaks"], told["unchecked"]) == (True, [], [])


def test_x3_what_is_planted_is_seen_and_named(server: Server, look: Look) -> None:
    stray, home = new_sandbox_id(), server.config.home
    files, bundle = home / "pool/sandboxes" / stray, home / "node/bundles" / stray
    for directory in (files, bundle):
        directory.mkdir()
        os.utime(directory, (1, 1))
    try:
        told = look()
        named = {(leak["kind"], Path(leak["name"]).name): leak for leak in told["leaks"]}
        assert set(named) == {("subvolume", stray), ("bundle", stray)}
        assert all(leak["fate"] for leak in named.values())
    finally:
        for directory in (files, bundle):
            if directory.exists():  # the node removes it, too
                directory.rmdir()
    assert look()["clean"]
