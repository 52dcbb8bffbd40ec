// How a compiled kernel is described to the loader: one Kernel per name expression.
#pragma once

namespace simt {

enum class Kind : int { Pointer, Signed, Unsigned, Float, Bool, Half, Bfloat16, Fp8, Void, Other };

// A parameter: what it is, its size, and for a pointer what it points to.
struct Param {
  Kind kind;
  int size;
  Kind pointee;
  int pointee_size;
  int pointee_const;
};

struct Kernel {
  void (*run)(void **arguments);  // one thread's whole life
  int num_params;
  const Param *params;
};

template <class T> constexpr Kind kind_of() {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_void_v<U>)
    return Kind::Void;
  else if constexpr (std::is_pointer_v<U>)
    return Kind::Pointer;
  else if constexpr (std::is_same_v<U, bool>)
    return Kind::Bool;
  else if constexpr (std::is_enum_v<U>)
    return kind_of<std::underlying_type_t<U>>();
  else if constexpr (std::is_floating_point_v<U>)
    return Kind::Float;
  else if constexpr (std::is_integral_v<U>)
    return std::is_signed_v<U> ? Kind::Signed : Kind::Unsigned;
  else if constexpr (std::is_same_v<U, __half>)
    return Kind::Half;
  else if constexpr (std::is_same_v<U, __nv_bfloat16>)
    return Kind::Bfloat16;
  else if constexpr (std::is_same_v<U, __nv_fp8_e4m3> || std::is_same_v<U, __nv_fp8_e5m2>)
    return Kind::Fp8;
  else
    return Kind::Other;
}
template <class T> constexpr int size_of() {
  if constexpr (std::is_void_v<T>)
    return 0;
  else
    return sizeof(T);
}
template <class T> constexpr Param param_of() {
  using P = std::remove_pointer_t<T>;
  if constexpr (std::is_pointer_v<T>) {
    return {Kind::Pointer, sizeof(T), kind_of<P>(), size_of<P>(), std::is_const_v<P>};
  } else {
    return {kind_of<T>(), sizeof(T), Kind::Void, 0, 0};
  }
}

template <auto F> struct Entry;
template <class... A, void (*F)(A...)> struct Entry<F> {
  static constexpr Param params[sizeof...(A) + 1] = {param_of<std::remove_cv_t<A>>()..., {}};
  template <size_t... I> static void call(void **a, std::index_sequence<I...>) {
    F(*static_cast<std::remove_cv_t<A> *>(a[I])...);
  }
  SIMT_QUIET static void run(void **a) { call(a, std::index_sequence_for<A...>()); }
};
template <auto F> constexpr Kernel kernel() {
  return {&Entry<F>::run, sizeof(Entry<F>::params) / sizeof(Param) - 1, Entry<F>::params};
}

}  // namespace simt
