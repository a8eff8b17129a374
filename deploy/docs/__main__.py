"""``python -m deploy.docs FOLDER``: writes the site into a folder. Needs Sphinx, which ``make docs`` provides."""

from __future__ import annotations

import sys
from pathlib import Path

from deploy.docs.site import build

if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1])))
