"""atoll_test(): a Catch2 test whose cases are counted one by one."""

def atoll_test(name, srcs, deps = [], size = "small", **kwargs):
    native.cc_test(
        name = name,
        srcs = srcs,
        deps = deps + ["//tests/catch"],
        size = size,
        **kwargs
    )
