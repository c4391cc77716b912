"""atoll_test(): Catch2 tests, mostly one target a folder, whose cases are counted one by one.
atoll_test_cases(): cases that several of these run, compiled once.
atoll_library(): a library whose sources are compiled several at a time.
"""

# A test's own code is compiled for a short build; what it tests keeps the product's flags.
TEST_COPTS = ["-Og"]

# Headers and templates are most of what it takes to compile a source of ours. A unit of several of a library's
# sources parses them once.
_SOURCES_A_UNIT = 8

def _unit_impl(ctx):
    lines = ["#include \"%s\"" % source.short_path for source in ctx.files.srcs]
    ctx.actions.write(ctx.outputs.out, "\n".join(lines) + "\n")

_unit = rule(
    implementation = _unit_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cc"]),
        "out": attr.output(mandatory = True),
    },
)

def _balanced(sources, most):
    """`sources` in as few lists of at most `most` as there can be, of about one length."""
    lists = (len(sources) + most - 1) // most
    return [sources[i * len(sources) // lists:(i + 1) * len(sources) // lists] for i in range(lists)]

def atoll_library(name, srcs, single = [], textual_hdrs = [], **kwargs):
    """A cc_library of many sources, compiled in units of a few; one by one with --define=units=single.

    Names in the anonymous namespaces of a unit's sources must differ. Those of `single` are compiled alone."""
    sources = [source for source in srcs if source.endswith(".cc")]
    together = [source for source in sources if source not in single]
    units = list(single)
    for number, sources_of_unit in enumerate(_balanced(together, _SOURCES_A_UNIT)):
        unit = "%s_unit_%d" % (name, number)
        _unit(name = unit, srcs = sources_of_unit, out = unit + ".cc")
        units.append(unit + ".cc")
    headers = [source for source in srcs if not source.endswith(".cc")]
    native.cc_library(
        name = name,
        srcs = headers + select({
            "//third_party/bazel:single_sources": sources,
            "//conditions:default": units,
        }),
        textual_hdrs = textual_hdrs + together,
        **kwargs
    )

# The same for tests. Each source has a namespace of its own in place of its anonymous one: sources may use one name for
# different helpers. What fixtures' headers of one target define outside of it must still differ.
_TEST_SOURCES_A_UNIT = 8

def _test_unit_impl(ctx):
    ctx.actions.run_shell(
        inputs = ctx.files.srcs,
        outputs = [ctx.outputs.out],
        command = "\n".join([
            "{ echo '#line 1 \"%s\"'; sed 's/^namespace {$/namespace %s {/' %s; } >> %s" %
            (source.short_path, source.basename[:-len(".cc")], source.path, ctx.outputs.out.path)
            for source in ctx.files.srcs
        ]),
        mnemonic = "TestUnit",
    )

_test_unit = rule(
    implementation = _test_unit_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cc"]),
        "out": attr.output(mandatory = True),
    },
)

def _test_units(name, srcs):
    """What is compiled of a test's sources: units of several."""
    sources = [source for source in srcs if source.endswith(".cc")]
    units = sources
    if len(sources) > 1:
        units = []
        for number, together in enumerate(_balanced(sources, _TEST_SOURCES_A_UNIT)):
            unit = "%s_unit_%d_test" % (name, number)
            _test_unit(name = unit, srcs = together, out = unit + ".cc")
            units.append(unit + ".cc")
    return [source for source in srcs if source not in sources] + select({
        "//third_party/bazel:single_sources": sources,
        "//conditions:default": units,
    })

def atoll_test_cases(name, srcs, deps = [], copts = [], **kwargs):
    """Cases of several tests, compiled once: each has them in its deps."""
    native.cc_library(
        name = name,
        testonly = True,
        srcs = _test_units(name, srcs),
        deps = deps + ["//tests/catch"],
        copts = copts + TEST_COPTS,
        alwayslink = True,
        **kwargs
    )

def atoll_test(name, srcs, deps = [], size = "small", data = [], copts = [], **kwargs):
    native.cc_test(
        name = name,
        srcs = _test_units(name[:-len("_test")], srcs),
        deps = deps + ["//tests/catch"],
        size = size,
        copts = copts + TEST_COPTS,
        # TSAN_OPTIONS in .bazelrc names the file by this path.
        data = data + select({
            "//third_party/bazel:tsan": ["//third_party:tsan.supp"],
            "//conditions:default": [],
        }),
        **kwargs
    )
