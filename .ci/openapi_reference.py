#!/usr/bin/python3
"""Writes docs/reference/openapi.yaml: the coordinator's HTTP interface, from the protos and the calls below.

`./dev format` runs it; `./dev lint` runs it with --check, which reports when the reference is not what it would write,
and when coordinator/http/gateway.cc has a call that is not here.
"""
import json
import re
import subprocess
import sys
import tempfile

from google.protobuf import descriptor_pb2

REFERENCE = "docs/reference/openapi.yaml"
GATEWAY = "coordinator/http/gateway.cc"
SOURCES = ["proto/coordinator.proto", "coordinator/http/page.proto"]
Field = descriptor_pb2.FieldDescriptorProto

STRING, INTEGER = {"type": "string"}, {"type": "integer"}
JOB = ("job", STRING, True, "The job's id")
# Call: (what it returns, parameters (name, schema, required, meaning), message or schema of the reply).
QUERIES = {
    "status": ("Members and the jobs at work", [], ".atl.v1.page.Status"),
    "jobs": ("Summaries of jobs, in the order of submission: all that have not ended, the newest that have", [
        ("before", INTEGER, False, "The reply's `before`: the page of older jobs")], ".atl.v1.ListReply"),
    "job": ("One job: summary, islands, newest decisions, servers", [
        JOB, ("decisions", INTEGER, False, "How many decisions, newest first"),
        ("island", INTEGER, False, "The island that is shown with its details")], ".atl.v1.page.Job"),
    "settings": ("The job file with all defaults", [JOB], ".atl.v1.page.Settings"),
    "history": ("Curves: all islands together, the first islands, validation, newest rounds", [
        JOB, ("points", INTEGER, False, "How many points a curve has at most"),
        ("islands", INTEGER, False, "How many islands have a curve")], ".atl.v1.JobHistory"),
    "logs": ("Lines of the log, oldest first", [
        ("job", STRING, False, "The job's id; absent: the whole log"),
        ("tail", INTEGER, False, "How many lines at most, the newest"),
        ("after", INTEGER, False, "Lines with a larger sequence alone"),
        ("severity", STRING, False, "The least severity: debug, info (absent: this), warning or error"),
        ("contains", STRING, False, "Lines with this text alone")], [".atl.v1.LogLine"]),
    "events": ("Server-sent events: the reply of job, or of status, whenever it has changed", [
        ("job", STRING, False, "The job's id; absent: the cluster"),
        ("decisions", INTEGER, False, "As for job"), ("island", INTEGER, False, "As for job")], None),
    "sites": ("Sites, and the fastest link between two of them", [
        ("job", STRING, False, "The job whose model was measured")], ".atl.v1.ClusterProfile"),
    "session": ("Whether the caller may act", [], {
        "type": "object", "properties": {"actions": {"type": "boolean", "description": "Absent: it may not"}}}),
}
ACTIONS = {
    "submit": ("Takes a job into the queue; the body is a job file in TOML, whose paths are absolute", [],
               ".atl.v1.SubmitReply"),
    "set": ("Changes settings of a job that has not ended, all or none; the body has one KEY=VALUE a line", [JOB],
            ".atl.v1.ChangeReply"),
    "pause": ("Pauses a job", [JOB], ".atl.v1.JobSummary"),
    "resume": ("Lets a paused or failed job go on", [JOB], ".atl.v1.JobSummary"),
    "cancel": ("Ends a job", [JOB], ".atl.v1.JobSummary"),
    "drain": ("Takes a member out of use", [
        ("server", STRING, True, "The member's name"),
        ("undo", {"type": "string", "enum": ["1"]}, False, "Takes it back into use")], ".atl.v1.DrainReply"),
    "trace": ("Records one coming step of an island", [JOB, ("island", INTEGER, False, "The island; absent: 0")],
              ".atl.v1.TraceReply"),
}
ERRORS = {"400": "The request is wrong", "403": "The caller may not", "404": "There is no such job or call",
          "409": "The job's state does not allow it", "503": "The coordinator does not answer"}
FLOAT = {"oneOf": [{"type": "number"}, {"type": "string", "enum": ["NaN", "Infinity", "-Infinity"]}]}
SCALARS = {
    Field.TYPE_DOUBLE: FLOAT, Field.TYPE_FLOAT: FLOAT, Field.TYPE_BOOL: {"type": "boolean"}, Field.TYPE_STRING: STRING, Field.TYPE_BYTES: {"type": "string", "format": "byte"},
    **dict.fromkeys([Field.TYPE_INT32, Field.TYPE_SINT32, Field.TYPE_UINT32, Field.TYPE_FIXED32], INTEGER),
    **dict.fromkeys([Field.TYPE_INT64, Field.TYPE_SINT64, Field.TYPE_UINT64, Field.TYPE_FIXED64],
                    {"type": "string", "format": "int64"}),
}


class Schemas:
    """Messages and enums as JSON schemas, by their full names; those that were referred to are in `found`."""

    def __init__(self, files):
        self._kinds, self._comments, self.found = {}, {}, {}
        for file in files:
            comments = {tuple(at.path): at.leading_comments or at.trailing_comments
                        for at in file.source_code_info.location}
            for number, message in enumerate(file.message_type):
                self._add(f".{file.package}.{message.name}", message, (4, number), comments)
            for enum in file.enum_type:
                self._kinds[f".{file.package}.{enum.name}"] = enum

    def _add(self, name, message, path, comments):
        self._kinds[name] = message
        self._comments[name] = [" ".join(comments.get((*path, 2, i), "").split()) for i in range(len(message.field))]
        for number, nested in enumerate(message.nested_type):
            self._add(f"{name}.{nested.name}", nested, (*path, 3, number), comments)
        for enum in message.enum_type:
            self._kinds[f"{name}.{enum.name}"] = enum

    def refer(self, name):
        """A reference to the schema, which is then in `found`."""
        short = name.removeprefix(".atl.v1.").replace(".", "_")
        if short not in self.found:
            self.found[short] = {}
            kind = self._kinds[name]
            self.found[short] = self._message(name, kind) if hasattr(kind, "field") else {
                "type": "string", "enum": [value.name for value in kind.value]}
        return {"$ref": f"#/components/schemas/{short}"}

    def _one(self, field):
        kind = self._kinds.get(field.type_name)
        if kind is not None and hasattr(kind, "options") and getattr(kind.options, "map_entry", False):
            return {"type": "object", "additionalProperties": self._one(kind.field[1])}
        schema = self.refer(field.type_name) if field.type_name else SCALARS[field.type]
        return {"type": "array", "items": schema} if field.label == Field.LABEL_REPEATED else schema

    def _message(self, name, message):
        properties = {}
        for field, comment in zip(message.field, self._comments[name]):
            schema = self._one(field)
            if comment and "$ref" not in schema:
                schema = {**schema, "description": comment}
            properties[field.name] = schema
        return {"type": "object", "properties": properties} if properties else {"type": "object"}

    def reply(self, described):
        """The schema of a call's reply."""
        if isinstance(described, list):
            return {"type": "array", "items": self.refer(described[0])}
        return self.refer(described) if isinstance(described, str) else described


def describe_protos():
    """The descriptors of SOURCES and of what they import."""
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run(["protoc", "-I.", "--include_imports", "--include_source_info", f"--descriptor_set_out={out.name}",
                        *SOURCES], check=True)
        return descriptor_pb2.FileDescriptorSet.FromString(out.read()).file


def operation(schemas, name, call, action):
    summary, parameters, reply = call
    content = {"text/event-stream": {"schema": STRING}} if reply is None else {
        "application/json": {"schema": schemas.reply(reply)}}
    described = {"operationId": name, "summary": summary, "parameters": [
        {"name": parameter, "in": "query", "required": required, "schema": schema, "description": meaning}
        for parameter, schema, required, meaning in parameters]}
    if action:
        described["parameters"].append({"name": "X-Atoll-Action", "in": "header", "required": True, "schema": {
            "type": "string", "enum": ["1"]}, "description": "Pages of other origins cannot send it"})
    if name in ("set", "submit"):
        described["requestBody"] = {"required": True, "content": {"text/plain": {"schema": STRING}}}
    described["responses"] = {"200": {"description": "The answer", "content": content}, **{
        code: {"$ref": f"#/components/responses/{code}"} for code in ERRORS}}
    return described


def document():
    schemas = Schemas(describe_protos())
    paths = {}
    for calls, method in ((QUERIES, "get"), (ACTIONS, "post")):
        for name, call in calls.items():
            paths.setdefault(f"/api/v1/{name}", {})[method] = operation(schemas, name, call, method == "post")
    error = schemas.refer(".atl.v1.page.Error")
    return {"openapi": "3.0.3", "info": {
        "title": "Atoll's coordinator", "version": "1",
        "description": "Generated from proto/coordinator.proto and coordinator/http/page.proto by `./dev format`. "
                       "See http.md."},
        "servers": [{"url": "http://127.0.0.1:7080"}], "paths": paths,
        "components": {"responses": {
            code: {"description": text, "content": {"application/json": {"schema": error}}} for code, text in ERRORS.items()},
                       "schemas": dict(sorted(schemas.found.items()))}}


def yaml_lines(value, indent=0):
    """Block style; scalars as JSON writes them, which YAML reads alike."""
    space = "  " * indent
    items = value.items() if isinstance(value, dict) else ((None, item) for item in value)
    for key, item in items:
        head = space + ("-" if key is None else f"{key if re.fullmatch('[A-Za-z_/$]+', key) else json.dumps(key)}:")
        if isinstance(item, (dict, list)) and item:
            yield head
            yield from yaml_lines(item, indent + 1)
        else:
            yield f"{head} {json.dumps(item, ensure_ascii=False)}"


def reference():
    return "\n".join(yaml_lines(document())) + "\n"


def check():
    """What is wrong with the reference, a line each."""
    with open(GATEWAY, encoding="utf-8") as file:
        routes = set(re.findall(r'\{"(\w+)",\s*"/atl\.v1\.', file.read()))
    described = (set(QUERIES) | set(ACTIONS)) - {"session"}
    if routes != described:
        yield f".ci/openapi_reference.py: {GATEWAY} has other calls: {sorted(routes ^ described)}"
    with open(REFERENCE, encoding="utf-8") as file:
        if file.read() != reference():
            yield f"{REFERENCE}: is not what the protos say; run ./dev format"


if __name__ == "__main__":
    if "--check" in sys.argv:
        print("\n".join(check()))
    else:
        with open(REFERENCE, "w", encoding="utf-8") as reference_file:
            reference_file.write(reference())
