#!/usr/bin/python3
"""Writes codes/expected.safetensors beside itself: codes of a matrix as bitsandbytes defines them, for
frozen_weights_test.cc, in Python without modules:

    /usr/bin/python3 worker/model/parity/make_codes.py

The definition is bitsandbytes' functional.quantize_4bit(..., blocksize=64, compress_statistics=True, "nf4"),
create_dynamic_map() and quantize_blockwise(..., blocksize=256), in float32 step by step. The matrix is
made of whole-number arithmetic by both sides. Tensors:

    nf4, int8      [elements] codes
    scale_codes    [blocks]; coarse [1 + groups]: the mean of all scales, and the largest of each group
    nf4_values, int8_values   [blocks] what the first code of each block is decoded to
"""
import json
import pathlib
import struct

BLOCK, GROUP = 64, 256
BLOCKS = 300  # two groups, the second of which is short

NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
       -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
       0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]


def f32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def matrix():
    """Numbers of many sizes, a block of zeroes, and one of a single size."""
    values = []
    for i in range(BLOCKS * BLOCK):
        block, mixed = i // BLOCK, i * 2654435761 % 2 ** 32
        number = (mixed >> 8) - 2 ** 23  # 24 bits
        size = 2.0 ** -(24 + (block * 7) % 5)
        values.append(0.0 if block == 17 else 0.5 if block == 18 else f32(number * size))
    return values


def linspace(start, end, count):
    """torch.linspace in float32, which goes from both ends."""
    step = f32((f32(end) - f32(start)) / (count - 1))
    return [f32(f32(start) + f32(step * i)) if i < count // 2 else f32(f32(end) - f32(step * (count - 1 - i)))
            for i in range(count)]


def dynamic_map(exponent_bits=7):
    data = [0.0, 1.0]
    for i in range(exponent_bits):
        bounds = linspace(0.1, 1, 2 ** i + 1)
        means = [f32(f32(a + b) / 2) for a, b in zip(bounds, bounds[1:])]
        power = f32(10.0 ** (i - exponent_bits + 1))
        data += [f32(power * m) for m in means] + [-f32(power * m) for m in means]
    assert len(data) == 256
    return sorted(data)


def nearest(book, x):
    return min(range(len(book)), key=lambda code: (abs(book[code] - x), code))


def quantise_scales(scales):
    mean = f32(sum(scales) / len(scales))
    book, codes, coarse = dynamic_map(), [], [mean]
    rest = [f32(s - mean) for s in scales]
    for begin in range(0, len(rest), GROUP):
        group = rest[begin:begin + GROUP]
        largest = max(abs(x) for x in group)
        coarse.append(largest)
        codes += [nearest(book, f32(x * f32(1 / largest))) for x in group]
    decoded = [f32(f32(coarse[1 + i // GROUP] * book[code]) + mean) for i, code in enumerate(codes)]
    return codes, coarse, decoded


def main():
    values = matrix()
    scales = [max(abs(x) for x in values[b:b + BLOCK]) for b in range(0, len(values), BLOCK)]
    scale_codes, coarse, decoded = quantise_scales(scales)
    inverse = [f32(1 / s) if s > 0 else 0.0 for s in scales]
    normal = [f32(x * inverse[i // BLOCK]) for i, x in enumerate(values)]
    nf4 = [nearest(NF4, x) for x in normal]
    int8 = [round(f32(127 * x)) for x in normal]
    tensors = {"nf4": nf4, "int8": int8, "scale_codes": scale_codes, "coarse": coarse,
               "nf4_values": [f32(NF4[c] * s) for c, s in zip(nf4[::BLOCK], decoded)],
               "int8_values": [f32(f32(c / 127) * s) for c, s in zip(int8[::BLOCK], decoded)]}
    header, data = {}, b""
    for name, numbers in tensors.items():
        half = name in ("nf4", "int8", "scale_codes")  # whole numbers of 8 bits
        raw = struct.pack(f"<{len(numbers)}{'e' if half else 'f'}", *numbers)
        header[name] = {"dtype": "F16" if half else "F32", "shape": [len(numbers)],
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder = pathlib.Path(__file__).parent / "codes"
    (folder / "expected.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


if __name__ == "__main__":
    main()
