"""cc_proto(): .proto files to a cc_library, by Debian's protoc and gRPC plugin, and plain.py."""

_ProtoFiles = provider(fields = {"files": "depset of .proto files, with those they import"})

def _generate_impl(ctx):
    files = depset(ctx.files.srcs, transitive = [d[_ProtoFiles].files for d in ctx.attr.deps])
    suffixes = [".pb"] + ([".grpc.pb"] if ctx.attr.grpc else [])
    headers, sources, plain, fields = [], [], [], []
    for src in ctx.files.srcs:
        stem = src.basename[:-len(".proto")]
        headers += [ctx.actions.declare_file(stem + s + ".h") for s in suffixes]
        sources += [ctx.actions.declare_file(stem + s + ".cc") for s in suffixes]
        if ctx.attr.plain:
            plain.append(ctx.actions.declare_file(stem + ".plain.h"))
            fields.append(ctx.actions.declare_file(stem + ".fields.h"))
    args = ctx.actions.args()
    args.add_all(["-I.", "-I/usr/include"])
    args.add("--cpp_out=" + ctx.bin_dir.path)
    if ctx.attr.grpc:
        args.add("--grpc_out=" + ctx.bin_dir.path)
        args.add(ctx.executable._plugin, format = "--plugin=protoc-gen-grpc=%s")
    if ctx.attr.plain:
        args.add("--plain_out=" + ctx.bin_dir.path)
        args.add(ctx.executable._plain, format = "--plugin=protoc-gen-plain=%s")
    args.add_all(ctx.files.srcs)
    ctx.actions.run(
        executable = ctx.executable._protoc,
        arguments = [args],
        inputs = files,
        tools = [ctx.executable._plugin, ctx.executable._plain],
        outputs = headers + sources + plain + fields,
        mnemonic = "Protoc",
        progress_message = "Generating C++ from %s" % ctx.label,
    )
    return [
        DefaultInfo(files = depset(headers + sources)),
        OutputGroupInfo(
            hdrs = depset(headers),
            srcs = depset(sources),
            plain = depset(plain),
            fields = depset(fields),
        ),
        _ProtoFiles(files = files),
    ]

_generate = rule(
    implementation = _generate_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".proto"]),
        "deps": attr.label_list(providers = [_ProtoFiles]),
        "grpc": attr.bool(),
        "plain": attr.bool(),
        "_protoc": attr.label(
            default = "@system//:protoc",
            executable = True,
            allow_single_file = True,
            cfg = "exec",
        ),
        "_plugin": attr.label(
            default = "@system//:grpc_cpp_plugin",
            executable = True,
            allow_single_file = True,
            cfg = "exec",
        ),
        "_plain": attr.label(
            default = "//third_party/proto:plain.py",
            executable = True,
            allow_single_file = True,
            cfg = "exec",
        ),
    },
)

def cc_proto(name, srcs, deps = [], grpc = False, plain = False, plain_deps = [], **kwargs):
    """A cc_library of the messages in srcs, and of the services when grpc is set.

    With plain, NAME_plain is a library of the plain structs (it needs plain_deps), and NAME_fields the headers of the
    conversion, for the library that converts. proto/plain.proto describes both."""
    _generate(name = name + "_gen", srcs = srcs, deps = [d + "_gen" for d in deps], grpc = grpc, plain = plain)
    for group in ["hdrs", "srcs"] + (["plain", "fields"] if plain else []):
        native.filegroup(
            name = name + ("_plain_hdrs" if group == "plain" else "_" + group),
            srcs = [name + "_gen"],
            output_group = group,
        )
    if plain:
        native.cc_library(name = name + "_plain", hdrs = [name + "_plain_hdrs"], deps = plain_deps)
    native.cc_library(
        name = name,
        srcs = [name + "_srcs"],
        hdrs = [name + "_hdrs"],
        copts = ["-Wno-unused-parameter"],
        deps = deps + ["@system//:grpc" if grpc else "@system//:protobuf"],
        **kwargs
    )
