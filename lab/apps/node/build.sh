#!/usr/bin/env bash
# Builds the application into FOLDER (default: target/lab/node at the root) and prints the words that start it, one a
# line. Packages that are there as the lockfile has them are kept; then no network is needed.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/../../../target/lab/node}
mkdir -p "$out"
out=$(cd "$out" && pwd)

cp "$here"/*.js "$here"/package.json "$out/"
if ! cmp --silent "$here/package-lock.json" "$out/stamp"; then
    rm -f "$out/stamp"
    cp "$here/package-lock.json" "$here/.npmrc" "$out/"
    (cd "$out" && npm ci --omit=dev --ignore-scripts --no-audit --no-fund --loglevel=error >&2)
    cp "$here/package-lock.json" "$out/stamp"
fi

printf '%s\n' node "$out/main.js"
