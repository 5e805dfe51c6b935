#!/usr/bin/env bash
# Builds the application into FOLDER (default: target/lab/java at the root) and prints the words that start it, one a
# line. What is built from the same files already is not built again; then neither Maven nor a network is needed.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/../../../target/lab/java}
mkdir -p "$out"
out=$(cd "$out" && pwd)

stamp=$(cd "$here" && find pom.xml src -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum)
if [[ ! -f $out/app.jar || $stamp != "$(cat "$out/stamp" 2>/dev/null)" ]]; then
    rm -f "$out/stamp"
    mvn --quiet --batch-mode --file "$here/pom.xml" -Dout="$out" -Dmaven.test.skip package >&2
    printf '%s\n' "$stamp" >"$out/stamp"
fi

# Small and soon there: many of them run side by side. None of it changes what goes over the wire.
printf '%s\n' java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xmx256m -jar "$out/app.jar"
