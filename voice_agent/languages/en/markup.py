"""Markup that an ear has no use for: markdown, HTML, emoticons; code is told of, not read."""

from __future__ import annotations

import re

from voice_agent.languages.rule import Rule, silent

from . import numbers

FENCE = "```"
"""Begins and ends a block of code; a clause that holds one holds it whole."""

_LANGUAGES = {
    "bash": "shell", "c": "C", "cpp": "C plus plus", "cs": "C sharp", "css": "C-S-S",
    "go": "Go", "html": "H-T-M-L", "java": "Java", "javascript": "JavaScript", "js": "JavaScript",
    "json": "JSON", "kotlin": "Kotlin", "php": "P-H-P", "py": "Python", "python": "Python",
    "rb": "Ruby", "ruby": "Ruby", "rs": "Rust", "rust": "Rust", "sh": "shell", "shell": "shell",
    "sql": "S-Q-L", "swift": "Swift", "toml": "TOML", "ts": "TypeScript",
    "typescript": "TypeScript", "xml": "X-M-L", "yaml": "YAML", "yml": "YAML",
}  # fmt: skip


def _block(match: re.Match[str]) -> list[str]:
    """A block of code: how many lines of what."""
    n = sum(bool(line.strip()) for line in (match["code"] or "").splitlines())
    if not n:
        return []
    info = (match["info"].split() or [""])[0].lower()
    of = "text" if info in ("text", "txt", "plaintext", "markdown", "md") else "code"
    kind = [*_LANGUAGES.get(info, "").split(), of]
    return [*numbers.cardinal(n), "line" if n == 1 else "lines", "of", *kind[:-1], kind[-1] + "."]


def _item(match: re.Match[str]) -> list[str]:
    *before, last = numbers.cardinal(int(match["itemno"]))
    return [*before, last + "."]


MARKUP = (
    Rule(
        "block",
        rf"^[ \t]*{FENCE}(?P<info>[^\n`]*)\n(?P<code>[\s\S]*?)(?:^[ \t]*{FENCE}[ \t]*$|\Z)",
        _block,
    ),
    Rule("fence", rf"{FENCE}(?:[A-Za-z0-9_+-]*$)?", silent),
    Rule("ruled", r"^[ \t]*(?:[-*_=|:]+[ \t]*){3,}$", silent),
    Rule("tag", r"</?[A-Za-z][A-Za-z0-9]*(?:\s[^<>\n]*)?/?>|<!--.*?-->|&nbsp;", silent),
    Rule("entity", r"&amp;", lambda m: ["and"]),
    Rule("emoticon", r"(?<!\w)(?:[:;=]['’]?-?[)(DPpO|\]\[]|<3)(?!\w)", silent),
)
LISTS = (
    Rule("bullet", r"^[ \t]*(?:[-*+•]|#{1,6}|>)(?=\s)", silent),
    Rule("item", r"^[ \t]*(?P<itemno>\d{1,2})[.)](?=\s)", _item),
)
