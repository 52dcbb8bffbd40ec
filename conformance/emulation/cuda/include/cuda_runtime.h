// Stands where the CUDA toolkit has cuda_runtime.h: everything is in simt.h.
#include "simt.h"
