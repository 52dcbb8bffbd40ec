// Stands where the CUDA toolkit has cuda_bf16.h: everything is in simt.h.
#include "simt.h"
