"""The documentation as a site: what is made from code is complete, links work, and nothing is loaded from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
import yaml

from deploy.docs import from_code, site
from relay import errors
from relay.cli import app
from relay.config.config import json_schema
from tests.benchmarks.harness import Benchmark
from tests.benchmarks.record import record
from tests.browser import browser
from tests.deploy import ALERTS


def test_every_key_of_the_config_is_in_the_reference() -> None:
    schema = json_schema()
    page = from_code.config()
    for definition in (schema, *schema["$defs"].values()):
        for key in definition["properties"]:
            assert f"| `{key}` |" in page


def test_the_reference_says_what_each_key_means_and_names_no_class() -> None:
    page = from_code.config()
    assert re.findall(r"^\| `\w+` \|  \|", page, re.MULTILINE) == []
    assert re.findall(r"\w+Config\b", page) == []
    headings = set(re.findall(r"^## (.*)$", page, re.MULTILINE))
    assert {"kafka", "cache", "source of type mysql"} <= headings
    assert {link.replace("-", " ") for link in re.findall(r"\]\(#([^)]*)\)", page)} <= headings


def test_every_command_and_its_options_are_in_the_reference() -> None:
    page = from_code.commands()
    sections = {section.split("\n", 1)[0]: section for section in page.split("\n## ")[1:]}
    commands = {command.callback.__name__: command.callback for command in app.registered_commands if command.callback}
    for name in commands:
        assert f"relay {name.replace('_', '-')}" in sections
    for group in app.registered_groups:
        assert group.typer_instance is not None
        for command in group.typer_instance.registered_commands:
            assert command.callback is not None
            name = command.name or command.callback.__name__.replace("_", "-")
            assert f"relay {group.name} {name}" in sections
    assert "`--until-caught-up`" in sections["relay run"]
    assert typer.main.get_command(app).name not in sections


def test_every_alert_is_in_the_runbook() -> None:
    page = from_code.runbook()
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    assert rules
    for rule in rules:
        means, act = rule["annotations"]["description"], rule["annotations"]["runbook"]
        assert f"\n| [{rule['alert']}](#{rule['alert'].lower()}) | {rule['labels']['severity']} | {means} |\n" in page
        assert f"\n## {rule['alert']}\n\n**{means}**\n\n{act}\n" in page


def test_the_exit_codes_on_the_page_are_those_of_the_errors() -> None:
    """But for success, and Ctrl-C, which click ends."""
    page = (site.ROOT / site.HERE / "reference" / "exit_codes.md").read_text(encoding="utf-8")
    raised = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.RelayError)]
    codes = {error.exit_code for error in raised}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)} == codes | {0, 130}


def test_every_document_is_on_the_site() -> None:
    pages = {page for chapter in site.CHAPTERS.values() for page in chapter}
    made = from_code.pages().keys()
    documents = {
        path.relative_to(site.ROOT).as_posix().replace("README", "index").removesuffix(".md")
        for path in site.documents()
    }
    assert pages == (documents | made) - {"index"}


def test_a_link_to_a_file_leads_to_the_page_that_is_made_from_it(tmp_path: Path) -> None:
    assert all((site.ROOT / file).is_file() for file in site.MADE_FROM)
    assert set(site.MADE_FROM.values()) == from_code.pages().keys()
    site.stage(tmp_path)
    assert "](../../../config.md)" in (tmp_path / "deploy/docs/how_to/config.md").read_text()
    assert "](deploy/prometheus/alerts.yaml)" in (tmp_path / "runbook.md").read_text()
    assert (tmp_path / "deploy/prometheus/alerts.yaml").is_file()


def test_no_page_is_called_by_the_name_of_its_folder_in_the_contents(tmp_path: Path) -> None:
    site.stage(tmp_path)
    named = {
        page
        for page in (page for chapter in site.CHAPTERS.values() for page in chapter)
        if re.match("# (relay|spark_|deploy|observe)", (tmp_path / f"{page}.md").read_text())
    }
    contents = (tmp_path / "index.md").read_text()
    assert named == site.TITLES.keys()
    assert all(f"\n{title} <{page}>\n" in contents for page, title in site.TITLES.items())


def test_a_recorded_benchmark_replaces_its_last_result_and_no_other(tmp_path: Path) -> None:
    file = tmp_path / "benchmarks.json"
    for name, figure in (("start", 1.0), ("look", 2.0), ("start", 3.0)):
        record(name, [Benchmark(name, figure, 2000.0, "s", 1.5, 7, 7, 1.01, "a note")], file)
    page = from_code.benchmarks(file)
    assert "| `start` | 3 | 2,000 | 1.5 | 1.01 | s |\n\n- `start`: a note" in page
    assert "| `look` | 2 |" in page
    assert page.count("| `start` |") == 1


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site. A dead link, or a page in no chapter, would be an error."""
    folder = tmp_path_factory.mktemp("built") / "site"
    assert site.build(folder) == 0
    return folder


@pytest.mark.deploy
def test_the_site_loads_nothing_from_elsewhere(built: Path) -> None:
    pages = list(built.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        html = page.read_text(encoding="utf-8")
        loaded = re.findall(r"""<(?:script|img|iframe|source)\b[^>]*?\bsrc="([^"]+)""", html)
        loaded += re.findall(
            r"""<link\b(?=[^>]*\brel="(?:stylesheet|preload|preconnect)")[^>]*?\bhref="([^"]+)""", html
        )
        assert loaded
        for address in loaded:
            assert not re.match(r"(https?:)?//", address), (page, address)
            assert (page.parent / address.partition("?")[0]).is_file(), (page, address)


@pytest.mark.deploy
def test_the_search_finds_a_section_by_the_words_of_its_heading(built: Path, tmp_path: Path) -> None:
    with browser(tmp_path) as chromium:
        chromium.open(f"{(built / 'search.html').as_uri()}?q=three+worker")
        found = "document.querySelector('ul.search li > a')?.getAttribute('href')"
        assert chromium.until(found).endswith("run.html#run-three-workers")


@pytest.mark.deploy
def test_nothing_covers_the_text_on_a_phone(built: Path, tmp_path: Path) -> None:
    with browser(tmp_path) as chromium:
        chromium.open((built / "config.html").as_uri(), width=390)
        assert chromium.value("document.querySelector('.sidebar-drawer').getBoundingClientRect().right") <= 0
        assert chromium.value("document.querySelector('.toc-drawer').getBoundingClientRect().left") >= 390
        assert chromium.value("document.documentElement.scrollWidth") == 390


@pytest.mark.deploy
def test_a_link_that_leads_nowhere_fails_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    real = from_code.pages()
    monkeypatch.setattr(from_code, "pages", lambda: {**real, "avro": "# Avro\n\n[gone](schemas/index.md#gone)\n"})
    assert site.build(tmp_path / "site") != 0
    assert "gone" in capfd.readouterr().err
