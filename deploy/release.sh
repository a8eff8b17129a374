#!/usr/bin/env bash
# Builds what a release has into dist/: the sdist, the wheel for any platform, and the wheel of this platform with the
# compiled core. Installs each one into an empty environment, and runs it there. `make release` calls it.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=${UV:-uv}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

rm -rf dist
"$uv" build --quiet --sdist --out-dir dist
RELAY_NATIVE=off "$uv" build --quiet --wheel --out-dir dist
if command -v cargo >/dev/null || [ -x "$HOME/.cargo/bin/cargo" ]; then
    RELAY_NATIVE=required "$uv" build --quiet --wheel --out-dir dist
else
    echo "without a wheel for this platform: it needs Rust 1.85 or later"
fi
"$uv" run --frozen --quiet twine check --strict dist/*

for file in dist/*.tar.gz dist/*.whl; do
    core=''  # what a build from the sdist has depends on the machine
    case $file in *-none-any.whl) core=off ;; *.whl) core=required ;; esac
    "$uv" venv --quiet --clear "$work/environment"
    "$uv" pip install --quiet --no-cache --python "$work/environment" "$PWD/$file"
    (
        cd "$work"
        environment/bin/relay --version
        environment/bin/relay init --type dynamodb --table orders --region eu-west-1 --kafka broker:9092 relay.yaml
        environment/bin/relay check relay.yaml --offline
        rm relay.yaml
        RELAY_NATIVE=$core environment/bin/python -c 'from relay.native import core; print("compiled core:", core() is not None)'
    ) >"$work/log" 2>&1 || { cat "$work/log"; echo "$file does not work"; exit 1; }
    echo "works: $file, $(tail -1 "$work/log")"
done
echo "Wheels of other platforms have to be built there: relay/native/README.md, How it is built."
