"""Writes the pages that the code itself documents: docs/configuration.md, docs/openapi.json. `--check` compares."""

import json
import sys
from pathlib import Path
from typing import cast

from skerry.config import Config
from skerry.seams import Store

DOCS = Path(__file__).resolve().parent.parent / "docs"

CONFIGURATION = """# Configuration

Every setting, from the table in `src/skerry/config.py`. A setting is given, in falling order of precedence,

1. on the command line, where `skerry up` or `skerry serve` has an option for it,
2. in the environment, as `SKERRY_` and its name in capitals,
3. in `config.toml` in the home directory,
4. by its default.

`home` itself comes from `SKERRY_HOME` alone. A setting that is out of range, or unknown in `config.toml`, stops the
start with a message that names it. `up` restarts a server that runs with other settings; see
[the server](guides/server.md).

| setting | environment | default | meaning |
|---|---|---|---|
"""


def configuration() -> str:
    """The page of settings."""
    rows: list[str] = []
    for name, field in Config.model_fields.items():
        default = json.dumps(field.default) if isinstance(field.default, bool) else f"{field.default}"
        shown = f"`{default}`" if default else "(empty)"
        rows.append(f"| `{name}` | `SKERRY_{name.upper()}` | {shown} | {field.description} |\n")
    return CONFIGURATION + "".join(rows)


def openapi() -> str:
    """The API's description, as the server gives it at /openapi.json."""
    from skerry.api.app import create_app
    from skerry.clock import SystemClock
    from skerry.control.deps import Deps
    from skerry.testing.fake_provider import FakeProvider

    # Nothing is asked of the store: the description is in the routes.
    deps = Deps(cast(Store, None), FakeProvider(), SystemClock(), Config())
    return json.dumps(create_app(deps).openapi(), indent=1, ensure_ascii=False, sort_keys=True) + "\n"


PAGES = {"configuration.md": configuration, "openapi.json": openapi}


def stale() -> list[str]:
    """Names of pages that differ from what the code says."""
    return [name for name, make in PAGES.items() if not (DOCS / name).exists() or (DOCS / name).read_text() != make()]


def main() -> int:
    if "--check" in sys.argv[1:]:
        names = stale()
        for name in names:
            print(f"docs/{name} is stale: run make generate")
        return 1 if names else 0
    for name, make in PAGES.items():
        (DOCS / name).write_text(make())
    return 0


if __name__ == "__main__":
    sys.exit(main())
