"""A Python client on a mapping: python client.py TARGET SECONDS

TARGET is unix:/run/user/1000/hopline/ledger.sock, or 127.0.0.1:7901 for a TCP mapping.
"""

import json
import sys
import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

# For every method: UNAVAILABLE is tried again. Methods that must not run twice don't belong here.
SERVICE_CONFIG = {
    "methodConfig": [
        {
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": "0.2s",
                "maxBackoff": "2s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}

# One channel for the whole process, without keepalive.
channel = grpc.insecure_channel(
    sys.argv[1],
    options=[
        # Else it would be the socket's path, which Rust servers refuse.
        ("grpc.default_authority", "localhost"),
        ("grpc.service_config", json.dumps(SERVICE_CONFIG)),
    ],
)
stub = health_pb2_grpc.HealthStub(channel)
good, failed = 0, 0
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    try:
        # The deadline covers all tries.
        stub.Check(health_pb2.HealthCheckRequest(), timeout=10)
        good += 1
    except grpc.RpcError as error:
        failed += 1
        print(error, file=sys.stderr)
    time.sleep(0.1)
print(f"{good} good, {failed} failed")
channel.close()
