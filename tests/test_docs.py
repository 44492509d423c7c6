"""The documentation: its links, commands and names exist, and its Python runs."""

import re
import shlex
from pathlib import Path

import pytest

from omg.cli import parse
from omg.commands import SACRED_COMMANDS, VERBS
from omg.config import available
from omg.utils.settings import UserError
from omg.utils.teams import parse_team

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "README.zh.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
PRIVATE_WORDS = (
    r"\bstrangers?\b", r"\bwritten rules?\b", r"\bby lot\b", r"\bwhoever\b", r"\bsomebody\b", r"\bis after\b",
    r"\bworlds?\b", r"\bmoods?\b",
)  # fmt: skip
"""Words that only this project used; style.md has the field's words for them."""


@pytest.fixture(params=PAGES, ids=lambda page: page.name)
def page(request):
    return request.param


def commands_in(page):
    """Every `omg …` at the start of a line or of inline code, without comments and continuation lines."""
    text = page.read_text().replace("\\\n", " ")
    blocks = re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("omg ")]
    # A command in inline code may be wrapped at the end of a line.
    inline = [" ".join(code.split()) for code in re.findall(r"`(omg\s[^`]+)`", text)]
    return [line for line in [*lines, *inline] if "…" not in line and "VERB" not in line]


def test_links_exist(page):
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_verbs_exist(page):
    for line in commands_in(page):
        verb = line.split()[1]
        assert verb in VERBS or verb in SACRED_COMMANDS or verb.startswith("-"), line


def test_commands_can_be_parsed(page):
    for line in commands_in(page):
        words = shlex.split(line, comments=True)[1:]
        if words[0].startswith("-"):
            continue
        try:
            parse(words)
        except UserError as error:
            pytest.fail(f"{line}: {error}")


@pytest.mark.parametrize(("folder", "option"), [("algs", "--config"), ("envs", "--env-config")])
def test_configurations_exist(page, folder, option):
    text = page.read_text()
    own = set(re.findall(r"`(\w+\.yaml)`:\n```yaml", text))
    for name in re.findall(rf"{option}[= ]([\w/.]+)", text):
        name = name.rstrip(".")
        if name in available(folder) or name in own:
            continue
        assert folder == "algs", f"{option}={name}"
        assert parse_team(name, available("algs"))


def test_workflows_exist(page):
    for line in commands_in(page):
        words = line.split()
        if words[1:2] == ["workflow"] and words[2:] and not words[2].endswith(".yaml"):
            assert words[2] in available("workflows"), line


def test_pages_use_the_vocabulary_of_the_field(page):
    for word in PRIVATE_WORDS:
        found = re.search(rf".*{word}.*", page.read_text(), re.IGNORECASE)
        assert found is None, found and found.group()


def test_the_readmes_python_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["run"].summary["t_env"] >= 500
    assert names["episodes"].returns.shape == (4, names["env"].spec.n_agents)


@pytest.mark.parametrize("chinese", sorted(ROOT.glob("docs/*.zh.md")), ids=lambda path: path.name)
def test_a_chinese_page_has_the_code_and_pictures_of_the_english_one(chinese):
    english = chinese.with_name(chinese.name.replace(".zh", "")).read_text()
    for pattern in (r"```.*?```", r"!\[[^]]*\]\(([^)]+)\)", r"^#+ "):
        found = [re.findall(pattern, text, re.DOTALL | re.M) for text in (english, chinese.read_text())]
        assert found[0] == found[1], pattern


def test_the_chinese_readme_has_the_same_sections_commands_and_numbers():
    """Sentences are a translator's; headings, code, commands, pictures, links and figures are those of the original."""
    english, chinese = ((ROOT / name).read_text() for name in ("README.md", "README.zh.md"))

    def shape(text):
        return [
            len(heading) for heading in re.findall(r"^(#+) ", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.M)
        ]

    assert shape(english) == shape(chinese)

    def code(text):
        return [re.sub(r"\s*# .*", "", block) for block in re.findall(r"```.*?```", text, re.DOTALL)]

    assert code(english) == code(chinese), "comments are translated"
    # Links lead to the Chinese pages.
    assert all((ROOT / path).exists() for path in re.findall(r"\]\((docs/[a-z.-]+\.md)", chinese))
    chinese = chinese.replace(".zh.md", ".md")
    for pattern in (r"!\[[^]]*\]\(([^)]+)\)", r"\]\((?!README)([^)]+)\)", r"\d+\.\d+ \[[^]]+\]"):
        assert sorted(set(re.findall(pattern, english))) == sorted(set(re.findall(pattern, chinese))), pattern
    inline = [
        sorted(" ".join(c.split()) for c in re.findall(r"`((?:omg|make|python)\s[^`]+)`", t))
        for t in (english, chinese)
    ]
    assert inline[0] == inline[1]
