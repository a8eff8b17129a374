#!/usr/bin/env bash
# Builds what a release has into dist/: the sdist, the wheel for any platform, and wheels with the compiled core for Linux
# and macOS, each on x86-64 and ARM. Installs those that run here into an empty environment, and runs them there.
# `make release` calls it. Wheels with the core need Rust from rustup, which fetches the libraries of the other targets.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=${UV:-uv}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

rm -rf dist
"$uv" build --quiet --sdist --out-dir dist
RELAY_NATIVE=off "$uv" build --quiet --wheel --out-dir dist
export PATH="$PATH:$HOME/.cargo/bin"
if command -v rustup >/dev/null; then
    # Zig links for other systems; its versions are pinned as the one that has built and linked these four.
    "$uv" venv --quiet "$work/zig"
    "$uv" pip install --quiet --python "$work/zig" cargo-zigbuild==0.24.1 ziglang==0.17.1
    while read -r platform target; do
        rustup --quiet target add "$target"
        PATH="$work/zig/bin:$PATH" CARGO_ZIGBUILD_ZIG_PATH=$(ls -d "$work"/zig/lib/python*/site-packages/ziglang/zig) \
            RELAY_NATIVE=required RELAY_NATIVE_PLATFORM=$platform \
            "$uv" build --quiet --wheel --out-dir dist
    done <<'TARGETS'
manylinux_2_28_x86_64 x86_64-unknown-linux-gnu
manylinux_2_28_aarch64 aarch64-unknown-linux-gnu
macosx_11_0_arm64 aarch64-apple-darwin
macosx_10_12_x86_64 x86_64-apple-darwin
TARGETS
    for platform in manylinux_2_28_x86_64 manylinux_2_28_aarch64; do
        # It must need nothing that the tag does not promise, such as a newer glibc.
        "$uv" run --no-project --quiet --with auditwheel==6.8.2 auditwheel show dist/*-"$platform".whl >"$work/log"
        grep -q "\"$platform\"" "$work/log" || { cat "$work/log"; exit 1; }
    done
else
    echo "without wheels that have the compiled core: they need rustup"
fi
"$uv" run --frozen --quiet twine check --strict dist/*

for file in dist/*.tar.gz dist/*.whl; do
    case $file in *any.whl | *.tar.gz | *"linux_2_28_$(uname -m).whl") ;; *)
        echo "built, and not tried here: $file"
        continue
        ;;
    esac
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
