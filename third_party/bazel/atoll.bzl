"""atoll_test(): a Catch2 test whose cases are counted one by one."""

def atoll_test(name, srcs, deps = [], size = "small", data = [], **kwargs):
    native.cc_test(
        name = name,
        srcs = srcs,
        deps = deps + ["//tests/catch"],
        size = size,
        # TSAN_OPTIONS in .bazelrc names the file by this path.
        data = data + select({
            "//third_party/bazel:tsan": ["//third_party:tsan.supp"],
            "//conditions:default": [],
        }),
        **kwargs
    )
