"""The model hub as a source: used only where it announces the very file that is pinned."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import faults
from .spec import HubSource, Model

PROBE_S = 4.0
"""A hub that does not answer within this many seconds is left for the next source."""

_LFS_ETAG_CHARS = 64


class Hub:
    """huggingface_hub, imported late. One failed probe silences it for the life of the object."""

    def __init__(self, probe_s: float = PROBE_S) -> None:
        self._probe_s = probe_s
        self._down = ""

    def fetch(self, model: Model, source: HubSource, to: Path) -> None:
        """Put every file into `to` under the model's own name; the store checks the hashes.

        Raises UsageError VA421 when the hub is unreachable or holds other files.
        """
        if self._down:
            raise faults.hub_unusable(self._down)
        large = [
            (path, model.file(name)) for path, name in source.files if model.file(name).size > 10**7
        ]
        for path, file in large or [(p, model.file(n)) for p, n in source.files[:1]]:
            etag = self._etag(source, path)
            if len(etag) == _LFS_ETAG_CHARS and etag != file.sha256:
                raise faults.hub_unusable(f"{source.repo} holds another {path}")
        for path, name in source.files:
            got = self.download(source.repo, path, source.revision, to / ".hub")
            got.replace(to / name)

    def download(self, repo: str, path: str, revision: str, to: Path) -> Path:
        """One file into `to`, resumable. Raises UsageError VA421."""
        from huggingface_hub import hf_hub_download

        try:
            return Path(
                hf_hub_download(
                    repo, path, revision=revision, local_dir=to, etag_timeout=self._probe_s
                )
            )
        except OSError as e:
            if e.errno is not None:
                raise
            raise faults.hub_unusable(f"{repo}/{path}: {_first_line(e)}") from e
        except Exception as e:
            raise faults.hub_unusable(f"{repo}/{path}: {_first_line(e)}") from e

    def _etag(self, source: HubSource, path: str) -> str:
        def ask() -> Any:
            from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url

            if constants.HF_HUB_OFFLINE:
                raise ConnectionError("offline by HF_HUB_OFFLINE")
            url = hf_hub_url(source.repo, path, revision=source.revision)
            return get_hf_file_metadata(url, timeout=self._probe_s).etag

        try:
            return str(_within(ask, self._probe_s) or "")
        except TimeoutError:
            self._down = f"no answer within {self._probe_s:.0f} s"
        except Exception as e:
            if type(e).__name__ in ("EntryNotFoundError", "RemoteEntryNotFoundError"):
                raise faults.hub_unusable(f"{source.repo} has no {path}") from e
            self._down = _first_line(e)
        raise faults.hub_unusable(self._down)


def _within(ask: Callable[[], Any], seconds: float) -> Any:
    """Run `ask` on a daemon thread: a resolver that hangs obeys no time-out of its own."""
    box: list[Any] = []
    failure: list[BaseException] = []

    def body() -> None:
        try:
            box.append(ask())
        except BaseException as e:
            failure.append(e)

    thread = threading.Thread(target=body, name="hub-probe", daemon=True)
    thread.start()
    thread.join(seconds)
    if failure:
        raise failure[0]
    if not box:
        raise TimeoutError
    return box[0]


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__)[:200]
