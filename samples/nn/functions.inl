// Functions of one number or of a vector of them, with the same bits either way. Whoever includes this has V (of float), I and U (the same
// width, of signed and unsigned integers), all(float), fma(), as<To>(), rounded(I) and NN_INLINE: kernels.inl for the host's vectors,
// device_layers.cu for a device's threads. A product and a sum stay two roundings; both compilers are told so.

// e^x, at most 1 ulp off, subnormal results included: x = n ln 2 + r, |r| <= ln 2 / 2, and the Taylor series of e^r up
// to r^7 (the next term is below a tenth of an ulp). 2^n is multiplied in as two factors, for n reaches -150.
NN_INLINE V exp(V x) {
  x = x < all(-104.0f) ? all(-104.0f) : x;
  x = x > all(89.0f) ? all(89.0f) : x;
  const V magic = all(0x1.8p23f);  // adding it leaves the nearest integer in the low bits
  const V shifted = fma(x, all(0x1.715476p+0f), magic);
  const V n = shifted - magic;
  const V r = fma(n, all(-0x1.7f7d1cp-20f), fma(n, all(-0x1.62e4p-1f), x));
  V p = all(1.0f / 5040);
  p = fma(p, r, all(1.0f / 720));
  p = fma(p, r, all(1.0f / 120));
  p = fma(p, r, all(1.0f / 24));
  p = fma(p, r, all(1.0f / 6));
  p = fma(p, r, all(0.5f));
  p = fma(fma(p, r, all(1.0f)), r, all(1.0f));
  const I integer = as<I>(shifted) - as<I>(magic);
  const I half = integer >> 1, rest = integer - half;
  const U low = (as<U>(half) + 127) << 23, high = (as<U>(rest) + 127) << 23;
  return p * as<V>(low) * as<V>(high);
}

// ln x of a normal x > 0, at most 1 ulp off: x = 2^n (1 + f) with 1 + f in [sqrt 1/2, sqrt 2), s = f / (2 + f), and
// ln(1 + f) = 2 atanh s = f - (f²/2 - s (f²/2 + R)) with R = 2/3 s² + 2/5 s⁴ + 2/7 s⁶ + 2/9 s⁸, as in FreeBSD's
// e_log.c.
NN_INLINE V log(V x) {
  const U bits = as<U>(x) - 0x3f3504f3u;  // sqrt 1/2
  const I exponent = as<I>(bits) >> 23;
  const U mantissa = (bits & 0x007fffffu) + 0x3f3504f3u;
  const V n = rounded(exponent);
  const V f = as<V>(mantissa) - all(1.0f);
  const V s = f / (all(2.0f) + f), z = s * s, h = all(0.5f) * f * f;
  V r = all(2.0f / 9);
  r = fma(r, z, all(2.0f / 7));
  r = fma(r, z, all(2.0f / 5));
  r = fma(r, z, all(2.0f / 3)) * z;
  return fma(n, all(0x1.62e4p-1f), f - (h - fma(s, h + r, n * all(0x1.7f7d1cp-20f))));
}

// The tanh form of GELU, 0.5 x (1 + tanh u) with u = sqrt(2/pi) (x + 0.044715 x³), is x / (1 + e^(-2u)): no tanh
// needed.
constexpr float gelu_a = 0x1.988454p-1f, gelu_b = 0.044715f;  // sqrt(2/pi)
NN_INLINE V sigmoid_2u(V x) {
  const V u = all(gelu_a) * x * fma(all(gelu_b) * x, x, all(1.0f));
  return all(1.0f) / (all(1.0f) + exp(all(-2.0f) * u));
}
NN_INLINE V gelu(V x) { return x * sigmoid_2u(x); }
NN_INLINE V gelu_slope(V x) {  // s + x s (1 - s) 2u'
  const V s = sigmoid_2u(x);
  const V twice = all(2 * gelu_a) * fma(all(3 * gelu_b) * x, x, all(1.0f));
  return fma(x * s * (all(1.0f) - s), twice, s);
}
