"""@system: Debian packages as link-only cc_library targets.

Headers are found by the compiler in /usr/include, so a target carries link flags and a
define with its packages' versions: an upgrade then rebuilds what depends on that target.
"""

# target: (Debian packages, pkg-config modules, further link flags)
_LIBRARIES = {
    "absl": (["libabsl-dev"], [
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
    "bzip2": (["libbz2-dev"], [], ["-lbz2"]),
    "catch2": (["catch2"], [], []),
    "catch2_main": (["catch2"], [], ["-lCatch2WithMain"]),
    "cli11": (["libcli11-dev"], [], []),
    "crypto": (["libssl-dev"], ["libcrypto"], []),
    "curl": (["libcurl4-openssl-dev"], ["libcurl"], []),
    "dnnl": (["libdnnl-dev"], [], ["-ldnnl"]),
    "httplib": (["libcpp-httplib-dev"], ["cpp-httplib"], []),
    "grpc": (["libgrpc++-dev", "libprotobuf-dev"], ["grpc++", "protobuf"], ["-lgrpc++_reflection", "-lpthread"]),
    "jpeg": (["libjpeg62-turbo-dev"], ["libjpeg"], []),
    "json": (["nlohmann-json3-dev"], [], []),
    "lzma": (["liblzma-dev"], ["liblzma"], []),
    "openblas": (["libopenblas-dev"], ["openblas"], []),
    "png": (["libpng-dev"], ["libpng"], []),
    "prometheus": (["prometheus-cpp-dev"], ["prometheus-cpp-core"], []),
    "pcre2": (["libpcre2-dev"], ["libpcre2-8"], []),
    "protobuf": (["libprotobuf-dev"], ["protobuf"], ["-lpthread"]),
    "snappy": (["libsnappy-dev"], [], ["-lsnappy"]),
    "sqlite3": (["libsqlite3-dev"], ["sqlite3"], []),
    "ssl": (["libssl-dev"], ["libssl", "libcrypto"], []),
    "systemd": (["libsystemd-dev"], ["libsystemd"], []),
    "tomlplusplus": (["libtomlplusplus-dev"], [], []),
    "utf8proc": (["libutf8proc-dev"], ["libutf8proc"], []),
    "xxhash": (["libxxhash-dev"], ["libxxhash"], []),
    "zlib": (["zlib1g-dev"], ["zlib"], []),
    "zmq": (["libzmq3-dev", "cppzmq-dev"], ["libzmq"], []),
    "zstd": (["libzstd-dev"], ["libzstd"], []),
}

# Of what pkg-config says, these libraries' headers need their defines, too.
_WITH_DEFINES = ["httplib"]

# The precompiled headers come with these targets.
_PRELUDE = "@atoll//third_party/prelude"

def _build_packages(rctx):
    text = rctx.read(rctx.path(Label("//third_party:packages.txt")))
    return [line.split(" ")[1] for line in text.splitlines() if line.startswith("build ")]

def _pkg_config(rctx, what, modules, prefix = ""):
    result = rctx.execute(["pkg-config", what] + modules)
    if result.return_code != 0:
        fail("pkg-config %s: %s" % (" ".join(modules), result.stderr))
    words = [w for w in result.stdout.replace("\n", " ").split(" ") if w]
    return [w[len(prefix):] for w in words if w.startswith(prefix)]

def _link_flags(rctx, modules, extra):
    flags = _pkg_config(rctx, "--libs", modules) if modules else []
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
    rctx.file("versions", versions.stdout)
    version_of = dict([line.split(" ") for line in versions.stdout.splitlines()])
    for tool in ["protoc", "grpc_cpp_plugin"]:
        rctx.symlink("/usr/bin/" + tool, tool)
    build = [
        "package(default_visibility = [\"//visibility:public\"])",
        "exports_files([\"protoc\", \"grpc_cpp_plugin\", \"versions\"])",
    ]
    for name, (packages, modules, extra) in _LIBRARIES.items():
        stamp = "ATOLL_PACKAGES_%s=%d" % (name, hash(" ".join([version_of[p] for p in packages])))
        defines = [stamp]
        if name in _WITH_DEFINES:
            defines += _pkg_config(rctx, "--cflags-only-other", modules, "-D")
        build.append("cc_library(name = %r, linkopts = %r, defines = %r, deps = [%r])" %
                     (name, _link_flags(rctx, modules, extra), defines, _PRELUDE))
    rctx.file("BUILD", "\n".join(build) + "\n")

system_packages = repository_rule(
    implementation = _system_packages_impl,
    local = True,
    configure = True,
    environ = ["PATH"],
)
