"""Recorded telephone prompts (Asterisk core sounds, CC-BY-SA) as human callers, where they are.

They are read from where the system's package puts them, or else from a cache that the package
manager fills once; nothing of them is kept in this repository.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
import tempfile
from pathlib import Path

import av
import numpy as np

from voice_agent.models import data_dir
from voice_agent.types import Pcm16

log = logging.getLogger(__name__)

PACKAGE = "asterisk-core-sounds-en-g722"
VOICE = Path("usr/share/asterisk/sounds/en_US_f_Allison")
FETCH_S = 120


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


WHOLE = _names(
    """agent-incorrect agent-loginok agent-newlocation agent-pass agent-user all-circuits-busy-now
    auth-incorrect cannot-complete-as-dialed check-number-dial-again conf-extended conf-full
    conf-getchannel conf-getconfno conf-getpin conf-invalid conf-invalidpin conf-kicked
    conf-leaderhasleft conf-locked conf-lockednow conf-muted conf-nonextended conf-now-muted
    conf-now-recording conf-now-unmuted conf-onlyone conf-onlyperson conf-placeintoconf
    conf-roll-callcomplete conf-unlockednow conf-unmuted conf-userswilljoin conf-waitforleader
    confbridge-begin-glorious-a confbridge-begin-glorious-b confbridge-begin-leader
    confbridge-conf-begin confbridge-conf-end confbridge-invalid confbridge-lock-no-join
    confbridge-locked confbridge-muted confbridge-only-one confbridge-only-participant
    confbridge-pin confbridge-pin-bad confbridge-removed confbridge-unlocked confbridge-unmuted
    demo-echodone demo-enterkeywords demo-nomatch demo-thanks dir-nomatch dir-nomore dir-welcome
    do-not-disturb enter-num-blacklist entr-num-rmv-blklist feature-not-avail-line hello-world
    invalid number-not-answering one-moment-please pbx-invalid pbx-invalidpark pbx-parkingfailed
    please-try-again please-try-call-later pls-hold-while-try pm-invalid-option priv-introsaved
    priv-recordintro privacy-incorrect privacy-unident queue-periodic-announce queue-thankyou
    queue-youarenext simul-call-limit-reached something-terribly-wrong
    sorry-youre-having-problems speed-dial-empty transfer vm-advopts vm-calldiffnum vm-changeto
    vm-delete vm-deleted vm-dialout vm-enter-num-to-call vm-helpexit vm-incorrect vm-intro
    vm-invalid-password vm-invalidpassword vm-leavemsg vm-mailboxfull vm-mismatch vm-msgforwarded
    vm-msgsaved vm-newpassword vm-next vm-nobodyavail vm-nobox vm-nomore vm-nonumber
    vm-passchanged vm-pls-try-again vm-prev vm-reachoper vm-rec-busy vm-rec-name vm-repeat
    vm-review-nonurgent vm-review-urgent vm-savefolder vm-saveoper vm-sorry vm-star-cancel
    vm-starmain vm-tempgreetactive vm-tempremoved vm-tmpexists vm-tocallback vm-tocallnum
    vm-tocancelmsg vm-toenternumber vm-toforward vm-tomakecall vm-tooshort vm-toreply
    vm-torerecord vm-undelete vm-undeleted vm-whichbox"""
)
"""Prompts that are whole utterances, judged by their words. Others are pieces of sentences."""

UNFINISHED: dict[str, tuple[str, ...]] = {
    "at-tone-time-exactly": ("digits/5", "digits/oclock"),
    "conf-thereare": ("digits/7", "conf-otherinparty"),
    "confbridge-there-are": ("digits/4", "confbridge-participants"),
    "dir-pls-enter": ("digits/3", "dir-first"),
    "from-unknown-caller": ("digits/today",),
    "if-correct-press": ("digits/1",),
    "info-about-last-call": ("is-in-use",),
    "num-was-successfully": ("removed",),
    "privacy-to-blacklist-last-caller": ("digits/9", "digits/1"),
    "queue-quantity1": ("digits/8", "queue-quantity2"),
    "queue-thereare": ("digits/6",),
    "to-call-this-number": ("digits/2",),
    "vm-duration": ("digits/3", "vm-minutes"),
    "vm-from-extension": ("digits/2", "digits/8"),
    "vm-from-phonenumber": ("digits/5", "digits/5"),
    "vm-num-i-have": ("digits/6", "digits/4", "digits/1"),
    "vm-onefor-full": ("vm-messages",),
    "vm-savedto": ("vm-Cust1",),
    "vm-theperson": ("digits/4", "vm-isonphone"),
    "vm-youhave": ("digits/9", "vm-messages"),
    "you-entered": ("digits/8", "digits/2"),
}
"""Beginnings that were spoken to be gone on with, and what goes on: a pause where one would be."""


def folder() -> Path | None:
    """Where the prompts are, fetched once if they must be; None if they cannot be had here."""
    installed = Path("/") / VOICE
    if installed.is_dir():
        return installed
    cached = data_dir() / "prompts" / "en_US_f_Allison"
    if not cached.is_dir():
        _fetch(cached)
    return cached if cached.is_dir() else None


def _fetch(target: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return
    with tempfile.TemporaryDirectory() as work:
        for command in (["apt-get", "download", PACKAGE], ["dpkg-deb", "-x", "", "."]):
            command = [c or str(next(Path(work).glob("*.deb"))) for c in command]
            done = subprocess.run(
                command, cwd=work, capture_output=True, text=True, timeout=FETCH_S, check=False
            )
            if done.returncode:
                log.warning("no recorded prompts: %s", done.stderr.strip()[-200:])
                return
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(str(Path(work) / VOICE), target)


def read(path: Path) -> Pcm16:
    """A G.722 file: int16 [n] at 16 kHz."""
    with av.open(str(path), format="g722") as sound:
        frames = [np.asarray(f.to_ndarray()).reshape(-1) for f in sound.decode(audio=0)]
    pcm: Pcm16 = np.concatenate(frames).astype(np.int16)
    return pcm
