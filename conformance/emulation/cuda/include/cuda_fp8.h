// Stands where the CUDA toolkit has cuda_fp8.h: everything is in simt.h.
#include "simt.h"
