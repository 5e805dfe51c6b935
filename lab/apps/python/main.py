"""The lab's gRPC application in Python: a server and a client in one program.

The command line and the lines that it prints are those of ../README.md, the same in every language.
"""

import argparse
import platform

import grpc

import client
import events
import server


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    roles = parser.add_subparsers(dest="role", required=True)
    serve = roles.add_parser("server", allow_abbrev=False)
    serve.add_argument("--listen", default="127.0.0.1:0")
    serve.add_argument("--permit-keepalive", action="store_true")
    serve.add_argument("--max-streams", type=int, default=0)
    call = roles.add_parser("client", allow_abbrev=False)
    call.add_argument("--target", required=True)
    call.add_argument("--keepalive-ms", type=int, default=0)
    call.add_argument("--keepalive-timeout-ms", type=int, default=20_000)
    call.add_argument("--keepalive-idle", action="store_true")
    call.add_argument("--window", type=int, default=0)
    call.add_argument("--own-authority", action="store_true")
    roles.add_parser("version", allow_abbrev=False)
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    if asked.role == "server":
        server.serve(asked.listen, asked.permit_keepalive, asked.max_streams)
    elif asked.role == "client":
        keepalive = client.Keepalive(asked.keepalive_ms, asked.keepalive_timeout_ms, asked.keepalive_idle)
        client.run(asked.target, keepalive, asked.window, asked.own_authority)
    else:
        events.emit(
            "version",
            impl="python",
            library=f"grpcio {grpc.__version__}",
            runtime=f"{platform.python_implementation()} {platform.python_version()}",
        )


if __name__ == "__main__":
    main()
