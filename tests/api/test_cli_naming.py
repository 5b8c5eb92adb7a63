"""Which sandbox the command line means by a name that several have."""

import time

import pytest

from skerry import Skerry
from skerry.cli.connection import find
from skerry.model.errors import Conflict

from .conftest import Server


def test_a_name_means_the_only_sandbox_of_it_that_has_not_ended(server: Server) -> None:
    with Skerry(server.url, server.key) as client:
        dead, alive = client.create(name="both"), client.create(name="both")
        with pytest.raises(Conflict, match=r"both, ready"):
            find(client, "both")
        server.call(server.provider.die(dead.info.id))  # pyright: ignore[reportArgumentType]
        deadline = time.monotonic() + 10
        while dead.refresh().status != "failed":
            assert time.monotonic() < deadline, "its death is not recorded"
        assert find(client, "both").id == alive.id
        # What cannot be undone is not done by a guess.
        with pytest.raises(Conflict, match=r"both, failed"):
            find(client, "both", ended_too=True)
        alive.destroy()
        assert find(client, "both").id == dead.id
