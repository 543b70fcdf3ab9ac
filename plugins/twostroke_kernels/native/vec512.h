// 16 columns a vector: AVX-512 with VNNI.
#pragma once
#include <immintrin.h>

#include <cstring>

#include "packed_matrix.h"

namespace twostroke::kernels {

struct Vec512 {
  static constexpr size_t kLanes = 16;
  static constexpr size_t kMaxRows = 6;  // 6 x 2 sums in both kinds leave registers for the rest
  using Ints = __m512i;
  using Bytes = __m512i;
  using Floats = __m512;

  static Ints spread(int32_t x) { return _mm512_set1_epi32(x); }
  static Floats spread(float x) { return _mm512_set1_ps(x); }
  static Bytes load(const uint8_t* at) { return _mm512_load_si512(at); }
  static Floats load_floats(const uint8_t* at) { return _mm512_load_ps(at); }
  static void prefetch(const uint8_t* at) { _mm_prefetch(at, _MM_HINT_T0); }
  static Bytes low_nibbles(Bytes x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
  static Bytes high_nibbles(Bytes x) { return low_nibbles(_mm512_srli_epi16(x, 4)); }
  static Bytes spread_four(const int8_t* at) {
    int32_t four;
    std::memcpy(&four, at, 4);
    return _mm512_set1_epi32(four);
  }
  static Ints dot(Ints acc, Bytes weights, Bytes four) {
    return _mm512_dpbusd_epi32(acc, weights, four);
  }
  static Floats to_floats(Ints x) { return _mm512_cvtepi32_ps(x); }
  static Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  static Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static __mmask16 first(size_t num) { return static_cast<__mmask16>((1u << num) - 1); }
  static Floats load_some(const float* at, size_t num) {
    return _mm512_maskz_loadu_ps(first(num), at);
  }
  static void store_some(float* at, Floats x, size_t num) {
    _mm512_mask_storeu_ps(at, first(num), x);
  }
};

}  // namespace twostroke::kernels
