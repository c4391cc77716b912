"""What the coordinator answers over gRPC, in the form that `atoll ... --json` prints.

A test that waits polls every fifth of a second. Over an open channel a call takes a tenth of the processor
time that the command line takes to start. The channels are those of a process of their own: it
can be in another network namespace, and a process that starts others should not have gRPC's threads.

`monitor.py` reads a JSON list a line, [address, service, method, fields], and answers each by a line:
{"reply": ...} or {"error": "..."}.
"""
import json
import os
import subprocess
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import ClusterError, built_file, die_with_parent, parse_json  # noqa: E402

DEADLINE_S = 120
CHANNEL_OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", -1)]


class Monitor:
    """Calls coordinators without TLS; `prefix` is what goes before the program, to run it elsewhere. One
    process for each prefix, which ends with this one. Any thread may call."""

    by_prefix = {}
    lock = threading.Lock()

    def __init__(self, prefix):
        self.lock = threading.Lock()
        self.process = subprocess.Popen(
            [*prefix, sys.executable, os.path.abspath(__file__), built_file("proto/coordinator.binpb")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, preexec_fn=die_with_parent)

    @classmethod
    def at(cls, prefix):
        with cls.lock:
            monitor = cls.by_prefix.get(tuple(prefix))
            if monitor is None or monitor.process.poll() is not None:
                monitor = cls.by_prefix[tuple(prefix)] = cls(prefix)
            return monitor

    def call(self, address, service, method, fields):
        """The reply of, for example, call(address, "Jobs", "Get", {"job": "lm-1"}). ClusterError: there is none."""
        with self.lock:
            self.process.stdin.write(json.dumps([address, service, method, fields]) + "\n")
            line = self.process.stdout.readline()
        answer = parse_json(line) if line else {"error": "monitor.py has ended"}
        if "error" in answer:
            raise ClusterError(f"{service}.{method} at {address}: {answer['error']}")
        return answer["reply"]


class Calls:
    """The other end of a Monitor: the calls of proto/coordinator.proto, whose descriptors are in a file."""

    def __init__(self, descriptors):
        # Here: only this process needs them.
        import grpc
        from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
        self.grpc, self.json_format = grpc, json_format
        files = descriptor_pb2.FileDescriptorSet()
        with open(descriptors, "rb") as data:
            files.ParseFromString(data.read())
        self.pool = descriptor_pool.DescriptorPool()
        for file in files.file:  # an imported file comes before those that import it
            self.pool.Add(file)
        self.factory = message_factory.MessageFactory(self.pool)
        self.channels = {}

    def answer(self, address, service, method, fields):
        types = self.pool.FindServiceByName("atl.v1." + service).FindMethodByName(method)
        request = self.factory.GetPrototype(types.input_type)(**fields)
        reply_type = self.factory.GetPrototype(types.output_type)
        while True:
            is_new = address not in self.channels
            if is_new:
                self.channels[address] = self.grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
            call = self.channels[address].unary_unary(
                f"/atl.v1.{service}/{method}", type(request).SerializeToString, reply_type.FromString)
            try:
                reply = call(request, timeout=DEADLINE_S)
            except self.grpc.RpcError as error:
                if error.code() == self.grpc.StatusCode.UNAVAILABLE:
                    self.channels.pop(address).close()
                    if not is_new:
                        continue  # the coordinator may have been started again since the connection was made
                return json.dumps({"error": f"{error.code().name}: {error.details()}"})
            text = self.json_format.MessageToJson(reply, including_default_value_fields=True,
                                                  preserving_proto_field_name=True, indent=None)
            return f'{{"reply": {text}}}'


def main():
    calls = Calls(sys.argv[1])
    for line in sys.stdin:
        print(calls.answer(*json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
