#!/usr/bin/env python3
"""Receives OTLP over gRPC and HTTP on loopback and writes every export as one JSON line: what tests assert on.

usage: otlp_sink.py OUT.jsonl [GRPC_PORT [HTTP_PORT]]

A port of 0, the default, is a free one. Once both listen, one line on stdout names them: {"grpc": 1234, "http": 1235}.
A line of OUT is {"t": unix seconds, "via": "grpc" | "http/protobuf" | "http/json", "kind": "metrics" | "traces" |
"logs", "headers": {...}, "body": {...}, "bytes": "..."}; the body has protobuf's JSON names, its ids in base64; the
bytes are the same message in protobuf's own format, in hex.
"""

import gzip
import json
import sys
import threading
import time
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from google.protobuf import json_format
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

KINDS = {
    "/v1/metrics": (
        "metrics",
        metrics_service_pb2.ExportMetricsServiceRequest,
        metrics_service_pb2.ExportMetricsServiceResponse,
    ),
    "/v1/traces": (
        "traces",
        trace_service_pb2.ExportTraceServiceRequest,
        trace_service_pb2.ExportTraceServiceResponse,
    ),
    "/v1/logs": (
        "logs",
        logs_service_pb2.ExportLogsServiceRequest,
        logs_service_pb2.ExportLogsServiceResponse,
    ),
}


class Record:
    """The file, one export per line."""

    def __init__(self, path: str) -> None:
        self.file = open(path, "a", buffering=1)
        self.lock = threading.Lock()

    def write(self, via: str, kind: str, headers: dict[str, str], message: Message) -> None:
        body = json_format.MessageToDict(message)
        seen = {"t": time.time(), "via": via, "kind": kind, "headers": headers, "body": body}
        line = json.dumps(seen | {"bytes": message.SerializeToString().hex()})
        with self.lock:
            self.file.write(line + "\n")


def grpc_server(record: Record, port: int) -> tuple[grpc.Server, int]:
    server = grpc.server(futures.ThreadPoolExecutor(8))
    services = (
        ("/v1/metrics", metrics_service_pb2_grpc, "MetricsService"),
        ("/v1/traces", trace_service_pb2_grpc, "TraceService"),
        ("/v1/logs", logs_service_pb2_grpc, "LogsService"),
    )
    for path, module, name in services:
        kind, _, reply = KINDS[path]

        def export(_self, request, context, kind=kind, reply=reply):
            pairs = context.invocation_metadata()
            headers = {key: value if isinstance(value, str) else value.hex() for key, value in pairs}
            record.write("grpc", kind, headers, request)
            return reply()

        servicer = type(name, (getattr(module, f"{name}Servicer"),), {"Export": export})()
        getattr(module, f"add_{name}Servicer_to_server")(servicer, server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    return server, bound


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    record: Record

    def log_message(self, *_: object) -> None:
        """Nothing per request: stdout is for the ports."""

    def do_POST(self) -> None:
        body = self.body()
        if self.path not in KINDS:
            return self.reply(404, "text/plain", b"")
        kind, request, reply = KINDS[self.path]
        message = request()
        # OTLP/JSON writes ids in hex where protobuf's JSON has base64: ids sent as JSON come out mangled.
        if "json" in self.headers.get("content-type", ""):
            json_format.Parse(body, message)
            self.record.write("http/json", kind, dict(self.headers), message)
            return self.reply(200, "application/json", b"{}")
        message.ParseFromString(body)
        self.record.write("http/protobuf", kind, dict(self.headers), message)
        return self.reply(200, "application/x-protobuf", reply().SerializeToString())

    def body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            body = b"".join(self.chunks())
        else:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
        return gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body

    def chunks(self):
        while size := int(self.rfile.readline().split(b";")[0], 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def reply(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    ports = [int(port) for port in sys.argv[2:4]] + [0, 0]
    Handler.record = Record(sys.argv[1])
    _server, grpc_port = grpc_server(Handler.record, ports[0])
    http = ThreadingHTTPServer(("127.0.0.1", ports[1]), Handler)
    print(json.dumps({"grpc": grpc_port, "http": http.server_port}), flush=True)
    http.serve_forever()


if __name__ == "__main__":
    main()
