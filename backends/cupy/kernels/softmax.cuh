// The running softmax of a row: the largest logit m and the sum l of exp(logit - m).
#pragma once

#include "types.cuh"

// What m is taken for where it is subtracted: with no logit yet, -inf - -inf would be NaN.
__device__ __forceinline__ float base_of(float m) { return m == NEG_INF ? 0.f : m; }

struct State {
  float m;
  float l;
};

__device__ __forceinline__ State joined(State a, State b) {
  State r;
  r.m = fmaxf(a.m, b.m);
  const float base = base_of(r.m);
  r.l = a.l * __expf(a.m - base) + b.l * __expf(b.m - base);
  return r;
}

// The end of a row: out = sum * factor, and the log-sum-exp.
struct Ending {
  float factor;
  float lse;
};

// `sink` is one more logit without a value; -inf is none. A row without a logit gives 0 and -inf, one
// with a NaN among them NaN, which no merge may take for empty.
__device__ __forceinline__ Ending ending(State s, float sink) {
  const State whole = joined(s, {sink, sink == NEG_INF ? 0.f : 1.f});
  Ending e;
  e.factor = whole.l == 0.f ? 0.f : __expf(s.m - base_of(whole.m)) / whole.l;
  e.lse = whole.l == 0.f ? NEG_INF : whole.m + logf(whole.l);
  return e;
}
