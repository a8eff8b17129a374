"""What is in deploy/: the fast tests here need no tool; those of ``make deploy-check`` have the marker ``deploy``."""

from pathlib import Path

DEPLOY = Path(__file__).parents[2] / "deploy"

ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
ALERT_TESTS = Path(__file__).with_name("alerts_test.yaml")
