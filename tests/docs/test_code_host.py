"""Written pages as a code host shows them, where nothing is built: every link has a text and leads to a file of the repository."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess

import pytest
from pages import blocks, name_of, written_pages
from places import ROOT

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")


def tracked() -> set[str]:
    """The files and folders of the repository."""
    try:
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
            "\n"
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this is no clone: git does not know the files")
    folders = {"/".join(path.split("/")[:k]) for path in listed for k in range(1, path.count("/") + 1)}
    return set(filter(None, listed)) | folders


def links(text: str) -> list[tuple[str, str]]:
    without_code = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    return [(found[1], found[2]) for found in LINK.finditer(without_code) if "://" not in found[2]]


def test_every_link_of_a_page_has_a_text_and_a_target_before_anything_is_built():
    known, faults, count = tracked(), [], 0
    for path in written_pages():
        for text, target in links(re.sub(r"`([^`\n]*)`", r"\1", path.read_text(encoding="utf-8"))):
            count += 1
            place = (path.parent / target).resolve() if target else path
            if not text.strip() or (place.is_relative_to(ROOT) and place.relative_to(ROOT).as_posix() not in known):
                faults.append(f"{name_of(path)}: [{text}]({target})")
    assert count > 100
    assert faults == []


def test_an_empty_text_is_found():
    assert links("see [](deploy.md) and `[](code.md)`") == [("", "deploy.md")]


def test_the_output_on_the_first_page_is_that_of_its_code():
    page = ROOT / "docs" / "index.md"
    (code, *_), (shown, *_) = blocks(page, "python"), blocks(page, "text")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "index.md", "exec"), {})
    without_numbers = re.compile(r"[0-9.]+e-[0-9]+")  # rounding differs from machine to machine
    assert without_numbers.sub("", out.getvalue()) == without_numbers.sub("", shown)
