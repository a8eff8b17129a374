#!/bin/sh
# Makes an environment with exactly the packages that a file names, and the wheel: install.sh FILE WHEEL FOLDER
# PYTHON: the interpreter, python3 by default.
set -eu
file=$1 wheel=$2 folder=$3
"${PYTHON:-python3}" -m venv "$folder"
pip="$folder/bin/pip --quiet --no-cache-dir --disable-pip-version-check"
# The file has every package that is needed, so nothing else is installed.
$pip install --no-deps --require-hashes --requirement "$file"
$pip install --no-deps "$wheel"
$pip uninstall --yes setuptools pip
"$folder/bin/relay" --version
