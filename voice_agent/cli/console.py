"""What a terminal shows: errors with their code, and progress on anything slow."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from voice_agent.errors import CapacityError, UsageError, VoiceAgentError

EXIT_INTERNAL, EXIT_USAGE, EXIT_CAPACITY, EXIT_INTERRUPTED = 1, 2, 3, 130


class Group(TyperGroup):
    """Turns our errors into one line on standard error and an exit status."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except VoiceAgentError as e:
            fail(e)
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except Exception as e:
            if type(e).__module__ == "engine.errors":
                fail(engine_error(e))
            raise


def engine_error(error: Exception) -> VoiceAgentError:
    """An error of the engine package, with a code."""
    kind = type(error).__name__
    if kind == "CapacityError":
        return CapacityError(str(error), code="VA210")
    if kind in ("UsageError", "ModelError"):
        return UsageError(str(error), code="VA473")
    return VoiceAgentError(str(error), code="VA311")


def fail(error: VoiceAgentError) -> None:
    """Print it and leave with the status of its kind. Always raises typer.Exit."""
    print(f"error {error}", file=sys.stderr)
    if isinstance(error, UsageError):
        raise typer.Exit(EXIT_USAGE)
    if isinstance(error, CapacityError):
        raise typer.Exit(EXIT_CAPACITY)
    raise typer.Exit(EXIT_INTERNAL)


Stage = Callable[[str, float | None], None]


@contextmanager
def progress(*, quiet: bool = False) -> Iterator[Stage]:
    """A function (what, share or None) that shows one moving line per stage on standard error.

    Not on a terminal: one plain line per new stage. Prints nothing when quiet.
    """
    if quiet:
        yield lambda *_: None
        return
    if not sys.stderr.isatty():
        yield _plain()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=False) as bars:
        current: list[Any] = []
        last = [""]

        def stage(what: str, share: float | None = None) -> None:
            if what != last[0]:
                if current:
                    bars.update(current[0], total=1.0, completed=1.0)
                    current.clear()
                current.append(bars.add_task(what, total=None))
                last[0] = what
            if share is not None:
                bars.update(current[0], total=1.0, completed=min(1.0, share))

        yield stage
        if current:
            bars.update(current[0], total=1.0, completed=1.0)


def _plain() -> Stage:
    last = [""]

    def stage(what: str, share: float | None = None) -> None:
        if what != last[0]:
            print(f"{what} ...", file=sys.stderr, flush=True)
            last[0] = what

    return stage
