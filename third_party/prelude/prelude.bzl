"""precompiled_header(): system headers that most sources include, parsed once for all of them."""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _precompiled_header_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    compiler = cc_common.get_tool_for_action(
        feature_configuration = features,
        action_name = CPP_COMPILE_ACTION_NAME,
    )

    # The compiler takes the precompiled form that lies beside the header: both are in the output folder.
    header = ctx.actions.declare_file(ctx.label.name + ".h")
    ctx.actions.symlink(output = header, target_file = ctx.file.src)
    headers = [header]
    if compiler.endswith("gcc"):  # clang refuses what was precompiled with other flags, gcc falls back to the header
        precompiled = ctx.actions.declare_file(ctx.label.name + ".h.gch")
        variables = cc_common.create_compile_variables(
            feature_configuration = features,
            cc_toolchain = toolchain,
            source_file = header.path,
            output_file = precompiled.path,
            user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts +
                                 ["-x", "c++-header"],
            quote_include_directories = depset(["."]),
            use_pic = True,
        )
        ctx.actions.run(
            executable = compiler,
            arguments = cc_common.get_memory_inefficient_command_line(
                feature_configuration = features,
                action_name = CPP_COMPILE_ACTION_NAME,
                variables = variables,
            ),
            env = cc_common.get_environment_variables(
                feature_configuration = features,
                action_name = CPP_COMPILE_ACTION_NAME,
                variables = variables,
            ),
            # The headers themselves are no inputs of Bazel's: their packages' versions stand for them.
            inputs = depset([header, ctx.file._versions] + ctx.files.includes, transitive = [toolchain.all_files]),
            outputs = [precompiled],
            mnemonic = "CppPrecompile",
            progress_message = "Precompiling " + ctx.file.src.short_path,
        )
        headers.append(precompiled)
    headers += ctx.files.includes
    return [CcInfo(compilation_context = cc_common.create_compilation_context(headers = depset(headers)))]

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    attrs = {
        "src": attr.label(allow_single_file = [".h"], mandatory = True),
        "copts": attr.string_list(),
        "includes": attr.label_list(allow_files = [".h"]),
        "_versions": attr.label(default = "@system//:versions", allow_single_file = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
