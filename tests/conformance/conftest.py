"""What suites share: one S3 server for all that need one."""

from collections.abc import Iterator

import pytest
from conformance.weed_process import Weed, s3_server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weed]:
    with s3_server(tmp_path_factory.mktemp("weed")) as server:
        yield server
