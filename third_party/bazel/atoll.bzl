"""atoll_test(): a Catch2 test whose cases are counted one by one."""

# Five times what Bazel gives a test of this size: the machine may be ten times slower than ours.
_TIMEOUTS = {"small": "moderate", "medium": "long", "large": "eternal"}

# A test's own code is compiled for a short build; what it tests keeps the product's flags.
TEST_COPTS = ["-Og"]

def atoll_test(name, srcs, deps = [], size = "small", data = [], copts = [], **kwargs):
    native.cc_test(
        name = name,
        srcs = srcs,
        deps = deps + ["//tests/catch"],
        size = size,
        copts = copts + TEST_COPTS,
        timeout = _TIMEOUTS[size],
        # TSAN_OPTIONS in .bazelrc names the file by this path.
        data = data + select({
            "//third_party/bazel:tsan": ["//third_party:tsan.supp"],
            "//conditions:default": [],
        }),
        **kwargs
    )
