"""Exits with 0 if what listens on a port of this machine is alive: healthy.py PORT. Tries TLS if that is refused.

A container that is not alive is replaced, which helps nothing that waits for a person: see /healthz for that.
"""

import http.client
import ssl
import sys
import urllib.error
import urllib.request

# This machine asks itself, whose certificate is in the name of others.
itself = ssl.create_default_context()
itself.check_hostname, itself.verify_mode = False, ssl.CERT_NONE
problems: list[str] = []
for scheme in ("http", "https"):
    try:
        urllib.request.urlopen(f"{scheme}://127.0.0.1:{sys.argv[1]}/livez", timeout=5, context=itself).close()
        sys.exit()
    except urllib.error.HTTPError as answer:
        sys.exit(answer.read(2000).decode(errors="replace"))
    except (OSError, http.client.HTTPException) as error:
        problems.append(f"{scheme}: {error}")
sys.exit(f"/livez does not answer: {'; '.join(problems)}")
