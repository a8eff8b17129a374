"""The images of ``deploy/Dockerfile``, built by buildah on a Debian of debootstrap's instead of the base image.

Nothing comes from a registry of images, and no engine runs. It needs root, and the packages ``buildah`` and
``debootstrap``.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from relay.jvm.jars import cache_folder
from tests.deploy import DEPLOY
from tests.deploy.tools import run

_SUITE = "bookworm"
_PACKAGES = ("ca-certificates", "python3", "python3-pip", "python3-venv")
_OWN_CERTIFICATES = Path("usr/local/share/ca-certificates")
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_BASE = "localhost/python:debian"
_SECONDS = 3600.0
_USER = "10001:10001"

# Debian keeps pip from installing into its own Python, and Python's tools know only their own certificates.
_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PIP_BREAK_SYSTEM_PACKAGES": "1",
    "PIP_CERT": _CERTIFICATES,
    "SSL_CERT_FILE": _CERTIFICATES,
    "CARGO_HTTP_CAINFO": _CERTIFICATES,
}

_INSIDE = """
root=$1 && shift
# As an engine does, or Java finds no address of its own.
hostname localhost
echo "127.0.0.1 localhost" > "$root/etc/hosts"
ip link set lo up
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs -o uid=10001,gid=10001 tmpfs "$root/var/lib/relay"
exec chroot --userspec="$0" "$root" /usr/bin/env --ignore-environment --chdir=/var/lib/relay "$@"
"""


def obstacle() -> str | None:
    """Return why no image can be built here."""
    missing = [each for each in ("buildah", "debootstrap", "unshare") if shutil.which(each) is None]
    if missing:
        return f"no {' and no '.join(missing)}: install the packages buildah, debootstrap and util-linux of Debian"
    return None if os.geteuid() == 0 else "only root can build images without an engine"


class Images:
    """Builds images into ``folder``, and runs programs in them. ``close`` unmounts them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = {**os.environ, "TMPDIR": str(folder), "BUILDAH_ISOLATION": "chroot"}
        # By target, the container that its programs run in.
        self._containers: dict[str, str] = {}
        base = self._buildah("from", "scratch")
        self._buildah("add", base, str(_debian()), "/")
        for name, value in _ENVIRONMENT.items():
            self._buildah("config", "--env", f"{name}={value}", base)
        self._buildah("commit", "--rm", base, _BASE)
        self._wheel = self._build_wheel()

    def build(self, target: str) -> dict[str, Any]:
        """Build a target of the Dockerfile, and return what the image reports about itself."""
        # Without layers, which would be copies of the whole file system, the stage would be built for each target.
        image = self._build(target, "--build-context", f"wheel={self._wheel}")
        self._containers[target] = self._buildah("from", image)
        found: dict[str, Any] = json.loads(self._buildah("inspect", "--type", "image", image))["Docker"]["config"]
        return found

    def run(self, target: str, *command: str, environment: dict[str, str] | None = None) -> str:
        """Run a command as the image's user, without a network, where it can write to ``/tmp`` and its volume alone.

        Returns what it said. Its exit code has to be 0.
        """
        container = self._containers[target]
        root = self._buildah("mount", container)
        config = json.loads(self._buildah("inspect", container))["Docker"]["config"]
        variables = {**dict(each.split("=", 1) for each in config["Env"]), **(environment or {})}
        return run(
            *("unshare", "--mount", "--net", "--uts", "--pid", "--fork", "sh", "-euc", _INSIDE, _USER, root),
            *(f"{name}={value}" for name, value in variables.items()),
            *command,
        )

    def close(self) -> None:
        self._buildah("rm", "--all")

    def _build_wheel(self) -> Path:
        """Build the wheel and the lists of packages, and return a folder that takes the place of their stage."""
        container = self._buildah("from", self._build("wheel"))
        root, copied = Path(self._buildah("mount", container)), self._folder / "wheel"
        for folder in ("dist", "source/deploy/image"):
            shutil.copytree(root / folder, copied / folder)
        self._buildah("rm", container)
        return copied

    def _build(self, target: str, *options: str) -> str:
        image = f"localhost/{target}"
        self._buildah(
            "build",
            *("--format", "docker", "--target", target, "--tag", image, "--build-arg", f"PYTHON_IMAGE={_BASE}"),
            *("--file", str(DEPLOY / "Dockerfile"), "--ignorefile", str(DEPLOY / "Dockerfile.dockerignore")),
            *options,
            str(DEPLOY.parent),
        )
        return image

    def _buildah(self, *arguments: str) -> str:
        storage = ("--root", f"{self._folder}/storage", "--runroot", f"{self._folder}/run", "--storage-driver", "vfs")
        ran = subprocess.run(
            ["buildah", *storage, *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        assert ran.returncode == 0, f"buildah {' '.join(arguments)}: {(ran.stdout + ran.stderr)[-5000:]}"
        return ran.stdout.strip()


def _debian() -> Path:
    """Return the file system of a Debian with Python, and with this machine's certificates, as an archive."""
    own = sorted((Path("/") / _OWN_CERTIFICATES).glob("*.crt"))
    digest = hashlib.sha256(repr((_SUITE, _PACKAGES, [path.read_bytes() for path in own])).encode()).hexdigest()[:12]
    archive = cache_folder() / "tests" / f"debian-{digest}.tar"
    if archive.exists():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    root, draft = archive.with_name(f"debian-{os.getpid()}"), archive.with_name(f"debian-{os.getpid()}.tar")
    try:
        run("debootstrap", "--variant=minbase", f"--include={','.join(_PACKAGES)}", _SUITE, root)
        (root / _OWN_CERTIFICATES).mkdir(parents=True, exist_ok=True)
        for path in own:
            shutil.copy(path, root / _OWN_CERTIFICATES)
        run("chroot", root, "update-ca-certificates")
        run("tar", "--create", "--directory", root, "--file", draft, "--exclude=./var/cache/apt/archives/*.deb", ".")
        draft.rename(archive)
    finally:
        shutil.rmtree(root, ignore_errors=True)
        draft.unlink(missing_ok=True)
    return archive
