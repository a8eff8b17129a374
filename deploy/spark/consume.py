"""`relay consume` for spark-submit: consume.py cache log copy relay.yaml [OPTION...]

Spark is started by spark-submit, so --master and --conf belong there.
"""

import sys

from relay.cli import main

sys.argv[1:1] = ["consume"]
main()
