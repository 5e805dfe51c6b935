#!/usr/bin/env bash
# Builds the client of examples/grpc/LANGUAGE into FOLDER and prints the words that start it, one a line; TARGET and
# SECONDS follow. What is built from the same files already is not built again. With `server` it is the Python server.
set -euo pipefail

language=$1
source=$(cd "$(dirname "$0")/../../examples/grpc" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)

# A copy, so that nothing is built into the sources.
copy() { mkdir -p "$out/$1" && cp -r "$source/$1/." "$out/$1/"; }

# Whether the files of a folder changed since it was built.
stamp() { (cd "$source/$1" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum); }
changed() { [[ $(stamp "$1") != "$(cat "$out/$1.stamp" 2>/dev/null)" ]]; }

python() {
    if changed python; then
        rm -rf "$out/python"
        copy python
        python3 -m venv "$out/python/venv" >&2
        "$out/python/venv/bin/python" -m pip install --quiet --requirement "$out/python/requirements.txt" >&2
        stamp python >"$out/python.stamp"
    fi
    printf '%s\n' "$out/python/venv/bin/python" "$out/python/$1.py"
}

case $language in
go)
    (cd "$source/go" && go build -o "$out/go-client" . >&2)
    printf '%s\n' "$out/go-client"
    ;;
rust)
    cargo build --quiet --locked --manifest-path "$source/rust/Cargo.toml" --target-dir "$out/rust" >&2
    printf '%s\n' "$out/rust/debug/hopline-example"
    ;;
java)
    if changed java; then
        copy java
        mvn --quiet --batch-mode --file "$out/java/pom.xml" compile \
            dependency:build-classpath -Dmdep.outputFile="$out/java/classpath" >&2
        stamp java >"$out/java.stamp"
    fi
    printf '%s\n' java -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xmx256m \
        -cp "$out/java/target/classes:$(cat "$out/java/classpath")" Client
    ;;
node)
    if changed node; then
        copy node
        (cd "$out/node" && npm install --omit=dev --ignore-scripts --no-audit --no-fund --loglevel=error >&2)
        stamp node >"$out/node.stamp"
    fi
    printf '%s\n' node "$out/node/client.js"
    ;;
python) python client ;;
server) python server ;;
*)
    echo "$0: no example in $language" >&2
    exit 2
    ;;
esac
