"""The telephone side's settings: what is refused, and what reaches the SIP stack."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.sip.call import callable_uri
from gateway.sip.settings import (
    Encryption,
    SipSettings,
    Trunk,
    address,
    as_json,
    check,
    door_account,
    from_json,
    stack_text,
    trunk_account,
)
from voice_agent.config import load_config
from voice_agent.errors import UsageError

pytestmark = pytest.mark.unit

GOOD = SipSettings()
TRUNK = Trunk("sip.example.com:5080", "4930123", "s3;cret pass", auth_user="acct")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"host": "phone.example.com"}, "not an address"),
        ({"host": "0.0.0.0"}, "one address"),
        ({"host": "8.8.8.8"}, "--sip-public"),
        ({"codecs": ("g729",)}, "g729"),
        ({"codecs": ()}, "at least one"),
        ({"transports": ("sctp",)}, "choose from"),
        ({"transports": ()}, "choose from"),
        ({"transports": ("tls",)}, "PEM"),
        ({"transports": ("tls",), "certificate": Path("/no/such.pem")}, "no file"),
        ({"ca_file": Path("/no/such.pem")}, "no file"),
        ({"rtp_ports": (21_000, 20_000)}, "rtp_ports"),
        ({"rtp_ports": (20_000, 20_006)}, "need 8 ports"),
        ({"user": "a b"}, "SIP address"),
        ({"direct": False}, "without a trunk"),
        ({"trunk": replace(TRUNK, registrar="")}, "trunk.registrar"),
        ({"trunk": replace(TRUNK, registrar="host;x=y")}, "trunk.registrar"),
        ({"trunk": replace(TRUNK, proxy="a b")}, "trunk.proxy"),
        ({"trunk": replace(TRUNK, user="a>b")}, "trunk.user"),
        ({"trunk": replace(TRUNK, auth_user='a"b')}, "trunk.auth_user"),
        ({"trunk": replace(TRUNK, password='a"b')}, "trunk.password"),
        ({"trunk": replace(TRUNK, transport="tls")}, "sip.transports"),
    ],
)
def test_what_cannot_work_is_refused_with_its_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match="sip\\.") as caught:
        check(replace(GOOD, **changes), 2)
    assert words in str(caught.value)


def test_a_public_address_needs_the_word() -> None:
    check(replace(GOOD, host="8.8.8.8", public=True), 2)
    check(replace(GOOD, host="192.168.1.5"), 2)
    check(GOOD, 2)


def test_settings_go_to_the_worker_whole(tmp_path: Path) -> None:
    pem = tmp_path / "own.pem"
    full = SipSettings(
        host="10.0.0.5", port=5070, transports=("tls",), certificate=pem, ca_file=pem,
        rtp_ports=(30_000, 30_100), codecs=("pcma",), encryption=Encryption.DTLS,
        allow=("*@pbx",), agent="desk", trunk=TRUNK, public=True, direct=False, user="us",
    )  # fmt: skip
    for settings in (full, GOOD):
        assert from_json(json.loads(json.dumps(as_json(settings)))) == settings


def test_the_stack_is_told_what_was_chosen(tmp_path: Path) -> None:
    pem = tmp_path / "own.pem"
    settings = replace(
        GOOD, port=5070, rtp_ports=(30_000, 30_100), certificate=pem, ca_file=pem,
        transports=("udp", "tls"), encryption=Encryption.SDES_REQUIRED, codecs=("g722", "pcma"),
    )  # fmt: skip
    lines = stack_text(settings).splitlines()
    for line in (
        "sip_listen 127.0.0.1:5070", "sip_transports udp,tls", "rtp_ports 30000-30100",
        "sip_verify_server yes", f"sip_certificate {pem}", f"sip_cafile {pem}",
    ):  # fmt: skip
        assert line in lines
    account = door_account(settings)
    assert account.startswith("<sip:voice-agent@127.0.0.1>;regint=0;catchall=yes;")
    assert "audio_codecs=g722/16000/1,pcma/8000/1" in account
    assert account.endswith(";mediaenc=srtp-mand")
    assert "mediaenc" not in door_account(GOOD)


def test_a_trunks_account_holds_its_password_and_the_settings_do_not_show_it() -> None:
    settings = replace(GOOD, trunk=replace(TRUNK, proxy="sbc.example.com"))
    account = trunk_account(settings)
    assert account.startswith("<sip:4930123@sip.example.com:5080;transport=udp>;regint=300;")
    assert ';auth_pass="s3;cret pass";auth_user=acct;' in account
    assert 'outbound="sip:sbc.example.com;transport=udp"' in account
    assert "s3;cret" not in repr(settings)


@pytest.mark.parametrize(
    ("uri", "plain"),
    [
        ('"Ann" <sip:Ann@Example.COM:5062;transport=tcp>;tag=1', "ann@example.com"),
        ("sips:ann@example.com?x=y", "ann@example.com"),
        ("sip:example.com", "example.com"),
        ("sip:+4930@[2001:db8::1]:5060", "+4930@[2001:db8::1]"),
    ],
)
def test_addresses_are_compared_without_their_trimmings(uri: str, plain: str) -> None:
    assert address(uri) == plain


def test_the_list_of_callers() -> None:
    settings = replace(GOOD, allow=("+4930*@trunk.example", "ann@*"))
    assert settings.allows("<sip:+493012@trunk.example>;tag=x")
    assert settings.allows("sip:Ann@anywhere:5060")
    assert not settings.allows("sip:+4930@elsewhere.example")
    assert not settings.allows("sip:joann@anywhere")
    assert GOOD.allows("sip:whoever@anywhere")


@pytest.mark.parametrize(
    ("target", "uri"),
    [("sip:a@b", "sip:a@b"), ("+49 30-12".replace(" ", ""), "sip:+493012@sip.example.com:5080"),
     ("tel:+4930", "sip:+4930@sip.example.com:5080")],
)  # fmt: skip
def test_numbers_go_through_the_trunk(target: str, uri: str) -> None:
    assert callable_uri(target, replace(GOOD, trunk=TRUNK)) == uri


@pytest.mark.parametrize(
    "target", ["+4930", "", "desk", "sip:a b", "sip:a\r\nX: y", "sip:", "x" * 300]
)
def test_what_is_no_address_is_not_called(target: str) -> None:
    with pytest.raises(UsageError) as caught:
        callable_uri(target, GOOD)
    assert caught.value.code == "VA504"


def test_the_configuration_and_its_flags(tmp_path: Path) -> None:
    from tests.support.telephone import free_udp
    from voice_agent.cli.serve import gateway_config, sip_settings

    port = free_udp(2)
    file = tmp_path / "voice-agent.toml"
    file.write_text(
        '[sip]\ncodecs = ["pcma"]\nallow = ["*@pbx.example"]\nrtp_ports = "31000-31040"\n'
        '[sip.trunk]\nregistrar = "sip.example.com"\nuser = "us"\npassword = "hidden-word"\n'
    )
    loaded = load_config(file, {"sip.enabled": True, "sip.port": port})
    settings = sip_settings(loaded.config)
    assert (settings.codecs, settings.rtp_ports) == (("pcma",), (31000, 31040))
    assert settings.trunk == Trunk("sip.example.com", "us", "hidden-word")
    assert "hidden-word" not in str(list(loaded.rows()))
    assert gateway_config(load_config(None).config, 8080).sip is None, "off unless asked for"
