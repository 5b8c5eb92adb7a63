"""Templates: what sandboxes start from, and building them."""

from collections.abc import Iterator

from skerry.sdk._sync.http import Http, segment
from skerry.sdk.errors import Unreachable
from skerry.sdk.requests import answer_of
from skerry.sdk.results import BuildLine, build_line_from
from skerry.sdk.sse import Decoder
from skerry.wire.base import Page
from skerry.wire.sandboxes import TemplateView


class Templates:
    """`client.templates`."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def list(self) -> list[TemplateView]:
        """All that sandboxes can be made from, built or not."""
        return answer_of(Page[TemplateView], self._http.call("GET", "/v1/templates")).data

    def get(self, name: str) -> TemplateView:
        """One template. Raises NotFound."""
        return answer_of(TemplateView, self._http.call("GET", f"/v1/templates/{segment(name)}"))

    def build(self, name: str) -> Iterator[BuildLine]:
        """Build a template, or follow the build that runs; ends at once where it is ready.

        Raises:
            NotFound: No such template.
            Refused: The build failed; the message has its last lines.
            Unreachable: The connection broke; the build goes on.
        """
        decoder, ended = Decoder(), False
        with self._http.stream(f"/v1/templates/{segment(name)}/build", method="POST", again=True) as chunks:
            for chunk in chunks:
                for event in decoder.feed(chunk):
                    ended = ended or event.name == "end"
                    line = build_line_from(event)
                    if line is not None:
                        yield line
        if not ended:
            raise Unreachable("The server ended the stream before the build's end. Ask again to follow it.")
