"""Scenes from a library of sounds: as many of each kind as are asked for, by names alone."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from .scene import REPLIES, After, Echo, Kind, Play, Scene
from .sounds import Library, Sound, join, ranked, split

FULL: dict[Kind, int] = {
    Kind.SMOOTH: 200,
    Kind.PAUSE: 80,
    Kind.CORRECTION: 60,
    Kind.INTERRUPTION: 140,
    Kind.INTERRUPTION_ECHO: 60,
    Kind.BACKCHANNEL: 64,
    Kind.COUGH: 60,
    Kind.CLATTER: 60,
    Kind.BACKGROUND: 60,
    Kind.SIDE: 60,
    Kind.ECHO: 65,
}
"""Of each kind: 60 before a rate counts, 200 where a 95th percentile is asked for."""
QUICK: dict[Kind, int] = {kind: max(3, n // 20) for kind, n in FULL.items()}

START_MS = 500
PAUSES_MS = (300, 400, 500, 600, 700, 800, 1000, 1200)
ECHOES = (
    Echo(0.0, 90), Echo(-6.0, 120), Echo(-12.0, 60), Echo(-20.0, 180), Echo(-3.0, 100, True),
)  # fmt: skip
NOISES_DB = (-66.0, -66.0, -50.0)  # a quiet room twice, then a busy one
PLAYERS_MS = (0, 60, 200, 400)


def seed_of(scene: Scene) -> int:
    """Of the scene's room: by name, so that every system hears the same noise."""
    return int.from_bytes(hashlib.sha256(scene.name.encode()).digest()[:4], "big")


def build(library: Library, half: int | None, counts: dict[Kind, int]) -> list[Scene]:
    """All scenes of one half of the files (None: of all files)."""
    builder = _Builder(library, half, counts)
    builder.turns()
    builder.pauses()
    builder.interruptions()
    builder.no_turns()
    builder.echoes()
    return builder.scenes


_Make = Callable[[int, Sound], Scene | None]


class _Builder:
    """Owns the list of scenes and the choice of sounds for each."""

    def __init__(self, library: Library, half: int | None, counts: dict[Kind, int]) -> None:
        self._library = library
        self._half = half
        self._counts = counts
        self._whole = [t for t in self._mine(library.turns) if 0.7 <= t.speech_s <= 8.0]
        self._short = [t for t in self._mine(library.turns) if 0.5 <= t.speech_s <= 3.5]
        self.scenes: list[Scene] = []

    def _mine(self, sounds: Sequence[Sound]) -> list[Sound]:
        return [s for s in sounds if self._half is None or s.half == self._half]

    def _fill(self, n: int, salt: str, sounds: Sequence[Sound], make: _Make) -> None:
        """Round the sounds with ever new variants until there are n scenes."""
        order, made = ranked(sounds, salt), 0
        for i in range(8 * n if order else 0):
            scene = make(i, order[i % len(order)])
            if scene is not None:
                self.scenes.append(scene)
                made += 1
            if made == n:
                return

    def _scene(
        self,
        kind: Kind,
        detail: str,
        i: int,
        plays: tuple[Play, ...],
        *,
        over: bool = False,
        echo: Echo | None = None,
    ) -> Scene:
        first = plays[0].sound.name if plays else "nobody"
        return Scene(
            name=f"{kind}/{detail}/{i}/{first}",
            kind=kind,
            detail=detail,
            human=bool(plays) and all(p.sound.human for p in plays),
            plays=plays,
            agent_first=over,
            reply=len(self.scenes) % len(REPLIES),
            echo=echo,
            player_ms=PLAYERS_MS[i % 4] if over and echo is None else 0,
            noise_db=NOISES_DB[i % 3],
        )

    def turns(self) -> None:
        """A whole turn and then silence; a turn and then, at once, other words."""

        def smooth(i: int, sound: Sound) -> Scene:
            gain = (0.0, -8.0)[i // 3 % 2]
            return self._scene(Kind.SMOOTH, "whole", i, (Play(sound, START_MS, gain_db=gain),))

        def corrected(i: int, sound: Sound) -> Scene:
            other = self._short[i * 7 % len(self._short)]
            then = Play(other, 500 + i * 211 % 1000, After.SOUND)
            return self._scene(Kind.CORRECTION, "new words", i, (Play(sound, START_MS), then))

        self._fill(self._counts[Kind.SMOOTH], "smooth", self._whole, smooth)
        firsts = [s for s in self._short if s.speech_s >= 0.8]
        self._fill(self._counts[Kind.CORRECTION], "correction", firsts, corrected)

    def pauses(self) -> None:
        """Beginnings with what goes on, and whole turns parted at a quiet place."""
        starts = {s.name: (s, rest) for s, rest in self._library.starts}
        firsts = self._mine([s for s, _ in starts.values()])

        def unfinished(i: int, sound: Sound) -> Scene:
            rest = starts[sound.name][1]
            gaps = [PAUSES_MS[(i * 3 + j * 5) % len(PAUSES_MS)] for j in range(len(rest))]
            whole = join(sound.name, (sound, *rest), gaps)
            return self._scene(Kind.PAUSE, "unfinished", i, (Play(whole, START_MS),))

        def parted(i: int, sound: Sound) -> Scene | None:
            made = split(sound, PAUSES_MS[i * 3 % len(PAUSES_MS)])
            if made is None:
                return None
            return self._scene(Kind.PAUSE, "parted", i, (Play(made, START_MS),))

        n = self._counts[Kind.PAUSE]
        n_first = n // 2 if firsts else 0
        self._fill(n_first, "unfinished", firsts, unfinished)
        long_enough = [s for s in self._whole if s.speech_s >= 1.2]
        self._fill(n - n_first, "parted", long_enough, parted)

    def interruptions(self) -> None:
        """Words to us while we speak."""

        def clean(i: int, sound: Sound) -> Scene:
            play = Play(sound, _later(i), After.REPLY, (0.0, -6.0, -3.0)[i // 3 % 3])
            return self._scene(Kind.INTERRUPTION, "clean", i, (play,), over=True)

        def echoed(i: int, sound: Sound) -> Scene:
            echo = ECHOES[i % len(ECHOES)]
            play = Play(sound, 2500 + _later(i) // 2, After.REPLY)
            kind = Kind.INTERRUPTION_ECHO
            return self._scene(kind, echo.name, i, (play,), over=True, echo=echo)

        self._fill(self._counts[Kind.INTERRUPTION], "interruption", self._short, clean)
        self._fill(self._counts[Kind.INTERRUPTION_ECHO], "echoed", self._short, echoed)

    def no_turns(self) -> None:
        """What sounds while we speak and takes no turn."""
        lib = self._library
        recorded = [s for s in lib.backchannels if s.human]
        made = [s for s in lib.backchannels if not s.human]
        for kind, detail, sounds, gains, far in (
            (Kind.BACKCHANNEL, "recorded", recorded, (0.0, -3.0, -6.0), False),
            (Kind.BACKCHANNEL, "made", made, (0.0, -3.0, -6.0), False),
            (Kind.COUGH, "made", lib.coughs, (0.0, 6.0, -6.0), False),
            (Kind.CLATTER, "made", lib.clatter, (0.0, 6.0, -6.0), False),
            (Kind.BACKGROUND, "far", self._whole, (-22.0, -25.0, -28.0), True),
            (Kind.SIDE, "turned away", self._whole, (-10.0, -12.0, -14.0), True),
        ):
            self._over_us(kind, detail, self._mine(sounds), gains, far=far)

    def _over_us(
        self, kind: Kind, detail: str, sounds: Sequence[Sound], gains: Sequence[float], *, far: bool
    ) -> None:
        def make(i: int, sound: Sound) -> Scene:
            gain = gains[i // 2 % len(gains)]
            play = Play(sound, _later(i), After.REPLY, gain, far)
            return self._scene(kind, detail, i, (play,), over=True)

        self._fill(self._counts[kind], f"{kind}/{detail}", sounds, make)

    def echoes(self) -> None:
        """Nothing but our own voice."""
        for i in range(self._counts[Kind.ECHO]):
            echo = ECHOES[i % len(ECHOES)]
            self.scenes.append(self._scene(Kind.ECHO, echo.name, i, (), over=True, echo=echo))


def _later(i: int) -> int:
    """Where in a reply of nine seconds: after the first word, before the last."""
    return 900 + i * 397 % 4200
