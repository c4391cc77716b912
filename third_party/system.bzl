"""@system: Debian packages as link-only cc_library targets.

Headers are found by the compiler in /usr/include, so a target carries link flags and a
define with the packages' versions: an upgrade then rebuilds what depends on it.
"""

# target: (pkg-config modules, further link flags)
_LIBRARIES = {
    "absl": ([
        "absl_flags_parse",
        "absl_strings",
        "absl_str_format",
        "absl_status",
        "absl_statusor",
        "absl_synchronization",
        "absl_time",
        "absl_flat_hash_map",
        "absl_failure_signal_handler",
    ], []),
    "catch2": ([], []),
    "catch2_main": ([], ["-lCatch2WithMain"]),
    "cli11": ([], []),
    "dnnl": ([], ["-ldnnl"]),
    "gloo": ([], ["-lgloo"]),
    "grpc": (["grpc++", "protobuf"], ["-lgrpc++_reflection", "-lpthread"]),
    "json": ([], []),
    "openblas": (["openblas"], []),
    "protobuf": (["protobuf"], ["-lpthread"]),
    "sqlite3": (["sqlite3"], []),
    "tomlplusplus": ([], []),
    "xxhash": (["libxxhash"], []),
    "zmq": (["libzmq"], []),
}

def _build_packages(rctx):
    text = rctx.read(rctx.path(Label("//third_party:packages.txt")))
    return [line.split(" ")[1] for line in text.splitlines() if line.startswith("build ")]

def _link_flags(rctx, modules, extra):
    flags = []
    if modules:
        result = rctx.execute(["pkg-config", "--libs"] + modules)
        if result.return_code != 0:
            fail("pkg-config %s: %s" % (" ".join(modules), result.stderr))
        flags = [f for f in result.stdout.replace("\n", " ").split(" ") if f]
    unique = {}
    for flag in flags + extra:
        unique[flag] = True
    return unique.keys()

def _system_packages_impl(rctx):
    packages = _build_packages(rctx)
    versions = rctx.execute(["dpkg-query", "-W", "-f=${Package} ${Version}\\n"] + packages)
    if versions.return_code != 0:
        fail("Debian packages are missing. Run ./dev deps, or apt-get install %s\n%s" %
             (" ".join(packages), versions.stderr))
    stamp = "ATOLL_SYSTEM_PACKAGES=%s" % hash(versions.stdout)
    for tool in ["protoc", "grpc_cpp_plugin"]:
        rctx.symlink("/usr/bin/" + tool, tool)
    build = [
        "package(default_visibility = [\"//visibility:public\"])",
        "exports_files([\"protoc\", \"grpc_cpp_plugin\"])",
    ]
    for name, (modules, extra) in _LIBRARIES.items():
        build.append("cc_library(name = %r, linkopts = %r, defines = [%r])" %
                     (name, _link_flags(rctx, modules, extra), stamp))
    rctx.file("BUILD", "\n".join(build) + "\n")

system_packages = repository_rule(
    implementation = _system_packages_impl,
    local = True,
    configure = True,
    environ = ["PATH"],
)
