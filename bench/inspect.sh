#!/usr/bin/env bash
# What `inspect` costs: the same gRPC-shaped calls and the same bulk through sidecar, relay and agent, by a mapping with
# `inspect: true` and one with `inspect: false`, in turn, several rounds. The last lines are the ratios of the rounds, true
# to false: least, median, most. Needs Debian's nghttp2-client, nghttp2-server and python3; runs on loopback only; ends
# what it started. The figures are for a machine that does nothing else.
#   bench/inspect.sh [HOPLINE_BINARY] [ROUNDS] [MIB of bulk] [CALLS]
set -euo pipefail
hopline=$(realpath "${1:-target/release/hopline}")
rounds=${2:-9}
mib=${3:-1024}
calls=${4:-20000}
for tool in h2load nghttpd python3; do
    command -v "$tool" >/dev/null || { echo "missing: $tool (apt-get install nghttp2-client nghttp2-server)" >&2; exit 1; }
done
folder=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null; wait 2>/dev/null; rm -rf "$folder"' EXIT
cd "$folder"
start() { "$@" >>log 2>&1 & pids+=($!); }
free() { python3 -c 'import socket; s=socket.socket(); s.bind(("127.0.0.1",0)); print(s.getsockname()[1])'; }
until_open() { for _ in $(seq 200); do (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null && return; sleep 0.05; done; echo "nothing listens on $1" >&2; cat log >&2; exit 1; }

head -c 100 /dev/zero >reply
# Messages of 1 MiB less their prefix. A file of zeros would be a hundred million empty messages.
python3 -c "import sys; m = bytes([0]) + (2**20 - 5).to_bytes(4) + bytes(2**20 - 5); [sys.stdout.buffer.write(m) for _ in range($mib)]" >bulk
server=$(free)
start nghttpd --no-tls -d . "$server"
relay=$(free)
start "$hopline" relay --listen "127.0.0.1:$relay" --state relay
until_open "$server"
until_open "$relay"
for way in publish dial; do
    "$hopline" token create --state relay --relay "127.0.0.1:$relay" "--$way" '*' | "$hopline" join - --state "$way" --name "$way" >>log
done
declare -A port=([true]=$(free) [false]=$(free))
echo "services: { watched: { grpc: { tcp: $server } }, unwatched: { grpc: { tcp: $server } } }" >a.yaml
printf 'connect:\n  watched: { listen: "127.0.0.1:%s", inspect: true }\n  unwatched: { listen: "127.0.0.1:%s", inspect: false }\n' \
    "${port[true]}" "${port[false]}" >s.yaml
start "$hopline" up -c a.yaml --state publish
start "$hopline" up -c s.yaml --state dial
for inspect in true false; do
    until_open "${port[$inspect]}"
    # The first open is held until the agent is there.
    h2load -n 10 -c 1 "http://127.0.0.1:${port[$inspect]}/reply" >/dev/null
done

call=(-H 'content-type: application/grpc' -H 'te: trailers' -H 'grpc-timeout: 10S' -H 'user-agent: grpc-go/1.85.0')
unary() { # PORT: median and p99 in microseconds, one call at a time
    h2load -n "$calls" -c 1 -m 1 "${call[@]}" --log-file=calls "http://127.0.0.1:$1/reply" >/dev/null
    cut -f3 calls | sort -n | awk '{v[NR]=$1} END {printf "%d %d", v[int(NR*0.5)], v[int(NR*0.99)]}'
    rm -f calls
}
many() { h2load -n "$((calls * 5))" -c 1 -m 32 "${call[@]}" "http://127.0.0.1:$1/reply" | awk '/finished in/ {printf "%d", $4}'; }
down() { # PORT: MB/s of one response
    h2load -n 1 -c 1 -w 24 -W 24 "${call[@]}" "http://127.0.0.1:$1/bulk" |
        awk -v mib="$mib" '/finished in/ {t=$3; unit=t; gsub(/[0-9.,]/,"",unit); gsub(/[^0-9.]/,"",t); if (unit=="ms") t/=1000; if (unit=="us") t/=1e6; printf "%d", mib*1.048576/t}'
}

printf '%-8s %-6s %10s %10s %16s %12s\n' inspect round 'p50 us' 'p99 us' '32 calls req/s' 'down MB/s'
for round in $(seq "$rounds"); do
    # Who goes first alternates.
    if ((round % 2)); then order="true false"; else order="false true"; fi
    for inspect in $order; do
        read -r p50 p99 <<<"$(unary "${port[$inspect]}")"
        printf '%-8s %-6s %10s %10s %16s %12s\n' "$inspect" "$round" "$p50" "$p99" "$(many "${port[$inspect]}")" \
            "$(down "${port[$inspect]}")" | tee -a rows
    done
done
python3 - <<'PY'
import statistics

rows = [line.split() for line in open("rows")]
print(f"\n{'true / false':18} {'least':>8} {'median':>8} {'most':>8}")
for column, name in [(2, "p50"), (3, "p99"), (4, "32 calls req/s"), (5, "down MB/s")]:
    by = {(row[0], row[1]): float(row[column]) for row in rows}
    ratios = [by["true", round] / by["false", round] for kind, round in by if kind == "true"]
    print(f"{name:18} {min(ratios):8.3f} {statistics.median(ratios):8.3f} {max(ratios):8.3f}")
PY
