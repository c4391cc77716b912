"""cuda_library(): sources compiled by nvcc, linkable into any cc_* target."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

# Turing, Ampere, Hopper. Each costs 13-22 s and 650 MB a file.
_ARCHITECTURES = ["75", "80", "90a"]

_FlagValue = provider(fields = {"value": "bool"})

def _bool_flag_impl(ctx):
    return _FlagValue(value = ctx.build_setting_value)

bool_flag = rule(
    implementation = _bool_flag_impl,
    build_setting = config.bool(flag = True),
)

def _compile(ctx, src, headers, include_args):
    obj = ctx.actions.declare_file("_objs/%s/%s.o" % (ctx.label.name, src.basename))

    # What ptxas says of registers and spills; one architecture after the other, so that it can be read.
    log = ctx.actions.declare_file("_objs/%s/%s.ptxas" % (ctx.label.name, src.basename))
    args = ctx.actions.args()
    args.add_all([log, ctx.executable._nvcc])
    args.add_all(["-ccbin", "/usr/bin/g++", "-std=c++20", "-x", "cu", "-Xptxas=-v"])
    args.add("-Xcompiler", "-fPIC,-Wall,-Wextra,-Wno-missing-field-initializers")
    args.add("-O2" if ctx.var["COMPILATION_MODE"] == "opt" else "-O1")
    for arch in ctx.attr.architectures:
        args.add("-gencode=arch=compute_%s,code=sm_%s" % (arch, arch))
    args.add_all(ctx.attr.copts)
    ctx.actions.run_shell(
        # A sandbox has its own process ids and the machine's /tmp: nvcc's files, named after its id, would be shared.
        command = 'log=$1; shift; export TMPDIR=$(mktemp -d); "$@" 2>"$log"; code=$?; rm -rf "$TMPDIR"; ' +
                  'grep -Ev "^ptxas info|bytes stack frame" "$log" >&2; exit $code',
        tools = [ctx.executable._nvcc],
        arguments = [args, include_args] + ["-c", src.path, "-o", obj.path],
        inputs = depset([src], transitive = [headers]),
        outputs = [obj, log],
        env = {"PATH": "/usr/bin:/bin"},
        mnemonic = "Nvcc",
        progress_message = "nvcc %s" % src.short_path,
    )
    return obj, log

def _cuda_library_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(ctx = ctx, cc_toolchain = toolchain)
    contexts = [d[CcInfo].compilation_context for d in ctx.attr.deps]
    headers = depset(ctx.files.hdrs, transitive = [c.headers for c in contexts])
    includes = ctx.actions.args()
    includes.add_all(["-I.", "-I" + ctx.bin_dir.path])
    includes.add_all(depset(transitive = [c.includes for c in contexts] +
                                         [c.quote_includes for c in contexts]), before_each = "-I")
    includes.add_all(depset(transitive = [c.system_includes for c in contexts]), before_each = "-isystem")
    compiled = [_compile(ctx, src, headers, includes) for src in ctx.files.srcs]
    objects = depset([obj for obj, _ in compiled])
    linking, _ = cc_common.create_linking_context_from_compilation_outputs(
        actions = ctx.actions,
        feature_configuration = features,
        cc_toolchain = toolchain,
        name = ctx.label.name,
        compilation_outputs = cc_common.create_compilation_outputs(objects = objects, pic_objects = objects),
        linking_contexts = [d[CcInfo].linking_context for d in ctx.attr.deps],
        disallow_dynamic_library = True,
    )
    own = CcInfo(
        compilation_context = cc_common.create_compilation_context(headers = depset(ctx.files.hdrs)),
        linking_context = linking,
    )
    return [
        DefaultInfo(files = objects),
        OutputGroupInfo(ptxas = depset([log for _, log in compiled])),
        cc_common.merge_cc_infos(direct_cc_infos = [own], cc_infos = [d[CcInfo] for d in ctx.attr.deps]),
    ]

_cuda_library = rule(
    implementation = _cuda_library_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu", ".cc"]),
        "hdrs": attr.label_list(allow_files = [".h", ".cuh"]),
        "deps": attr.label_list(providers = [CcInfo]),
        "copts": attr.string_list(),
        "architectures": attr.string_list(default = _ARCHITECTURES),
        "_nvcc": attr.label(default = "@cuda//:nvcc", executable = True, cfg = "exec"),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

# target_compatible_with of everything that needs the toolkit.
CUDA_ONLY = select({
    "//third_party/cuda:enabled": [],
    "//conditions:default": ["//third_party/cuda:absent"],
})

def cuda_library(name, deps = [], **kwargs):
    _cuda_library(
        name = name,
        deps = deps + ["@cuda//:cudart"],
        target_compatible_with = CUDA_ONLY,
        **kwargs
    )
