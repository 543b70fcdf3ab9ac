// 8 columns a vector: AVX2, with the dot product of AVX-VNNI or without.
#pragma once
#include <immintrin.h>

#include <cstring>

#include "packed_matrix.h"

namespace twostroke::kernels {

struct Vec256Base {
  static constexpr size_t kLanes = 8;
  static constexpr size_t kMaxRows = 2;  // 2 x 4 sums: there are 16 registers
  using Ints = __m256i;
  using Bytes = __m256i;
  using Floats = __m256;

  static Ints spread(int32_t x) { return _mm256_set1_epi32(x); }
  static Floats spread(float x) { return _mm256_set1_ps(x); }
  static Bytes load(const uint8_t* at) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(at));
  }
  static Floats load_floats(const uint8_t* at) {
    return _mm256_load_ps(reinterpret_cast<const float*>(at));
  }
  static void prefetch(const uint8_t* at) {
    _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T0);
  }
  static Bytes low_nibbles(Bytes x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
  static Bytes high_nibbles(Bytes x) { return low_nibbles(_mm256_srli_epi16(x, 4)); }
  static Bytes spread_four(const int8_t* at) {
    int32_t four;
    std::memcpy(&four, at, 4);
    return _mm256_set1_epi32(four);
  }
  static Floats to_floats(Ints x) { return _mm256_cvtepi32_ps(x); }
  static Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
  static Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  static __m256i first(size_t num) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(num)), lanes);
  }
  static Floats load_some(const float* at, size_t num) {
    return _mm256_maskload_ps(at, first(num));
  }
  static void store_some(float* at, Floats x, size_t num) {
    _mm256_maskstore_ps(at, first(num), x);
  }
};

}  // namespace twostroke::kernels
