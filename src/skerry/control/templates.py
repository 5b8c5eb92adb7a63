"""Templates: what there is, and building one when it is first needed."""

from collections.abc import AsyncIterator, Sequence

from skerry.control.deps import Deps
from skerry.control.streams import closing
from skerry.model.errors import Invalid, NotFound
from skerry.model.template import BuildProgress, TemplateState, TemplateStatus


async def list_all(deps: Deps) -> Sequence[TemplateState]:
    return await deps.provider.templates()


async def get(deps: Deps, name: str) -> TemplateState:
    """Raises NotFound, with the names that there are."""
    states = await deps.provider.templates()
    for state in states:
        if state.name == name:
            return state
    raise NotFound(f"No template '{name}'. There are: {', '.join(sorted(s.name for s in states)) or 'none'}.")


async def check(deps: Deps, name: str) -> None:
    """Raises Invalid, field `template`, when there is no such template. Remembers those that there are."""
    if name in deps.known_templates:
        return
    try:
        await get(deps, name)
    except NotFound as error:
        raise Invalid(error.message, code="unknown_template", field="template") from error
    deps.known_templates.add(name)


async def ensure_built(deps: Deps, name: str) -> None:
    """Return when the template is ready, having built it if need be, or waited for the build that runs.

    Raises:
        Refused: The build failed.
    """
    async with closing(deps.provider.build_template(name)) as steps:
        async for _ in steps:
            pass


async def build(deps: Deps, name: str) -> AsyncIterator[BuildProgress]:
    """Build a template, or follow the build that runs. Whoever stops listening does not stop the build.

    Raises:
        NotFound: No such template.
        Refused: The build failed.
    """
    await get(deps, name)
    deps.tasks.spawn(ensure_built(deps, name), name=f"build {name}")
    async with closing(deps.provider.build_template(name)) as steps:
        async for step in steps:
            yield step


async def build_log(deps: Deps, name: str) -> AsyncIterator[BuildProgress]:
    """The log of the build that runs, to its end; of a template that is not being built, one line that says so."""
    state = await get(deps, name)
    if state.status is TemplateStatus.BUILDING:
        async with closing(deps.provider.build_template(name)) as steps:
            async for step in steps:
                yield step
        return
    lines = {
        TemplateStatus.READY: f"Template '{name}' is ready.",
        TemplateStatus.FAILED: f"The last build of '{name}' failed: {state.error}",
        TemplateStatus.PENDING: f"Template '{name}' is not built yet: its first sandbox builds it.",
    }
    yield BuildProgress(name, 1.0 if state.status is TemplateStatus.READY else 0.0, lines[state.status])
