"""A telephone in a process of its own that can TLS and SRTP: `python -m ... URI JSON`.

It calls, sings a tone of 700 Hz, and prints one JSON line: what was heard and how it was secured.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import numpy as np
from baresip import AudioNotActive, AudioRestarted, CallFailed, Config, Runtime, UserAgent

HOST = "127.0.0.1"


async def main(uri: str, options: dict[str, Any]) -> dict[str, Any]:
    """options: port, rtp (first port), host, transport, mediaenc, codec, ca_file, seconds."""
    runtime, host = Runtime(), options.get("host", HOST)
    text = [
        f"sip_listen {host}:{options['port']}",
        f"rtp_ports {options['rtp']}-{options['rtp'] + 7}",
    ]
    text += [f"sip_verify_server {'yes' if options.get('ca_file') else 'no'}"]
    text += [f"sip_cafile {options['ca_file']}"] if options.get("ca_file") else []
    await runtime.start(Config(net_interface=host, extra_config_text="\n".join(text) + "\n"))
    account = f"<sip:phone@{host};transport={options.get('transport', 'udp')}>;regint=0"
    account += f";audio_codecs={options.get('codec', 'pcmu')}"
    account += f";mediaenc={options['mediaenc']}" if options.get("mediaenc") else ""
    agent = await UserAgent.create(runtime, account)
    early: list[Any] = []  # a neighbour answers before the binding knows its call
    runtime.subscribe(early.append)
    call = await agent.dial(uri)
    for event in early:
        call._on_stack_event(event)
    secured: list[str] = []
    call.on(lambda e: secured.append(e.text or "") if e.event.name == "CALL_MENC" else None)
    try:
        await call.wait_established(20.0)
    except CallFailed as error:
        await runtime.close()
        return {"failed": error.status or error.reason}
    levels, rate = await _sing(call, options.get("seconds", 2.5))
    await call.hangup()
    await runtime.close()
    return {"loudest": max(levels, default=0.0), "rate": rate, "secured": secured}


async def _sing(call: Any, seconds: float) -> tuple[list[float], int]:
    levels: list[float] = []
    at = rate = 0
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until:
        await asyncio.sleep(0.01)
        try:
            info = call.audio.info()
            if info.rx_buffered:
                pcm = np.frombuffer(call.audio.read(info.rx_buffered), np.int16)
                levels.append(float(np.abs(pcm.astype(float)).mean()))
            rate = info.tx_sample_rate
            n = rate // 50
            if info.tx_ready and info.tx_buffered < 2 * n * info.tx_channels * 2:
                t = (at + np.arange(n)) / rate
                at += n
                wave = (8000 * np.sin(2 * np.pi * 700 * t)).astype(np.int16)
                call.audio.write(np.repeat(wave, info.tx_channels).tobytes())
        except (AudioNotActive, AudioRestarted):
            continue
    return levels, rate


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))))
