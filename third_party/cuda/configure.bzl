"""@cuda: the toolkit under $CUDA_HOME (default /usr/local/cuda), or a stand-in.

Bazel 4 analyses even the dependencies of targets that it skips, so the stand-in has every
label and fails only when its compiler is run.
"""

_STAND_IN = """
package(default_visibility = ["//visibility:public"])
sh_binary(name = "nvcc", srcs = ["nvcc.sh"])
[cc_library(name = n) for n in ["headers", "cudart", "cublas", "cudnn", "nccl"]]
"""

_TOOLKIT = """
package(default_visibility = ["//visibility:public"])
sh_binary(name = "nvcc", srcs = ["nvcc.sh"])
cc_library(name = "headers", hdrs = glob(["include/**"]), includes = ["include"])
cc_library(
    name = "cudart",
    linkopts = ["-L{home}/lib64", "-Wl,-rpath,{home}/lib64", "-lcudart_static", "-ldl", "-lrt", "-lpthread"],
)
cc_library(name = "cublas", linkopts = ["-lcublasLt", "-lcublas"], deps = [":cudart"])
cc_library(name = "cudnn", linkopts = ["-lcudnn"], deps = [":cudart"])
cc_library(name = "nccl", linkopts = ["-lnccl"], deps = [":cudart"])
"""

def _cuda_toolkit_impl(rctx):
    home = rctx.os.environ.get("CUDA_HOME", "/usr/local/cuda")
    nvcc = rctx.path(home + "/bin/nvcc")
    if not nvcc.exists:
        rctx.file("BUILD", _STAND_IN)
        rctx.file("nvcc.sh", "#!/bin/sh\necho 'no CUDA toolkit in %s: set CUDA_HOME' >&2\nexit 1\n" % home, executable = True)
        return
    version = rctx.execute([nvcc, "--version"]).stdout.strip().splitlines()[-1]

    # The version is part of the wrapper, so a new toolkit re-runs every nvcc action.
    rctx.file("nvcc.sh", "#!/bin/sh\n# %s\nexec %s \"$@\"\n" % (version, nvcc), executable = True)
    rctx.symlink(home + "/include", "include")
    rctx.file("BUILD", _TOOLKIT.replace("{home}", home))

cuda_toolkit = repository_rule(
    implementation = _cuda_toolkit_impl,
    local = True,
    configure = True,
    environ = ["CUDA_HOME"],
)
