#!/bin/sh
# Writes what an image installs, as uv.lock has it: export.sh relay|consumers FOLDER
# FOLDER/TARGET.txt: each package with its version and its hashes. FOLDER/TARGET.cdx.json: the same as an SBOM (CycloneDX).
set -eu
target=$1 folder=$2
extras="dynamodb mysql vitess redis registry zstd"
[ "$target" = relay ] || extras="$extras postgres spark"
chosen=""
for extra in $extras; do chosen="$chosen --extra $extra"; done
mkdir -p "$folder"
# shellcheck disable=SC2086
uv export --quiet --frozen --no-dev --no-emit-project $chosen --output-file "$folder/$target.txt" > /dev/null
# shellcheck disable=SC2086
uv export --quiet --frozen --no-dev $chosen --format cyclonedx1.5 --preview-features sbom-export \
    --output-file "$folder/$target.cdx.json" > /dev/null
