"""`voice-agent models`: what there is, fetching it, checking it."""

from __future__ import annotations

import sys

import typer
from rich.console import Console, JustifyMethod
from rich.table import Table

from voice_agent.cli.console import EXIT_INTERNAL, progress
from voice_agent.config import Config
from voice_agent.errors import UsageError
from voice_agent.models import REGISTRY, Model, ModelState, ModelStore, Progress
from voice_agent.models.spec import HubSource, InstalledSource, NpmSource, Source
from voice_agent.selection import DEFAULTS, SMALL

GROUPS = {"default": DEFAULTS, "small": SMALL, "all": tuple(REGISTRY)}


def run_list(config: Config) -> None:
    """A table, then the notes."""
    store = ModelStore(sources=config.models.sources)
    table = Table(title=f"models in {store.root}", title_justify="left")
    for column in ("name", "job", "MB", "here", "licence", "sources, in order"):
        wide = column in ("licence", "sources, in order")
        justify: JustifyMethod = "right" if column == "MB" else "left"
        table.add_column(column, justify=justify, no_wrap=not wide, overflow="fold")
    for model in REGISTRY.values():
        table.add_row(
            model.name,
            model.job,
            f"{model.size / 1e6:.0f}",
            "yes" if store.present(model.name) else "-",
            model.licence,
            _sources(model, config),
        )
    console = Console()
    console.print(table)
    for model in REGISTRY.values():
        if model.note:
            console.print(f"{model.name}: {model.note}", style="dim", highlight=False)


def run_fetch(config: Config, names: list[str], group: str) -> None:
    """Fetch by name or group; prints one line per model."""
    if group and group not in GROUPS:
        raise UsageError(f"no group {group!r}; there are: {', '.join(GROUPS)}", code="VA410")
    wanted = [*names, *GROUPS.get(group, ())] or list(DEFAULTS)
    store = ModelStore(sources=config.models.sources)
    for name in wanted:
        store.model(name)
    with progress() as stage:

        def show(p: Progress) -> None:
            stage(f"{p.model}: {p.stage}", p.done / p.total if p.total else None)

        places = [(name, store.fetch(name, show)) for name in dict.fromkeys(wanted)]
    for name, path in places:
        print(f"{name}: {path}")


def run_verify(config: Config, names: list[str]) -> None:
    """Hash again; the exit status tells."""
    store = ModelStore(sources=config.models.sources)
    bad = False
    for name in names or list(REGISTRY):
        state = store.verify(name)
        if state is ModelState.MISSING and not names:
            continue
        print(f"{name}: {state.value}")
        if state is not ModelState.READY:
            bad = True
            print(f"  run: voice-agent models fetch {name}", file=sys.stderr)
    if bad:
        raise typer.Exit(EXIT_INTERNAL)


def _sources(model: Model, config: Config) -> str:
    own = [config.models.sources[model.name]] if model.name in config.models.sources else []
    return "; ".join([*own, *(_source(s) for s in model.sources)])


def _source(source: Source) -> str:
    if isinstance(source, HubSource):
        return "model hub"
    if isinstance(source, InstalledSource):
        return f"installed package {source.package}"
    if isinstance(source, NpmSource):
        return f"npm {source.package}@{source.version}"
    first, *rest = source.wheels
    text = f"wheel {first.requirement}"
    return f"{text} and {len(rest)} more" if rest else text
