"""Templates: what sandboxes start from, and building them."""

import json
from collections.abc import Iterator

from skerry.model.errors import Refused
from skerry.sdk._sync.http import Http
from skerry.sdk.results import BuildLine
from skerry.sdk.sse import Decoder
from skerry.wire.base import Page
from skerry.wire.sandboxes import TemplateView


class Templates:
    """`client.templates`."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def list(self) -> list[TemplateView]:
        """All that sandboxes can be made from, built or not."""
        return Page[TemplateView].model_validate_json(self._http.call("GET", "/v1/templates")).data

    def get(self, name: str) -> TemplateView:
        """One template. Raises NotFound."""
        return TemplateView.model_validate_json(self._http.call("GET", f"/v1/templates/{name}"))

    def build(self, name: str) -> Iterator[BuildLine]:
        """Build a template, or follow the build that runs; ends at once where it is ready.

        Raises:
            NotFound: No such template.
            Refused: The build failed; the message has its last lines.
        """
        decoder = Decoder()
        with self._http.stream(f"/v1/templates/{name}/build", method="POST") as chunks:
            for chunk in chunks:
                for event in decoder.feed(chunk):
                    body = json.loads(event.data)
                    if event.name == "error":
                        raise Refused(str(body["message"]), code=str(body["code"]))
                    if event.name == "progress":
                        yield BuildLine(float(body["fraction"]), str(body["line"]))
