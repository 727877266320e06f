"""Every command and its options; each hands over to the module that does the work."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from voice_agent.cli.console import Group
from voice_agent.cli.load_commands import loadtest_app

app = typer.Typer(
    name="voice-agent",
    help="A full-duplex voice agent server.",
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
models_app = typer.Typer(help="Models: list, fetch, verify.", no_args_is_help=True)
config_app = typer.Typer(help="Configuration.", no_args_is_help=True)
keys_app = typer.Typer(help="API keys: add, list, revoke.", no_args_is_help=True)
app.add_typer(models_app, name="models")
app.add_typer(config_app, name="config")
app.add_typer(keys_app, name="keys")
calls_app = typer.Typer(help="Calls that are over: list, show, export.", no_args_is_help=True)
app.add_typer(calls_app, name="calls")
app.add_typer(loadtest_app, name="loadtest")

ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help="TOML file (default: ./voice-agent.toml).")
]
Host = Annotated[str | None, typer.Option(help="Address to listen on.")]
Port = Annotated[int | None, typer.Option(help="TCP port; 0 picks a free one.")]
Profile = Annotated[str | None, typer.Option(help="auto, cpu or gpu.")]
Stt = Annotated[str | None, typer.Option(help="Recogniser: auto, a name, or a folder.")]
Llm = Annotated[str | None, typer.Option(help="Language model: auto, a name, or a path.")]
Voice = Annotated[str | None, typer.Option(help="Voice model: auto, a name, or a folder.")]
Calls = Annotated[int | None, typer.Option("--calls", help="Calls at once.")]
Agent = Annotated[str | None, typer.Option(help="Agent: a NAME of agents/NAME.toml.")]
LogFormat = Annotated[str | None, typer.Option("--log", help="text or json.")]
Server = Annotated[
    str | None, typer.Option(help="The running server; default: as configured here.")
]
AdminKey = Annotated[
    str | None, typer.Option("--key", envvar="VOICE_AGENT_KEY", help="A key with scope admin.")
]
NoFetch = Annotated[bool, typer.Option("--no-fetch", help="Never download a model.")]


class Format(StrEnum):
    """Of an export."""

    JSON = "json"
    CSV = "csv"


OfAgent = Annotated[str | None, typer.Option("--agent", help="Only of this agent.")]
OfOutcome = Annotated[
    str | None, typer.Option("--outcome", help="Only those that ended so: caller_hung_up ...")
]
OfDays = Annotated[float | None, typer.Option("--days", min=0, help="Only of the last days.")]


def _config(file: Path | None, no_fetch: bool = False, **flags: Any) -> Any:
    from voice_agent.config import load_config

    given = {name.replace("__", "."): value for name, value in flags.items()}
    if no_fetch:
        given["models.fetch"] = False
    return load_config(file, given)


@app.command()
def up(
    config: ConfigFile = None,
    host: Host = None,
    port: Port = None,
    calls: Calls = None,
    profile: Profile = None,
    stt: Stt = None,
    llm: Llm = None,
    voice: Voice = None,
    agent: Agent = None,
    log: LogFormat = None,
    no_fetch: NoFetch = False,
    media_workers: Annotated[
        int | None, typer.Option(help="Processes for WebRTC's media; 0: the server's own.")
    ] = None,
    tls_self_signed: Annotated[
        bool, typer.Option(help="HTTPS with a certificate of our own (microphone from elsewhere).")
    ] = False,
    tls_certificate: Annotated[
        Path | None,
        typer.Option(help="HTTPS with this PEM certificate chain; read anew on change."),
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its PEM key.")] = None,
    sip: Annotated[bool, typer.Option("--sip", help="Take telephone calls over SIP.")] = False,
    sip_host: Annotated[str | None, typer.Option(help="Address for SIP and RTP.")] = None,
    sip_port: Annotated[int | None, typer.Option(help="SIP port; UDP and TCP.")] = None,
    sip_public: Annotated[
        bool, typer.Option("--sip-public", help="That address may be one of the Internet.")
    ] = False,
) -> None:
    """Start the server; prints its address once it answers at full speed."""
    load = partial(
        _config,
        config,
        no_fetch,
        server__host=host,
        server__port=port,
        server__max_calls=calls,
        rtc__workers=media_workers,
        server__tls_self_signed=tls_self_signed or None,
        server__tls_certificate=tls_certificate,
        server__tls_key=tls_key,
        sip__enabled=sip or None,
        sip__host=sip_host,
        sip__port=sip_port,
        sip__public=sip_public or None,
        profile=profile,
        models__stt=stt,
        models__llm=llm,
        models__voice=voice,
        default_agent=agent,
        log__format=log,
    )
    loaded = load()
    from voice_agent.cli.serve import serve

    serve(loaded.config, load=lambda: load().config)


@app.command()
def doctor(
    config: ConfigFile = None,
    again: Annotated[bool, typer.Option(help="Measure the speeds again.")] = False,
    quick: Annotated[bool, typer.Option(help="Do not measure.")] = False,
) -> None:
    """Check this machine; exit status 1 when the server would not work."""
    from voice_agent.cli.checkup import run_doctor

    run_doctor(_config(config).config, again=again, quick=quick)


@app.command()
def say(
    text: Annotated[str, typer.Argument(help="What to say.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="WAV file to write (24 kHz mono).")],
    voice: Voice = None,
    style: Annotated[str, typer.Option(help="Voice of a model that has several.")] = "",
    speed: Annotated[float, typer.Option(min=0.5, max=2.0)] = 1.0,
    config: ConfigFile = None,
    no_fetch: NoFetch = False,
) -> None:
    """Speak a text into a WAV file."""
    from voice_agent.cli.sound import run_say

    loaded = _config(config, no_fetch, models__voice=voice)
    run_say(loaded.config, text, out, style=style, speed=speed)


@app.command()
def transcribe(
    wav: Annotated[Path, typer.Argument(help="WAV file, any rate.")],
    stt: Stt = None,
    config: ConfigFile = None,
    no_fetch: NoFetch = False,
) -> None:
    """Print what is said in a WAV file."""
    from voice_agent.cli.sound import run_transcribe

    run_transcribe(_config(config, no_fetch, models__stt=stt).config, wav)


@app.command()
def chat(
    config: ConfigFile = None,
    llm: Llm = None,
    agent: Agent = None,
    no_fetch: NoFetch = False,
) -> None:
    """Type with the agent; the engine and prompt of a call, without sound."""
    from voice_agent.cli.chat import run_chat

    run_chat(_config(config, no_fetch, models__llm=llm, default_agent=agent).config)


@app.command()
def talk(
    wav: Annotated[Path, typer.Option("--wav", help="The caller: a WAV file, any rate.")],
    out: Annotated[Path, typer.Option("--out", help="Stereo WAV: caller left, agent right.")],
    json: Annotated[Path | None, typer.Option("--json", help="Trace of every turn.")] = None,
    record: Annotated[
        Path | None, typer.Option("--record", help="Keep the call for `replay` (NAME.call).")
    ] = None,
    config: ConfigFile = None,
    profile: Profile = None,
    stt: Stt = None,
    llm: Llm = None,
    voice: Voice = None,
    agent: Agent = None,
    log: LogFormat = None,
    no_fetch: NoFetch = False,
) -> None:
    """Hold a complete call with a recorded caller, at real-time pace."""
    loaded = _config(
        config,
        no_fetch,
        profile=profile,
        models__stt=stt,
        models__llm=llm,
        models__voice=voice,
        default_agent=agent,
        log__format=log,
    )
    from voice_agent.cli.call import run_call

    run_call(loaded.config, wav, out, json, record)


@app.command()
def call(
    to: Annotated[str, typer.Argument(help="sip:user@host, or a number where there is a trunk.")],
    agent: Agent = None,
    server: Server = None,
    key: AdminKey = None,
    config: ConfigFile = None,
) -> None:
    """Have a running server (`up --sip`) call someone; returns once they answered."""
    from voice_agent.cli.dial import run_dial

    run_dial(_config(config).config, to, agent, server, key)


@app.command()
def top(
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="One look, and no screen.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One look, as JSON.")] = False,
    server: Server = None,
    key: AdminKey = None,
    config: ConfigFile = None,
) -> None:
    """A running server, live: its calls, its stages, its memory (the data of the page /ops)."""
    from voice_agent.cli.top import run_top

    loaded = _config(config).config
    run_top(loaded, every, once=once, as_json=json, server=server, key=key)


@app.command()
def drain(
    seconds: Annotated[
        float | None, typer.Option(min=0, help="That live calls may take; default: as configured.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Return once the server is gone.")] = False,
    server: Server = None,
    key: AdminKey = None,
    config: ConfigFile = None,
) -> None:
    """A running server takes no new calls, lets live ones finish, and ends."""
    from voice_agent.cli.operate import run_drain

    run_drain(_config(config).config, seconds, wait, server, key)


@app.command()
def reload(server: Server = None, key: AdminKey = None, config: ConfigFile = None) -> None:
    """A running server reads its configuration again, for new calls; a bad one changes nothing."""
    from voice_agent.cli.operate import run_reload

    run_reload(_config(config).config, server, key)


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(help="A recorded call (.call).")],
    save: Annotated[
        Path | None,
        typer.Option(
            "--save", help="Keep it as a fixture: a file, or a folder such as tests/data/calls."
        ),
    ] = None,
) -> None:
    """Replay a recorded call on a virtual clock; exit status 1 when it decides otherwise."""
    from rich.console import Console

    from voice_agent.cli.replay import run_replay

    if not run_replay(file, save, Console()):
        raise typer.Exit(1)


@app.command()
def init(
    name: Annotated[str, typer.Argument(help="The agent's name.")] = "default",
    folder: Annotated[Path, typer.Option("--dir", help="Where agents live.")] = Path("agents"),
    force: Annotated[bool, typer.Option(help="Overwrite.")] = False,
) -> None:
    """Write a commented agent file to start from."""
    from voice_agent.cli.files import run_init

    run_init(name, folder, force=force)


@config_app.command("show")
def config_show(config: ConfigFile = None) -> None:
    """Print every value that applies, and where it comes from."""
    from voice_agent.cli.files import run_config_show

    run_config_show(_config(config))


@models_app.command("list")
def models_list(config: ConfigFile = None) -> None:
    """Every model this server knows, and whether it is here."""
    from voice_agent.cli.models import run_list

    run_list(_config(config).config)


@models_app.command("fetch")
def models_fetch(
    names: Annotated[list[str] | None, typer.Argument(help="Names, or groups.")] = None,
    group: Annotated[
        str, typer.Option(help="default (for `up`), small (for the tests) or all.")
    ] = "",
    config: ConfigFile = None,
) -> None:
    """Download models, check them, put them in place. Rerun to go on where it stopped."""
    from voice_agent.cli.models import run_fetch

    run_fetch(_config(config).config, names or [], group)


@models_app.command("verify")
def models_verify(
    names: Annotated[list[str] | None, typer.Argument(help="Names; default: all here.")] = None,
    config: ConfigFile = None,
) -> None:
    """Hash every file again; exit status 1 when one is damaged or a named one is missing."""
    from voice_agent.cli.models import run_verify

    run_verify(_config(config).config, names or [])


@keys_app.command("add")
def keys_add(
    name: Annotated[str, typer.Argument(help="Whose key it is.")],
    scope: Annotated[
        list[str] | None,
        typer.Option(help="call, api, metrics or admin; again for more. Default: call."),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="The only agent it opens.")] = None,
    days: Annotated[float | None, typer.Option(help="Until it expires.")] = None,
    config: ConfigFile = None,
) -> None:
    """Make a key and print it; only its hash is kept. A running server takes it up at once."""
    from voice_agent.cli.keys import run_add

    run_add(_config(config).config, name, scope or ["call"], agent, days)


@keys_app.command("list")
def keys_list(config: ConfigFile = None) -> None:
    """Every key's id, name and rights."""
    from voice_agent.cli.keys import run_list

    run_list(_config(config).config)


@keys_app.command("revoke")
def keys_revoke(
    key: Annotated[str, typer.Argument(help="Its id or name.")], config: ConfigFile = None
) -> None:
    """A running server stops taking it, and every token made with it, at once."""
    from voice_agent.cli.keys import run_revoke

    run_revoke(_config(config).config, key)


@calls_app.command("list")
def calls_list(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="So many, the newest first.")] = 20,
    agent: OfAgent = None,
    outcome: OfOutcome = None,
    days: OfDays = None,
    config: ConfigFile = None,
) -> None:
    """Calls, how long they lasted, how they ended and how fast they were answered."""
    from voice_agent.cli.calls import run_list, which_calls

    run_list(_config(config).config, limit, which_calls(agent, outcome, days))


@calls_app.command("show")
def calls_show(
    call: Annotated[str, typer.Argument(help="Its id, or how it begins.")],
    config: ConfigFile = None,
) -> None:
    """Every turn of a call: outcome, stages, tokens, and the words where they are kept."""
    from voice_agent.cli.calls import run_show

    run_show(_config(config).config, call)


@calls_app.command("export")
def calls_export(
    fmt: Annotated[Format, typer.Option("--format", help="What to write.")] = Format.JSON,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write; default: standard output.")
    ] = None,
    agent: OfAgent = None,
    outcome: OfOutcome = None,
    days: OfDays = None,
    config: ConfigFile = None,
) -> None:
    """Every call with its turns as JSON, or one line of CSV for each turn."""
    from voice_agent.cli.calls import run_export, which_calls

    run_export(_config(config).config, fmt, out, which_calls(agent, outcome, days))


@calls_app.command("migrate")
def calls_migrate(config: ConfigFile = None) -> None:
    """Bring the history of an older version up to date, as starting the server does."""
    from voice_agent.cli.calls import run_migrate

    run_migrate(_config(config).config)
