"""A gRPC server to try the clients with: python server.py PORT"""

import sys
from concurrent import futures

import grpc
from grpc_health.v1 import health, health_pb2_grpc

server = grpc.server(futures.ThreadPoolExecutor())
health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
port = server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
server.start()
print(port, flush=True)
server.wait_for_termination()
