"""`python -m loadtest.serve SETTINGS.json`: the server that a load test starts.

`voice-agent up` with a language model that is scripted (`script`), or as a naive server would be
built (`baseline`). Settings: {"flags": {dotted name: value}, "script": bool, "baseline": bool,
"held": seconds between looks at what it holds, which are written beside the settings, or null}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from loadtest.held import keep_looking
from loadtest.own_server import HELD
from loadtest.parts import parts_for
from voice_agent.config import load_config


def main() -> None:
    from voice_agent.cli.console import fail
    from voice_agent.cli.serve import serve
    from voice_agent.errors import VoiceAgentError

    file = Path(sys.argv[1])
    settings = json.loads(file.read_text("utf-8"))
    if settings["held"] is not None:
        keep_looking(file.parent / HELD, settings["held"])
    try:
        config = load_config(None, settings["flags"]).config
        serve(config, parts_for(script=settings["script"], baseline=settings["baseline"]))
    except VoiceAgentError as error:
        fail(error)


if __name__ == "__main__":
    main()
