"""What `make` does for somebody who has just cloned the repository."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_whoever_has_no_uv_gets_a_link_to_that_of_the_cache_and_hears_of_it_once(tmp_path: Path) -> None:
    """The cache may be older than the home: it is shared, or the home is new."""
    version = re.findall(r"^UV_VERSION := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0]
    own = tmp_path / "cache" / f"uv-{version}" / "bin" / "uv"
    own.parent.mkdir(parents=True)
    own.write_text("#!/bin/sh\n")  # the environment is none of this test's business
    own.chmod(0o755)
    home = tmp_path / "home"
    programs = tmp_path / "programs"  # without uv, wherever this machine has it
    programs.mkdir()
    for name in ("make", "mkdir", "ln"):
        (programs / name).symlink_to(shutil.which(name) or name)
    environment = {"HOME": str(home), "RELAY_CACHE": str(tmp_path / "cache"), "PATH": str(programs)}
    said = [
        subprocess.run(["make", "setup"], cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert (home / ".local" / "bin" / "uv").resolve() == own
    assert [f"{home}/.local/bin" in text for text in said] == [True, False]


def test_whoever_has_no_package_index_hears_what_to_do_instead(tmp_path: Path) -> None:
    """pip only says that there is no such version."""
    programs = tmp_path / "programs"  # without uv, wherever this machine has it
    programs.mkdir()
    for name in ("make", "mkdir", "rm", "cat", "chmod"):
        (programs / name).symlink_to(shutil.which(name) or name)
    python = programs / "python3"  # makes environments whose pip finds nothing
    python.write_text(
        '#!/bin/sh\n[ "$1" = -m ] || exit 0\nmkdir -p "$3/bin"\nprintf "#!/bin/sh\\nexit 1\\n" > "$3/bin/pip"\n'
        'chmod +x "$3/bin/pip"\n'
    )
    python.chmod(0o755)
    environment = {"HOME": str(tmp_path), "RELAY_CACHE": str(tmp_path / "cache"), "PATH": str(programs)}
    made = subprocess.run(["make", "setup"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 2
    assert "cannot install uv: give pip a package index, or put uv on the PATH" in made.stdout
