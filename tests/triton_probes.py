"""Small kernels that Triton's interpreter gets wrong, or accepts although a GPU would not.

    python triton_probes.py shipped|repaired [PROBE ...]

prints a JSON object: for each probe (all by default) "right", "wrong: what came out", or
"Error: message". Run as a process of its own: TRITON_INTERPRET is read when triton is imported.
"""

import importlib
import json
import sys

from triton_probing import PROBES  # which imports triton, interpreted

for part in ("arithmetic", "casts", "memory", "launch"):
    importlib.import_module(f"triton_probes_{part}")


def outcome(run):
    try:
        return run()
    except Exception as error:
        return f"{type(error).__name__}: {error} {' '.join(getattr(error, '__notes__', ()))}"


if __name__ == "__main__":
    print(json.dumps({name: outcome(PROBES[name]) for name in sys.argv[2:] or PROBES}))
