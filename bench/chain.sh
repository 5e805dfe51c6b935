#!/usr/bin/env bash
# The same bytes direct, through three haproxies (plain, and with TLS on the two middle connections), and through
# sidecar, relay and agent: four chains in turn, several rounds, one table. Needs Debian's haproxy, nghttp2-client,
# nghttp2-server, iperf3 and openssl; runs on loopback only; ends what it started.
#   bench/chain.sh [HOPLINE_BINARY] [ROUNDS] [SECONDS of bulk]
set -euo pipefail
hopline=$(realpath "${1:-target/release/hopline}")
rounds=${2:-3}
seconds=${3:-5}
for tool in haproxy h2load nghttpd iperf3 openssl python3; do
    command -v "$tool" >/dev/null || { echo "missing: $tool (apt-get install haproxy nghttp2-client nghttp2-server iperf3 openssl)" >&2; exit 1; }
done
folder=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null; wait 2>/dev/null; rm -rf "$folder"' EXIT
cd "$folder"
start() { "$@" >>log 2>&1 & pids+=($!); }
free() { python3 -c 'import socket; s=socket.socket(); s.bind(("127.0.0.1",0)); print(s.getsockname()[1])'; }
until_open() { for _ in $(seq 200); do (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null && return; sleep 0.05; done; echo "nothing listens on $1" >&2; cat log >&2; exit 1; }

head -c 100 /dev/zero >reply
h2=$(free); start nghttpd --no-tls -d . "$h2"
bulk=$(free); start iperf3 -s -B 127.0.0.1 -p "$bulk"
until_open "$h2"; until_open "$bulk"

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=bench -keyout key -out cert 2>/dev/null
cat cert key >pem
declare -A port
haproxies() { # NAME TLS TARGET_NAME TARGET_PORT
    local one two three
    one=$(free); two=$(free); three=$(free)
    local bind="" server=""
    [ "$2" = tls ] && bind="ssl crt $folder/pem ssl-min-ver TLSv1.3" && server="ssl verify none ssl-min-ver TLSv1.3"
    for hop in 1 2 3; do
        local from to b="" s=""
        case $hop in 1) from=$one to=$two s=$server ;; 2) from=$two to=$three b=$bind s=$server ;; 3) from=$three to=$4 b=$bind ;; esac
        cat >"$1-$3-$hop.cfg" <<CFG
global
  nbthread 2
defaults
  mode tcp
  option splice-auto
  timeout connect 5s
  timeout client 60s
  timeout server 60s
listen hop
  bind 127.0.0.1:$from $b
  server next 127.0.0.1:$to $s
CFG
        start haproxy -q -db -f "$1-$3-$hop.cfg"
    done
    port[$1-$3]=$one
    until_open "$one"
}
for target in "h2 $h2" "bulk $bulk"; do
    set -- $target
    port[direct-$1]=$2
    haproxies plain no "$1" "$2"
    haproxies tls tls "$1" "$2"
done

relay=$(free)
start "$hopline" relay --listen "127.0.0.1:$relay" --state relay
until_open "$relay"
"$hopline" token create --state relay --relay "127.0.0.1:$relay" --publish '*' | "$hopline" join - --state a --name a >>log
"$hopline" token create --state relay --relay "127.0.0.1:$relay" --dial '*' | "$hopline" join - --state s --name s >>log
port[hopline-h2]=$(free); port[hopline-bulk]=$(free)
echo "services: { h2: { grpc: { tcp: $h2 } }, bulk: { tcp: { tcp: $bulk } } }" >a.yaml
cat >s.yaml <<CFG
connect:
  h2: { listen: "127.0.0.1:${port[hopline-h2]}" }
  bulk: { listen: "127.0.0.1:${port[hopline-bulk]}" }
CFG
start "$hopline" up -c a.yaml --state a
start "$hopline" up -c s.yaml --state s
until_open "${port[hopline-h2]}"
curl -s --http2-prior-knowledge "http://127.0.0.1:${port[hopline-h2]}/reply" >/dev/null

unary() { # PORT: p50 and p99 in microseconds, one call at a time
    h2load -n 20000 -c 1 -m 1 --log-file=calls "http://127.0.0.1:$1/reply" >/dev/null
    cut -f3 calls | sort -n | awk '{v[NR]=$1} END {printf "%d %d", v[int(NR*0.5)], v[int(NR*0.99)]}'
    rm -f calls
}
many() { h2load -n 100000 -c 1 -m 32 "http://127.0.0.1:$1/reply" | awk '/finished in/ {printf "%d", $4}'; }
stream() { iperf3 -c 127.0.0.1 -p "$1" -t "$seconds" -J $2 | python3 -c 'import json,sys; print(round(json.load(sys.stdin)["end"]["sum_received"]["bits_per_second"]/8e6))'; }

printf '%-8s %-6s %10s %10s %14s %12s %12s\n' chain round 'p50 us' 'p99 us' '32 calls req/s' 'down MB/s' 'up MB/s'
for round in $(seq "$rounds"); do
    for chain in direct plain tls hopline; do
        read -r p50 p99 <<<"$(unary "${port[$chain-h2]}")"
        printf '%-8s %-6s %10s %10s %14s %12s %12s\n' "$chain" "$round" "$p50" "$p99" "$(many "${port[$chain-h2]}")" \
            "$(stream "${port[$chain-bulk]}" -R)" "$(stream "${port[$chain-bulk]}" "")"
    done
done
