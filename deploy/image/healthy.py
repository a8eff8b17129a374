"""Exits with 0 if what listens on a port of this machine is healthy: healthy.py PORT."""

import sys
import urllib.error
import urllib.request

try:
    urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/healthz", timeout=5).close()
except urllib.error.HTTPError as answer:
    sys.exit(answer.read(2000).decode(errors="replace"))
except OSError as error:
    sys.exit(f"/healthz does not answer: {error}")
