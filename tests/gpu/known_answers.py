"""Computes tests/gpu/known_answers.inc: what the kernels must give, from exact rational arithmetic rounded once per
operation. It shares no code with elrun. Run it again only when a kernel is meant to give other bits:
    python3 tests/gpu/known_answers.py > tests/gpu/known_answers.inc
"""
import struct
from fractions import Fraction
from math import isqrt

M32, M64 = (1 << 32) - 1, (1 << 64) - 1


def rounded(x, sticky=False):
    """The fp32 nearest to x, ties to even; `sticky`: the true value is a little above x. No zeros, no overflow here."""
    sign, x = (-1, -x) if x < 0 else (1, x)
    assert x > 0
    exponent = x.numerator.bit_length() - x.denominator.bit_length() - 24
    while x >= Fraction(2) ** (exponent + 24):
        exponent += 1
    while x < Fraction(2) ** (exponent + 23):
        exponent -= 1
    assert -149 < exponent < 104
    scaled = x / Fraction(2) ** exponent
    whole = scaled.numerator // scaled.denominator
    rest = scaled - whole
    half = Fraction(1, 2)
    if rest > half or (rest == half and (sticky or whole & 1)):
        whole += 1
    return sign * whole * Fraction(2) ** exponent


def f32(decimal):
    return rounded(Fraction(decimal))


def root(x):
    """The square root, rounded once: 64 bits of it and whether something is left."""
    shift = 64 + (x.denominator.bit_length() & ~1)
    scaled = x * (1 << (2 * shift))
    whole = scaled.numerator // scaled.denominator
    r = isqrt(whole)
    return rounded(Fraction(r, 1 << shift), sticky=(r * r != scaled))


def bits(x):
    return struct.unpack("<I", struct.pack("<f", float(x)))[0]


def bf16(x):
    b = bits(x)
    return (b + 0x7FFF + ((b >> 16) & 1)) >> 16 & 0xFFFF


class Rng:
    """Philox4x32-10, one counter after the other."""

    def __init__(self, seed):
        self.key, self.counter, self.block = (seed & M32, seed >> 32), 0, []

    def next(self):
        if not self.block:
            c, k = [self.counter & M32, self.counter >> 32, 0, 0], list(self.key)
            for _ in range(10):
                left, right = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
                c = [(right >> 32) ^ c[1] ^ k[0], right & M32, (left >> 32) ^ c[3] ^ k[1], left & M32]
                k = [(k[0] + 0x9E3779B9) & M32, (k[1] + 0xBB67AE85) & M32]
            self.block, self.counter = c, self.counter + 1
        return self.block.pop(0)


def values(seed, count):
    """Both signs, sixteen binary orders of magnitude; exact in fp32."""
    rng = Rng(seed)
    drawn = [rng.next() for _ in range(count)]
    return [(Fraction(b >> 8, 1 << 24) - Fraction(1, 2)) * Fraction(2) ** ((b & 15) - 8) for b in drawn]


def mix(word, index):
    x = word ^ (0x9E3779B97F4A7C15 * (index + 1) & M64)
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & M64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & M64
    return x ^ (x >> 31)


def salt_of(kind):
    h = 0xCBF29CE484222325
    for c in kind.encode():
        h = (h ^ c) * 0x100000001B3 & M64
    return mix(h, 0)


def mix_sum(data, first=0, salt=0):
    data += b"\0" * (-len(data) % 8)
    words = struct.unpack(f"<{len(data) // 8}Q", data)
    return sum(mix(w, (salt + first + i) & M64) for i, w in enumerate(words)) & M64


def hash_of(floats):
    return mix_sum(b"".join(struct.pack("<I", bits(x)) for x in floats))


COUNT = 2500  # two whole granules and a short one, whose last row is short too


def adamw():
    lr, beta1, beta2, epsilon, decay = map(f32, ("0.003", "0.9", "0.95", "1e-8", "0.1"))
    bias1, bias2, scale = map(f32, ("0.271", "0.142625", "0.37"))
    rest1, rest2 = rounded(1 - beta1), rounded(1 - beta2)
    rate, lr_decay = rounded(lr / bias1), rounded(lr * decay)
    out = []
    for p, m, v, g in zip(values(1, COUNT), values(2, COUNT), map(abs, values(3, COUNT)), values(4, COUNT)):
        g = rounded(g * scale)
        m = rounded(beta1 * m + rounded(rest1 * g))
        v = rounded(beta2 * v + rounded(rest2 * rounded(g * g)))
        decayed = rounded(p - lr_decay * p)
        direction = rounded(m / rounded(root(rounded(v / bias2)) + epsilon))
        out.append((rounded(decayed - rate * direction), m, v))
    return list(zip(*out))


def sgd(nesterov):
    lr, momentum, decay, scale = map(f32, ("0.003", "0.9", "0.1", "0.37"))
    lr_decay = rounded(lr * decay)
    out = []
    for p, m, g in zip(values(1, COUNT), values(2, COUNT), values(4, COUNT)):
        g = rounded(g * scale)
        m = rounded(momentum * m + g)
        direction = rounded(momentum * m + g) if nesterov else m
        out.append((rounded(rounded(p - lr_decay * p) - lr * direction), m))
    return list(zip(*out))


def lion():
    lr, beta1, beta2, decay, scale = map(f32, ("0.003", "0.9", "0.95", "0.1", "0.37"))
    rest1, rest2, lr_decay = rounded(1 - beta1), rounded(1 - beta2), rounded(lr * decay)
    out = []
    for p, m, g in zip(values(1, COUNT), values(2, COUNT), values(4, COUNT)):
        g = rounded(g * scale)
        direction = beta1 * m + rounded(rest1 * g)
        move = lr if direction > 0 else -lr
        out.append((rounded(rounded(p - lr_decay * p) - move), rounded(beta2 * m + rounded(rest2 * g))))
    return list(zip(*out))


def sums_of_squares(data):
    sums = []
    for g in range(0, len(data), 1024):
        lanes = [Fraction(0)] * 32
        for i, x in enumerate(data[g:g + 1024]):
            lanes[i % 32] = rounded(lanes[i % 32] + x * x)
        for apart in (16, 8, 4, 2, 1):
            lanes = [rounded(lanes[l] + lanes[l + apart]) for l in range(apart)]
        sums.append(lanes[0])
    return sums


def main():
    p, m, v = adamw()
    text = b"the quick brown fox jumps over the lazy dog"
    print("// Made by tests/gpu/known_answers.py.")
    print(f"inline constexpr std::size_t count = {COUNT};")
    print(f"inline constexpr std::uint32_t first_parameter = 0x{bits(p[0]):08x}u, first_exp_avg = 0x{bits(m[0]):08x}u,")
    print(f"                               first_exp_avg_sq = 0x{bits(v[0]):08x}u;")
    for name, floats in (("parameter", p), ("exp_avg", m), ("exp_avg_sq", v)):
        print(f"inline constexpr std::uint64_t {name}_hash = 0x{hash_of(floats):016x}u;")
    rounded_bytes = b"".join(struct.pack("<H", bf16(x)) for x in p)
    print(f"inline constexpr std::uint64_t rounded_hash = 0x{mix_sum(rounded_bytes):016x}u;")
    for name, (floats, moment) in (("sgd", sgd(False)), ("nesterov", sgd(True)), ("lion", lion())):
        print(f"inline constexpr std::uint64_t {name}_hash = 0x{hash_of(floats):016x}u;")
        print(f"inline constexpr std::uint64_t {name}_moment_hash = 0x{hash_of(moment):016x}u;")
    fold = [rounded(a + b) for a, b in zip(values(5, COUNT), values(6, COUNT))]
    print(f"inline constexpr std::uint64_t fold_hash = 0x{hash_of(fold):016x}u;")
    sums = ", ".join(f"0x{bits(s):08x}u" for s in sums_of_squares(values(7, COUNT)))
    print(f"inline constexpr std::uint32_t granule_sums[] = {{{sums}}};")
    print(f"inline constexpr std::uint64_t text_hash = 0x{mix_sum(text, 7, salt_of('exp_avg')):016x}u;")
    print(f"inline constexpr std::uint64_t exp_avg_salt = 0x{salt_of('exp_avg'):016x}u;")


main()
