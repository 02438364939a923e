# SPDX-License-Identifier: Apache-2.0
"""Every example of the documentation is accepted by the program that it is for.

A fenced block names its language, and its kind where the language has several: ```ini nova.conf,
```yaml users.yaml. Plain text is ```text.
"""

from __future__ import annotations

import ast
import configparser
import importlib
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from holdfast import conf as configuration
from holdfast.agent import guest_filters, processes
from holdfast.alarms import rules_file
from holdfast.api import auth
from holdfast.conf import hostmonitor
from holdfast.drivers.fence import devices_file
from holdfast.hostmonitor import matrix_file
from holdfast.metrics import plugin_code
from holdfast.nova import options as nova_options
from tests.docs import commands
from tests.docs.pages import PAGES, ROOT, Block, blocks, fragments, pieces

BLOCKS = [block for page in PAGES for block in blocks(page)]


# Languages


def check_shell(block: Block, _folder: Path) -> None:
    lines = list(commands.typed(block.text, prompts=block.language == "console"))
    assert lines, "no line starts with `$ ` or `# `: is this ```text?"
    problems = [commands.problem(words) for line in lines for words in commands.calls(line)]
    assert not any(problems), "; ".join(filter(None, problems))


def check_ini(block: Block, folder: Path) -> None:
    commented = re.findall(r"(?m)^\w+ = .*[ \t]# .*$", block.text)
    assert not commented, f"{commented[0]}: the comment would be a part of the value"
    INI[block.kind or "holdfast.conf"](re.sub(r"(?m)^#(?=\w+ = )", "", block.text), folder)


def _holdfast_conf(text: str, folder: Path) -> None:
    """Parse with Holdfast's options; options in comments are read too."""
    file = folder / "holdfast.conf"
    file.write_text(text)
    conf = configuration.load([], [str(file)])
    assert configuration.unknown(conf) == []


def _foreign(text: str, _folder: Path) -> configparser.ConfigParser:
    found = configparser.ConfigParser(
        strict=False, interpolation=None, default_section="inherited by none"
    )
    found.read_string(text)
    return found


def _nova_conf(text: str, folder: Path) -> None:
    """Check the group [holdfast]; the other groups are Nova's."""
    found = _foreign(text, folder)
    for group, options in nova_options.list_opts():
        if found.has_section(group):
            assert set(found[group]) <= {option.dest for option in options}


INI: Mapping[str, Callable[[str, Path], object]] = {
    "holdfast.conf": _holdfast_conf,
    "nova.conf": _nova_conf,
    "api-paste.ini": _foreign,
    "masakarimonitors.conf": _foreign,
}


def check_yaml(block: Block, folder: Path) -> None:
    """Parse by the reader of the kind; files that the example names exist, and are empty."""
    for name in re.findall(r"/etc/holdfast/[\w.-]+", block.text):
        (folder / Path(name).name).touch()
    YAML[block.kind](block.text.replace("/etc/holdfast", str(folder)), folder)


def _fences(text: str, folder: Path) -> None:
    """Parse where the fence agents of the example are installed."""
    for agent in re.findall(r"\bfence_\w+", text):
        (folder / agent).touch(0o755)
    devices_file.parse(text, "the example", devices_file.Settings(8.0, str(folder)))


def _matrix(text: str, _folder: Path) -> None:
    networks = yaml.safe_load(text).get("networks", hostmonitor.USUAL)
    matrix_file.read(text, networks, "the example")


def _users(text: str, _folder: Path) -> None:
    auth.parse_users(text.encode(), "the example")


YAML: Mapping[str, Callable[[str, Path], object]] = {
    "alarms.yaml": lambda text, _: rules_file.parse(text, "the example", known_fields=True),
    "fences.yaml": _fences,
    "guest-filters.yaml": lambda text, _: guest_filters.parse(text, "the example"),
    "matrix.yaml": _matrix,
    "plugins.yaml": lambda text, _: plugin_code.parse(text, "the example"),
    "services.yaml": lambda text, _: processes.parse(text, "the example"),
    "users.yaml": _users,
}


def check_python(block: Block, _folder: Path) -> None:
    """Compile, and find each name that the example imports from Holdfast."""
    tree = ast.parse(block.text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("holdfast"):
            module = importlib.import_module(str(node.module))
            assert all(hasattr(module, name.name) for name in node.names), ast.unparse(node)


def check_json(block: Block, _folder: Path) -> None:
    """Load each document; … outside of a string stands for more of the same."""
    strings_or_dots = re.compile(r'("(?:[^"\\]|\\.)*")|,?\s*…')
    text = strings_or_dots.sub(lambda found: found[1] or "", block.text)
    json.loads(text)


def check_toml(block: Block, _folder: Path) -> None:
    """Load, and find each entry point group in Holdfast's code."""
    code = "".join(path.read_text() for path in (ROOT / "src/holdfast").rglob("*.py"))
    for group in tomllib.loads(block.text)["project"]["entry-points"]:
        assert f'"{group}"' in code, f"Holdfast reads no entry points {group}"


def check_xml(block: Block, _folder: Path) -> None:
    ElementTree.fromstring(block.text)


def plain(_block: Block, _folder: Path) -> None:
    """Languages that Holdfast does not read, and text."""


LANGUAGES: Mapping[str, Callable[[Block, Path], None]] = {
    "console": check_shell,
    "sh": check_shell,
    "ini": check_ini,
    "json": check_json,
    "python": check_python,
    "toml": check_toml,
    "xml": check_xml,
    "yaml": check_yaml,
    **dict.fromkeys(("haproxy", "hcl", "http", "mermaid", "nginx", "text"), plain),
}
KINDS = {"ini": {"", *INI}, "yaml": {*YAML}}


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_an_example_is_accepted(block: Block, tmp_path: Path) -> None:
    check = LANGUAGES.get(block.language)
    if check is None:
        pytest.fail(
            f"{block} is ```{block.language}: name one of {', '.join(LANGUAGES)};"
            " ```text is for output, diagrams and placeholders"
        )
    if block.kind not in KINDS.get(block.language, {""}):
        pytest.fail(
            f"{block} is ```{block.language} {block.kind}: name the kind after the language, one of"
            f" {', '.join(sorted(filter(None, KINDS[block.language])))}"
        )
    try:
        check(block, tmp_path)
    except Exception as error:
        raise AssertionError(f"{block}: {error}") from error


# Prose


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_prose_exist(page: Path) -> None:
    wrong = []
    for piece in pieces(page, r"`holdfast ((?:[a-z-]|\n)[^`]*)`"):
        first, _, rest = " ".join(piece.text.split()).replace("\\|", "|").partition("|")
        *noun, verb = first.split()
        others = [[*noun, word] for word in rest.split("|") if rest]  # list|show|delete
        problems = [commands.span_problem(words) for words in ([*noun, verb], *others)]
        wrong += [f"{piece}: {problem}" for problem in problems if problem]
    assert not wrong, "\n".join(wrong)


def test_links_lead_to_pages_and_headings_that_exist() -> None:
    wrong = []
    for piece in (piece for page in PAGES for piece in pieces(page, r"\]\(([^)\s]+)\)")):
        path, _, fragment = piece.text.partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        target = (piece.page.parent / path).resolve() if path else piece.page
        if not target.exists():
            wrong.append(f"{piece}: there is no {path}")
        elif fragment and fragment not in fragments(target):
            wrong.append(f"{piece}: {target.name} has no heading #{fragment}")
    assert not wrong, "\n".join(wrong)


def test_pages_named_in_code_exist() -> None:
    wrong = []
    for folder in ("src", "etc", "tools", "lab", "bench", "tests"):
        for file in (ROOT / folder).rglob("*"):
            if file.suffix in ("", ".py", ".yaml", ".html", ".hcl", ".sh") and file.is_file():
                for name in re.findall(r"\bdocs/[a-z/-]+\.md", file.read_text(errors="replace")):
                    if not (ROOT / name).exists():
                        wrong.append(f"{file.relative_to(ROOT)}: {name}")
    assert not wrong, "\n".join(wrong)


# The checks themselves


@pytest.mark.parametrize(
    ("language", "kind", "text", "why"),
    [
        ("", "", "plain", "name one of"),
        ("rust", "", "fn main() {}", "name one of"),
        ("yaml", "", "a: 1", "name the kind"),
        ("ini", "cinder.conf", "[a]", "name the kind"),
        ("ini", "", "[api]\nprot = 1", "prot"),
        ("ini", "", "[api]\n#port = many", "port"),
        ("ini", "", "[api]\nport = 1 # small", "part of the value"),
        ("ini", "nova.conf", "[holdfast]\nfree = 1", "free"),
        ("console", "", "output", "no line starts with"),
        ("console", "", "$ holdfast lease crate x", "no command"),
        ("console", "", "$ ls\n$ holdfast lease list --colour", "--colour"),
        ("console", "", "$ ls | bin/holdfast nothing > file", "no command"),
        ("console", "", "$ echo $(holdfast nothing)", "no command"),
        ("sh", "", "holdfast lease \\\n  create", "required"),
        ("python", "", "def f(:", "invalid syntax"),
        ("python", "", "from holdfast.model.lease import Nothing", "Nothing"),
        ("json", "", '{"a": }', "Expecting value"),
        ("toml", "", '[project.entry-points."holdfast.nothing"]', "no entry points"),
        ("xml", "", "<a>", "no element|no closing|unclosed"),
        ("yaml", "matrix.yaml", "rules: [{when: {storage: up}, do: dance}]", "dance"),
        ("yaml", "alarms.yaml", "rules: [{id: a, on: guest, field: no}]", "no"),
    ],
)
def test_a_wrong_example_is_refused(
    language: str, kind: str, text: str, why: str, tmp_path: Path
) -> None:
    block = Block(ROOT / "README.md", 1, text, language, kind)
    with pytest.raises((AssertionError, pytest.fail.Exception), match=why):
        test_an_example_is_accepted(block, tmp_path)
