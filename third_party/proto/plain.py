#!/usr/bin/python3
"""protoc plugin: NAME.plain.h and NAME.fields.h for each .proto file. proto/plain.proto describes them."""
import sys

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.compiler import plugin_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

INTEGERS = {Field.TYPE_INT32: "int32_t", Field.TYPE_SINT32: "int32_t", Field.TYPE_INT64: "int64_t",
            Field.TYPE_SINT64: "int64_t"}
COPIED = {Field.TYPE_UINT32: "uint32_t", Field.TYPE_FIXED32: "uint32_t", Field.TYPE_UINT64: "uint64_t",
          Field.TYPE_FIXED64: "uint64_t", Field.TYPE_DOUBLE: "double", Field.TYPE_FLOAT: "float",
          Field.TYPE_BOOL: "bool"}
STANDARD_HEADERS = {"<=>": "<compare>", "int": "<cstdint>", "std::optional": "<optional>",
                    "std::string": "<string>", "std::variant": "<variant>", "std::vector": "<vector>"}
# Paths within FileDescriptorProto, by which comments are found.
MESSAGE, ENUM = 4, 5
FIELD, VALUE = 2, 2


def quoted(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def camel(text):
    return "".join(word.capitalize() for word in text.lower().split("_"))


class Comments:
    def __init__(self, file):
        self._of = {tuple(at.path): at for at in file.source_code_info.location}

    def around(self, path, line, indent=""):
        """The line with the comments that stand before and behind it."""
        at = self._of.get(tuple(path))
        if at is None:
            return [indent + line]
        before = [f"{indent}//{text}".rstrip() for text in at.leading_comments.splitlines()]
        behind = at.trailing_comments.splitlines()
        if len(behind) > 1 and len(before) == 0:
            before, behind = [f"{indent}//{text}".rstrip() for text in behind], []
        return before + [indent + line + "".join(f"  //{text}" for text in behind)]


class Types:
    """All messages and enums of a request, by their full names."""

    def __init__(self, files, extensions):
        self._extensions = extensions
        self._of, self._file = {}, {}
        for file in files:
            by_name = {name: named.options for named in self.option("plain_file", file).by_name for name in named.field}
            for message in file.message_type:
                for field in message.field:
                    self._complete(self.option("plain", field), field, by_name)
            for kind in list(file.message_type) + list(file.enum_type):
                self._of[f".{file.package}.{kind.name}"] = kind
                self._file[f".{file.package}.{kind.name}"] = file.name

    def option(self, name, described):
        return described.options.Extensions[self._extensions[name]]

    def message(self, message):
        return self.option("plain_message", message)

    def enum(self, enum):
        return self.option("plain_enum", enum)

    def field(self, field):
        return self.option("plain", field)

    @staticmethod
    def _complete(options, field, by_name):
        """Adds what its name says of the field, and refuses what would have no effect."""
        if field.name in by_name and not field.type_name:
            own = type(options)()
            own.CopyFrom(options)
            options.CopyFrom(by_name[field.name])
            options.MergeFrom(own)
        repeated = field.label == Field.LABEL_REPEATED
        integer, text = field.type in INTEGERS, field.type == Field.TYPE_STRING
        if ((options.min and not integer) or (options.max and not integer and not text and not repeated) or
                (options.any and field.type != Field.TYPE_DOUBLE) or (options.valid and not (repeated and text)) or
                (options.maybe and (repeated or field.type != Field.TYPE_MESSAGE))):
            sys.exit(f"{field.name}: min, max, any, valid or maybe has no effect on such a field")

    def __getitem__(self, full_name):
        return self._of[full_name]

    def file_of(self, full_name):
        return self._file[full_name]

    def enum_name(self, enum):
        return self.enum(enum).name or enum.name

    @staticmethod
    def cpp_name(full_name):
        """Of what protoc generates, within namespace atl."""
        return "::".join(full_name.split(".")[2:])

    def message_name(self, message):
        return self.message(message).name or message.name

    def enumerator(self, enum, value):
        prefix = "".join("_" + c if c.isupper() else c.upper() for c in enum.name).lstrip("_") + "_"
        if not value.name.startswith(prefix):
            sys.exit(f"{value.name}: does not begin with {prefix}")
        return self.option("plain_value", value) or "k" + camel(value.name[len(prefix):])

    # ---- of a field

    def plain_name(self, field):
        name = self.field(field).name or field.name
        return name[:-len("_ns")] if self.field(field).type == "Duration" else name

    def element(self, field):
        """C++ type of a field, or of its elements."""
        if self.field(field).type:
            return self.field(field).type
        if field.type == Field.TYPE_MESSAGE:
            return self.message_name(self[field.type_name])
        if field.type == Field.TYPE_ENUM:
            return self.enum_name(self[field.type_name])
        if field.type in (Field.TYPE_STRING, Field.TYPE_BYTES):
            return "std::string"
        if field.type not in INTEGERS and field.type not in COPIED:
            sys.exit(f"{field.name}: a type without a plain one")
        return INTEGERS.get(field.type) or COPIED[field.type]

    def init(self, field):
        init = self.field(field).init
        if field.label == Field.LABEL_REPEATED:
            return init
        if field.type == Field.TYPE_ENUM:
            enum = self[field.type_name]
            first = next(value for value in enum.value if value.number > 0)
            return f"{self.element(field)}::{init or self.enumerator(enum, first)}"
        if field.type in (Field.TYPE_STRING, Field.TYPE_BYTES):
            return quoted(init) if init else ""
        if field.type == Field.TYPE_MESSAGE:
            return init
        return init or ("false" if field.type == Field.TYPE_BOOL else
                        "Duration::zero()" if self.element(field) == "Duration" else "0")

    def declaration(self, field):
        element = self.element(field)
        if field.label == Field.LABEL_REPEATED:
            element = f"std::vector<{element}>"
        elif self.field(field).maybe:
            element = f"std::optional<{element}>"
        init = self.init(field)
        return f"{element} {self.plain_name(field)}{' = ' + init if init else ''};"

    # ---- conversion

    def conversion(self, field):
        """Statements of Fields(v, s, m) that convert one field."""
        wire, options = field.name, self.field(field)
        name, text = f"s.{self.plain_name(field)}", quoted(field.name)
        mutable, message = f"m.mutable_{wire}()", f"[&] {{ return m.mutable_{wire}(); }}"
        if field.label == Field.LABEL_REPEATED:
            call, rest = self.list_call(field)
            return [f"v.{call}({text}, {name}, {mutable}, {options.max or 'kMaxListLength'}{rest});"]
        if field.type == Field.TYPE_MESSAGE:
            if options.maybe:
                return [f"v.Maybe({name}, m.has_{wire}(), {message});"]
            return [f"Fields(v, {name}, *{mutable});"]
        set_to = f"[&](const auto& value) {{ m.set_{wire}(value); }}"
        if field.type == Field.TYPE_ENUM:
            enum = self.cpp_name(field.type_name)
            call = f"v.Enum({text}, {name}, m.{wire}(), {enum}_IsValid, {set_to});"
            return [f"if (V::kEncodes || m.{wire}() != 0) {{", f"  {call}", "}"] if field.proto3_optional else [call]
        if field.proto3_optional:
            rest = f", {self.limits(field)}" if field.type in INTEGERS else ""
            return [f"v.Optional({text}, {name}, m.has_{wire}(), m.{wire}(), {set_to}{rest});"]
        if self.element(field) == "Duration":
            return [f"v.Number({text}, {name}, Duration(m.{wire}()).count(), "
                    f"[&](Duration value) {{ m.set_{wire}(value.count()); }}, {self.limits(field)});"]
        if field.type in INTEGERS:
            return [f"v.Number({text}, {name}, m.{wire}(), {set_to}, {self.limits(field)});"]
        if field.type == Field.TYPE_STRING and options.max:
            return [f"v.Name({text}, {name}, m.{wire}(), {set_to}, {options.max});"]
        call = "Bytes" if field.type == Field.TYPE_BYTES else "Any" if options.any else "Copy"
        return [f"v.{call}({text}, {name}, m.{wire}(), {set_to});"]

    def list_call(self, field):
        """Which function of the visitor converts a list, and its arguments besides the longest length."""
        options = self.field(field)
        if field.type == Field.TYPE_MESSAGE:
            return "Messages", ""
        if options.valid:
            return "Names", f", {options.valid}"
        if field.type in INTEGERS:
            return "Numbers", f", {options.min or '0'}, {self.most(field)}"
        return ("AnyValues" if options.any else "Values"), ""

    @staticmethod
    def most(field):
        return "kMaxNumber32" if INTEGERS[field.type] == "int32_t" else "kMaxNumber"

    def limits(self, field):
        options = self.field(field)
        duration = self.element(field) == "Duration"
        most = options.max or ("kMaxIntervalNs" if duration else self.most(field))
        # A job's numbers may be absent, and its own check says which of them it takes.
        least = f"-({most})" if field.proto3_optional else (
            f"std::min<int64_t>(0, {options.init})" if options.init and not duration else "0")
        return f"{options.min or least}, {most}"


class File:
    def __init__(self, file, types):
        self._file, self._types, self._comments = file, types, Comments(file)
        self._options = types.option("plain_file", file)
        only = set(self._options.only)
        self._messages = [(number, message) for number, message in enumerate(file.message_type)
                          if not types.message(message).omit and (not only or message.name in only)]
        self._enums = [(number, enum) for number, enum in enumerate(file.enum_type)
                       if not types.enum(enum).by_hand and not only]

    def fields(self, message):
        return [(number, field) for number, field in enumerate(message.field)
                if not self._types.field(field).omit]

    def imported(self, suffix):
        """Headers of the files whose types this one's messages have."""
        names = {self._types.file_of(field.type_name) for _, message in self._messages
                 for _, field in self.fields(message) if field.type_name}
        return [f'#include "{name[:-len(".proto")]}{suffix}"' for name in sorted(names - {self._file.name})]

    def by_need(self):
        """Messages after those that they hold."""
        here = {f".{self._file.package}.{message.name}": (number, message) for number, message in self._messages}
        done = {}

        def visit(full_name):
            if full_name in here and full_name not in done:
                for _, field in self.fields(here[full_name][1]):
                    visit(field.type_name)
                done[full_name] = here[full_name]

        for full_name in here:
            visit(full_name)
        return done.values()

    def enum(self, number, enum):
        under = self._types.enum(enum).type
        lines = self._comments.around([ENUM, number],
                                      f"enum class {self._types.enum_name(enum)}{' : ' + under if under else ''} {{")
        expected = 0
        for index, value in enumerate(enum.value):
            if value.number == 0:
                continue
            given = "" if value.number - 1 == expected else f" = {value.number - 1}"
            expected = value.number
            lines += self._comments.around([ENUM, number, VALUE, index],
                                           f"{self._types.enumerator(enum, value)}{given},", "  ")
        return lines + ["};", ""]

    def struct(self, number, message):
        name, lines, variants = self._types.message_name(message), [], []
        for index, field in self.fields(message):
            path = [MESSAGE, number, FIELD, index]
            if not field.HasField("oneof_index") or field.proto3_optional:
                lines += self._comments.around(path, self._types.declaration(field), "  ")
            elif field.oneof_index not in variants:
                variants.append(field.oneof_index)
                oneof = message.oneof_decl[field.oneof_index]
                lines.append(f"  {self.variant(message, field.oneof_index)} {oneof.name};")
        aliases = []
        for index in variants:
            kinds = [self._types.element(field) for _, field in self.fields(message)
                     if field.HasField("oneof_index") and field.oneof_index == index]
            aliases += [f"using {self.variant(message, index)} = std::variant<{', '.join(kinds)}>;", ""]
        equal = ("auto operator<=>" if self._types.message(message).ordered else "bool operator==")
        head = self._comments.around([MESSAGE, number], f"struct {name} {{")
        return aliases + head + lines + ["", f"  {equal}(const {name}&) const = default;", "};", ""]

    def variant(self, message, index):
        oneof = message.oneof_decl[index]
        return self._types.option("plain_oneof", oneof) or message.name + camel(oneof.name)

    def function(self, message):
        full = self._types.cpp_name(f".{self._file.package}.{message.name}")
        plain = f"Plain<V, {self._types.message_name(message)}>"
        check = self._types.message(message).check
        if not check and not message.field:
            return ["template <class V>", f"void Fields(V&, {plain}&, {full}&) {{}}", ""]
        lines = ["template <class V>", f"void Fields(V& v, {plain}& s, {full}& m) {{"]
        if check:
            lines.append(f"  if (!v.Check([&] {{ return {check}(m); }})) return;")
        for _, field in self.fields(message):
            if field.HasField("oneof_index") and not field.proto3_optional:
                oneof = message.oneof_decl[field.oneof_index].name
                lines.append(f"  v.template Alternative<{self._types.element(field)}>(s.{oneof}, m.has_{field.name}(), "
                             f"[&] {{ return m.mutable_{field.name}(); }});")
            else:
                lines += ["  " + line for line in self._types.conversion(field)]
        if check:
            lines.append(f"  v.CheckMade([&] {{ return {check}(m); }});")
        return lines + ["}", ""]

    def header(self, suffix, includes, body):
        guard = "ATOLL_" + (self._file.name[:-len(".proto")] + suffix).upper().replace("/", "_").replace(".", "_") + "_"
        return "\n".join([f"// Generated from {self._file.name} by third_party/proto/plain.py.", "",
                          f"#ifndef {guard}", f"#define {guard}", ""] + includes +
                         ["", "namespace atl {", ""] + body + ["}  // namespace atl", "", f"#endif  // {guard}", ""])

    def plain_header(self):
        body = [line for number, enum in self._enums for line in self.enum(number, enum)]
        body += [line for number, message in self.by_need() if not self._types.message(message).by_hand
                 for line in self.struct(number, message)]
        text = "\n".join(body)
        standard = [header for word, header in STANDARD_HEADERS.items() if word in text]
        own = ["common/ids.h"] + ["common/time.h"] * ("Duration" in text) + list(self._options.include)
        return self.header(".plain.h", [f"#include {h}" for h in standard] + [""] +
                           [f'#include "{h}"' for h in sorted(own)] + self.imported(".plain.h"), body)

    def fields_header(self):
        stem = self._file.name[:-len(".proto")]
        own = ["common/protocol/wire_visitor.h", stem + ".pb.h", stem + ".plain.h"] + list(self._options.fields_include)
        body = [line for _, message in self.by_need() for line in self.function(message)]
        return self.header(".fields.h", ["#include <algorithm>", ""] + [f'#include "{h}"' for h in sorted(own)] +
                           self.imported(".fields.h"), body)


def main():
    request = plugin_pb2.CodeGeneratorRequest.FromString(sys.stdin.buffer.read())
    # Read again, by classes that know the options.
    pool = descriptor_pool.DescriptorPool()
    for file in request.proto_file:
        pool.AddSerializedFile(file.SerializeToString())
    factory = message_factory.MessageFactory(pool)
    file_class = factory.GetPrototype(pool.FindMessageTypeByName("google.protobuf.FileDescriptorProto"))
    extensions = {name: pool.FindExtensionByName("atl.v1." + name) for name in
                  ("plain_file", "plain_message", "plain", "plain_oneof", "plain_enum", "plain_value")}
    files = [file_class.FromString(file.SerializeToString()) for file in request.proto_file]
    types = Types(files, extensions)
    response = plugin_pb2.CodeGeneratorResponse(
        supported_features=plugin_pb2.CodeGeneratorResponse.FEATURE_PROTO3_OPTIONAL)
    for file in files:
        if file.name in request.file_to_generate:
            made = File(file, types)
            stem = file.name[:-len(".proto")]
            response.file.add(name=stem + ".plain.h", content=made.plain_header())
            response.file.add(name=stem + ".fields.h", content=made.fields_header())
    sys.stdout.buffer.write(response.SerializeToString())


if __name__ == "__main__":
    main()
