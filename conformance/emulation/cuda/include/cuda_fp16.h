// Stands where the CUDA toolkit has cuda_fp16.h: everything is in simt.h.
#include "simt.h"
