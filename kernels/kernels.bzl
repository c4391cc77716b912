"""Compiler options of files with vectorised loops."""

# Signalling NaNs and errno play no part in kernels; both stop loops from being vectorised. Vector
# values are passed only between inlined functions, so the warning about their ABI is void.
KERNEL_COPTS = select({
    # The sanitizers' code at -O3 takes minutes to compile.
    "//kernels:debug": [],
    "//conditions:default": ["-O3"],
}) + [
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wno-psabi",
]
