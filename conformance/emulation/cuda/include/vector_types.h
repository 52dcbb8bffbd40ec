// Stands where the CUDA toolkit has vector_types.h: everything is in simt.h.
#include "simt.h"
