"""The fake fleet keeps the contract that the real one keeps."""

from collections.abc import AsyncIterator

import pytest

from skerry.model.ids import SandboxId
from skerry.testing.fake_provider import FakeProvider
from skerry.testing.provider_suite import ProviderSuite, World


class TestFakeProvider(ProviderSuite):
    @pytest.fixture
    async def world(self) -> AsyncIterator[World]:
        provider = FakeProvider()

        async def die(sandbox_id: SandboxId) -> None:
            await provider.die(sandbox_id)

        yield World(provider, "python", die)
        await provider.close()
