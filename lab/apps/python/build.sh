#!/usr/bin/env bash
# Builds the application into FOLDER (default: target/lab/python at the root) and prints the words that start it, one a
# line. A virtual environment that has these packages already is kept; then no network is needed.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/../../../target/lab/python}
mkdir -p "$out"
out=$(cd "$out" && pwd)

if ! cmp --silent "$here/requirements.txt" "$out/stamp"; then
    rm -rf "$out/stamp" "$out/venv"
    python3 -m venv "$out/venv" >&2
    "$out/venv/bin/python" -m pip install --quiet --only-binary :all: --requirement "$here/requirements.txt" >&2
    cp "$here/requirements.txt" "$out/stamp"
fi

# A copy, so that compiled files stay out of the sources.
mkdir -p "$out/app"
cp "$here"/*.py "$out/app/"
"$out/venv/bin/python" -m compileall -q "$out/app" >&2

printf '%s\n' "$out/venv/bin/python" "$out/app/main.py"
